"""What each path of an aioquic connection has for itself."""

from __future__ import annotations

import logging

import pytest
from aioquic._crypto import AEAD, CryptoError, HeaderProtection
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStreamSender
from aioquic.tls import Epoch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from multi.multipath.coupling import CoupledPaths, Coupling
from multi.transports.mpquic.path import CoupledControl, Path, PathKeys, PathRecovery
from multi.transports.mpquic.paths import _spare, take_over

DATAGRAM = 1200


def recovery_of_a_path() -> PathRecovery:
    return PathRecovery(
        congestion_control_algorithm="reno",
        initial_rtt=0.1,
        max_datagram_size=DATAGRAM,
        peer_completed_address_validation=True,
        send_probe=lambda: None,
        logger=logging.LoggerAdapter(logging.getLogger("test"), {}),
    )


def window_after(in_flight: int, *, coupled: bool) -> tuple[int, int]:
    """The congestion window before and after an acknowledgement of the first of so many packets in flight, bytes."""
    space = QuicPacketSpace(is_application_data=True)
    recovery = recovery_of_a_path()
    if coupled:
        recovery._cc = CoupledControl(CoupledPaths(Coupling.LIA, DATAGRAM).add(), DATAGRAM)
    recovery.spaces = [space]
    for number in range(in_flight):
        packet = QuicSentPacket(Epoch.ONE_RTT, True, True, False, number, QuicPacketType.ONE_RTT, 1.0, DATAGRAM)
        recovery.on_packet_sent(packet=packet, space=space)
    before = recovery.congestion_window
    recovery.on_ack_received(ack_rangeset=RangeSet([range(1)]), ack_delay=0.0, now=1.1, space=space)
    return before, recovery.congestion_window


@pytest.mark.parametrize("coupled", [False, True])
def test_a_window_grows_only_where_it_is_used(coupled: bool) -> None:
    before, after = window_after(2, coupled=coupled)
    assert after == before
    before, after = window_after(8, coupled=coupled)
    assert after == before + DATAGRAM


def test_a_burst_does_not_hide_the_pauses_between_bursts() -> None:
    path = Path(0, recovery_of_a_path(), QuicPacketSpace(is_application_data=True), 0.0)
    path.heard(1.0)
    assert path.pause == 0.0
    for burst in range(1, 5):
        for packet in range(10):
            path.heard(1.0 + burst * 0.150 + packet * 0.001)
        assert path.pause > 0.120
    for packet in range(1000):
        path.heard(2.0 + packet * 0.001)
    assert path.pause < 0.120


def test_a_stream_ends_with_its_last_packet_though_that_waits_to_be_sent_again() -> None:
    sender, space = QuicStreamSender(stream_id=0, writable=True), QuicPacketSpace(is_application_data=True)
    sender.write(bytes(100), end_stream=True)
    assert sender.get_frame(DATAGRAM) is not None
    packet = QuicSentPacket(Epoch.ONE_RTT, True, True, False, 0, QuicPacketType.ONE_RTT, 1.0, DATAGRAM)
    packet.delivery_handlers = [(sender.on_data_delivery, (0, 100, True))]
    space.sent_packets[0] = packet
    take_over(space, DATAGRAM, lambda _delivery, part: _spare(part))
    for handler, arguments in packet.delivery_handlers:
        handler(QuicDeliveryState.ACKED, *arguments)
    assert sender.is_finished
    assert sender.get_frame(DATAGRAM) is None


def test_nonces_contain_the_path() -> None:
    """With the vector of the draft: IV 6b26114b9cba2b63a9e8dd4f, path 3, packet 54321."""
    iv, nonce = bytes.fromhex("6b26114b9cba2b63a9e8dd4f"), bytes.fromhex("6b2611489cba2b63a9e8097e")
    key, header, payload = bytes(range(16)), b"C" + bytes(8) + (54321).to_bytes(4, "big"), b"what is said"
    pair = CryptoPair()
    for way in (pair.send, pair.recv):
        way.aead, way.hp = AEAD(b"aes-128-gcm", key, iv), HeaderProtection(b"aes-128-ecb", key)
    packet = PathKeys(pair, 3).encrypt_packet(header, payload, 54321)
    assert packet[len(header) :] == AESGCM(key).encrypt(nonce, payload, header)
    assert PathKeys(pair, 3).decrypt_packet(packet, 9, 54321) == (header, payload, 54321)
    with pytest.raises(CryptoError):
        PathKeys(pair, 2).decrypt_packet(packet, 9, 54321)
