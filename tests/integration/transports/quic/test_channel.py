"""One QUIC connection: its lanes, loss, slow networks, how it ends, and streams that are no lanes."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol

from multi.transports.quic.channel import PREFACE
from multi.transports.quic.engine import LANE_STREAMS
from multi.transports.quic.settings import QuicSettings
from multi.types import TransportSample
from tests.integration.certificates import Certificates
from tests.integration.support import pattern, until
from tests.integration.transports.quic.ends import Engines, QuicServer, Relay, dial, stranger
from tests.integration.transports.test_contract import write_all

pytestmark = pytest.mark.usefixtures("engines")


@pytest.mark.parametrize("lane", range(1, len(LANE_STREAMS)))
async def test_server_may_speak_first_on_any_lane(files: Certificates, engines: Engines, lane: int) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, sink = await dial(files.client_settings(), port)
    peer, peer_sink = await server.channels.get()
    peer.write([b"data first"], lane)
    peer.write([b"then control"], 0)
    peer.flush()
    assert await sink.until_received(10, lane) == b"data first"
    if engines.server == "qh3":  # it waits until the client has written there
        channel.write([b"hello"], 0)
        channel.flush()
    assert await sink.until_received(12, 0) == b"then control"
    channel.write([b"answer"], lane)
    channel.flush()
    assert await peer_sink.until_received(6, lane) == b"answer"
    channel.abort()
    server.listener.close()


async def test_data_survives_loss(files: Certificates) -> None:
    server = QuicServer()
    relay = Relay(await server.listen(files.server_settings()), loss=0.03)
    channel, sink = await dial(files.client_settings(), await relay.open())
    peer, peer_sink = await server.channels.get()
    up, down = pattern(1_500_000, 1), pattern(1_500_000, 2)
    write_all(channel, sink, up, 1, 16384)
    write_all(peer, peer_sink, down, 1, 16384)
    assert await peer_sink.until_received(len(up), 1) == up
    assert await sink.until_received(len(down), 1) == down
    assert relay.dropped.total() > 10
    await until(lambda: channel.sample().bytes_acked >= len(up))
    channel.close()
    assert await peer_sink.until_lost() is None
    assert await sink.until_lost() is None
    server.listener.close()
    relay.close()


async def test_backlog_stays_small_on_a_slow_network(files: Certificates) -> None:
    server = QuicServer()
    rate = 2_000_000.0
    relay = Relay(await server.listen(files.server_settings()), rate=rate, queue=60_000)
    channel, sink = await dial(files.client_settings(), await relay.open())
    peer, peer_sink = await server.channels.get()
    samples: list[TransportSample] = []
    size = 3_000_000
    data = pattern(size)

    def watch(chunk: bytes, lane: int) -> None:
        samples.append(channel.sample())

    peer_sink.on_data = watch
    write_all(channel, sink, data, 1, 16384)
    assert await peer_sink.until_received(size, 1) == data
    # What is lost waits unsent again, so the bound holds beyond what was granted.
    assert max(sample.not_sent for sample in samples) < 300_000
    assert sink.writable_calls > 10
    # Of the whole transfer: a relay that is late on a busy machine makes up for it in a burst.
    assert rate / 10 < median(sample.rate for sample in samples) < rate * 2
    channel.abort()
    peer.abort()  # it may not hear of that any more
    server.listener.close()
    relay.close()


async def test_a_channel_closed_for_good_before_all_has_arrived_does_not_end_in_order(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi.transports.quic.channel.MAX_LINGER", 0.2)
    server = QuicServer()  # behind a queue that loses nothing: the last packet is said once
    relay = Relay(await server.listen(files.server_settings()), rate=1_000_000.0, queue=2_000_000)
    channel, sink = await dial(files.client_settings(), await relay.open())
    _, peer_sink = await server.channels.get()
    data = pattern(2_000_000)
    channel.write([data], 1)
    channel.close()
    assert await sink.until_lost() is None
    assert "aborted by peer" in str(await peer_sink.until_lost())
    assert len(peer_sink.received.get(1, b"")) < len(data)
    server.listener.close()
    relay.close()


async def test_datagrams_may_be_as_large_as_the_path_allows(files: Certificates) -> None:
    large = {"quic": QuicSettings(max_datagram_size=65_527)}
    server = QuicServer()
    port = await server.listen(replace(files.server_settings(), sections=large))
    channel, sink = await dial(replace(files.client_settings(), sections=large), port)
    peer, peer_sink = await server.channels.get()
    data = pattern(1_000_000)
    write_all(channel, sink, data, 1, 50_000)
    write_all(peer, peer_sink, data, 1, 50_000)
    assert await peer_sink.until_received(len(data), 1) == data
    assert await sink.until_received(len(data), 1) == data
    channel.abort()
    server.listener.close()


async def test_idle_connection_ends_in_words(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, sink = await dial(
        replace(files.client_settings(), sections={"quic": QuicSettings(idle_timeout=0.3)}), port
    )
    peer, _ = await server.channels.get()
    error = await sink.until_lost()
    assert "idle timeout" in str(error)
    assert channel.credit() == 0
    assert len(sink.lost) == 1
    peer.abort()
    server.listener.close()


async def test_abort_reads_as_abort_on_the_other_side(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, _ = await dial(files.client_settings(), port)
    _, peer_sink = await server.channels.get()
    channel.abort()
    assert "aborted by peer" in str(await peer_sink.until_lost())
    channel, sink = await dial(files.client_settings(), port)
    peer, _ = await server.channels.get()
    peer.abort()
    assert "aborted by peer" in str(await sink.until_lost())
    server.listener.close()


async def test_an_ending_is_no_warning(files: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    _, sink = await dial(files.client_settings(), port)
    peer, _ = await server.channels.get()
    peer.abort()
    await sink.until_lost()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
    server.listener.close()


@pytest.mark.parametrize("unidirectional", [True, False])
async def test_stream_that_is_no_lane_closes_the_connection(files: Certificates, unidirectional: bool) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    async with connect("127.0.0.1", port, configuration=stranger()) as client:
        _, sink = await server.channels.get()
        client._quic._remote_max_streams_bidi = client._quic._remote_max_streams_uni = 128  # whatever the server says
        count = 1 if unidirectional else len(LANE_STREAMS) + 1
        for number in range(count):
            _, writer = await client.create_stream(is_unidirectional=unidirectional)
            writer.write(b"\x01" if number else b"first")
        reason = str(await sink.until_lost())
        assert "no lane" in reason or "too many streams" in reason.lower() or "stream limit" in reason
        assert len(sink.lost) == 1
        await client.wait_closed()
    server.listener.close()


class ResettingClient(QuicConnectionProtocol):
    def say(self, stream_id: int, data: bytes) -> None:
        self._quic.send_stream_data(stream_id, data)
        self.transmit()

    def reset(self, stream_id: int) -> None:
        self._quic.reset_stream(stream_id, 7)
        self.transmit()


async def test_stream_reset_by_a_stranger_closes_the_connection(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    async with connect("127.0.0.1", port, configuration=stranger(), create_protocol=ResettingClient) as client:
        assert isinstance(client, ResettingClient)
        _, sink = await server.channels.get()
        client.say(0, b"hello")
        assert await sink.until_received(5) == b"hello"
        client.reset(0)
        assert "gave up a QUIC stream" in str(await sink.until_lost())
        await client.wait_closed()
    server.listener.close()


@pytest.mark.parametrize("stream_id", LANE_STREAMS[1:])
async def test_a_lane_that_is_not_opened_with_its_byte_closes_the_connection(
    files: Certificates, stream_id: int
) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    async with connect("127.0.0.1", port, configuration=stranger(), create_protocol=ResettingClient) as client:
        assert isinstance(client, ResettingClient)
        _, sink = await server.channels.get()
        for each in LANE_STREAMS[1:]:
            client.say(each, b"?" if each == stream_id else PREFACE)
        assert "did not open its lanes properly" in str(await sink.until_lost())
        assert sink.received == {}
        await client.wait_closed()
    server.listener.close()


async def test_what_is_for_a_lane_that_the_client_never_opens_waits_within_credit(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    async with connect("127.0.0.1", port, configuration=stranger(), create_protocol=ResettingClient) as client:
        assert isinstance(client, ResettingClient)
        channel, sink = await server.channels.get()
        client.say(0, b"hello")
        client.say(LANE_STREAMS[1], PREFACE + b"hello")
        assert await sink.until_received(5, 1) == b"hello"
        given = 0
        while credit := channel.credit():
            channel.write([bytes(credit)], len(LANE_STREAMS) - 1)
            channel.flush()
            given += credit
            assert given < 1 << 20
        assert channel.sample().not_sent == given > 0
        client.say(LANE_STREAMS[-1], PREFACE)
        await until(lambda: channel.sample().not_sent < given)
        channel.abort()
        await client.wait_closed()
    server.listener.close()
