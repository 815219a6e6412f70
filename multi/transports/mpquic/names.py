"""What is private in aioquic and used here, by name: each of its minor versions changes some."""

from __future__ import annotations

from functools import cache

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.connection import QuicConnection
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.stream import QuicStreamReceiver, QuicStreamSender
from aioquic.tls import Context

PER_PATH = (
    "host_cid",
    "_cryptos",
    "_host_cid_seq",
    "_host_cids",
    "_loss",
    "_loss_at",
    "_network_paths",
    "_pacing_at",
    "_packet_number",
    "_peer_cid",
    "_peer_cid_available",
    "_peer_cid_sequence_numbers",
    "_peer_retire_prior_to",
    "_probe_pending",
    "_retire_connection_ids",
    "_spaces",
    "_spin_bit",
    "_spin_highest_pn",
)
"""Attributes of aioquic's connection that each path has for itself."""

USED = (
    "_QuicConnection__frame_handlers",
    "_abandon_path_validation",
    "_ack_delay",
    "_close_at",
    "_close_begin",
    "_close_event",
    "_close_pending",
    "_configuration",
    "_confirm_handshake",
    "_consume_peer_cid",
    "_crypto_buffers",
    "_crypto_streams",
    "_datagrams_pending",
    "_events",
    "_flush_builder",
    "_get_or_create_stream",
    "_handle_ack_frame",
    "_handle_crypto_frame",
    "_handle_new_connection_id_frame",
    "_handle_path_response_frame",
    "_handle_retire_connection_id_frame",
    "_handshake_complete",
    "_handshake_confirmed",
    "_handshake_done_pending",
    "_idle_timeout",
    "_initialize",
    "_is_client",
    "_local_ack_delay_exponent",
    "_local_active_connection_id_limit",
    "_local_initial_source_connection_id",
    "_local_max_data",
    "_local_max_streams_bidi",
    "_local_max_streams_uni",
    "_logger",
    "_max_datagram_size",
    "_on_ack_delivery",
    "_on_connection_limit_delivery",
    "_on_max_stream_data_delivery",
    "_on_retire_connection_id_delivery",
    "_original_destination_connection_id",
    "_parse_transport_parameters",
    "_payload_received",
    "_peer_token",
    "_remote_ack_delay_exponent",
    "_remote_max_data",
    "_remote_max_data_used",
    "_remote_max_datagram_frame_size",
    "_replenish_connection_ids",
    "_send_probe",
    "_send_probing_frames",
    "_serialize_transport_parameters",
    "_state",
    "_streams",
    "_streams_queue",
    "_update_traffic_key",
    "_version",
    "_write_ack_frame",
    "_write_application",
    "_write_connection_limits",
    "_write_ping_frame",
    "_write_retire_connection_id_frame",
    "_write_stream_limits",
)
"""What else is private there and used here, or by the engine of `quic`, which this one extends."""

RECOVERY = (
    "_cc",
    "_detect_loss",
    "_get_loss_space",
    "_in_persistent_congestion",
    "_on_packets_lost",
    "_pacer",
    "_pto_count",
    "_rtt_initial",
    "_rtt_initialized",
    "_rtt_latest",
    "_rtt_min",
    "_rtt_smoothed",
    "_rtt_variance",
    "_time_of_last_sent_ack_eliciting_packet",
)
"""What is private in its recovery and used, likewise."""

CUBIC = (
    "_W_est",
    "_W_max",
    "_congestion_recovery_start_time",
    "_cwnd_epoch",
    "_first_slow_start",
    "_starting_congestion_avoidance",
    "_t_epoch",
)
SENDER = ("_acked", "_buffer_fin", "_buffer_start", "_buffer_stop", "_pending", "_pending_eof")
TLS = (
    "_cadata",
    "_peer_certificate",
    "_peer_certificate_chain",
    "_request_client_certificate",
    "_supported_groups",
)


def needed() -> list[tuple[object, tuple[str, ...]]]:
    """Things of aioquic, and what is private there and used."""
    made = QuicConnection(configuration=QuicConfiguration(is_client=True))
    builder = QuicPacketBuilder(host_cid=b"", peer_cid=b"", version=1, is_client=True, max_datagram_size=1200)
    return [
        (made, PER_PATH + USED),
        (made._loss, RECOVERY),
        (made._loss._pacer, ("_max_datagram_size",)),
        (CubicCongestionControl(max_datagram_size=1200), CUBIC),
        (CryptoPair(), ("_update_key",)),
        (builder, ("_datagram_needs_padding",)),
        (QuicStreamSender(stream_id=0, writable=True), SENDER),
        (QuicStreamReceiver(stream_id=0, readable=True), ("_ranges",)),
        (RangeSet(), ("_RangeSet__ranges",)),
        (Context(is_client=True), TLS),
    ]


@cache
def missing() -> list[str]:
    """What this module needs of aioquic and does not find in the one installed."""
    return [f"{type(thing).__name__}.{name}" for thing, names in needed() for name in names if not hasattr(thing, name)]
