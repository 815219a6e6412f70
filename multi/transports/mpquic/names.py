"""What is private in aioquic and used here, by name: each of its minor versions changes some."""

from __future__ import annotations

from functools import cache

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

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


@cache
def missing() -> list[str]:
    """What this module needs of aioquic and does not find in the one installed."""
    made = QuicConnection(configuration=QuicConfiguration(is_client=True))
    known = [name for name in (*PER_PATH, *USED) if not hasattr(made, name)]
    known += [f"QuicPacketRecovery.{name}" for name in RECOVERY if not hasattr(made._loss, name)]
    return known
