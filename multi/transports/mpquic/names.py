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
    "_close_at",
    "_close_begin",
    "_close_event",
    "_close_pending",
    "_configuration",
    "_confirm_handshake",
    "_consume_peer_cid",
    "_ack_delay",
    "_datagrams_pending",
    "_events",
    "_flush_builder",
    "_handle_ack_frame",
    "_handle_new_connection_id_frame",
    "_handle_path_response_frame",
    "_handle_retire_connection_id_frame",
    "_handshake_complete",
    "_handshake_confirmed",
    "_idle_timeout",
    "_initialize",
    "_is_client",
    "_logger",
    "_max_datagram_size",
    "_on_ack_delivery",
    "_parse_transport_parameters",
    "_path_validation_deadline",
    "_abandon_path_validation",
    "_payload_received",
    "_peer_token",
    "_remote_ack_delay_exponent",
    "_local_active_connection_id_limit",
    "_local_max_data",
    "_local_ack_delay_exponent",
    "_replenish_connection_ids",
    "_send_probe",
    "_send_probing_frames",
    "_serialize_transport_parameters",
    "_state",
    "_streams",
    "_streams_queue",
    "_version",
    "_write_ack_frame",
    "_write_application",
    "_write_connection_limits",
    "_write_new_connection_id_frame",
    "_write_ping_frame",
    "_write_retire_connection_id_frame",
    "_write_stream_limits",
    "_QuicConnection__frame_handlers",
)
"""What else is private there and used here."""


@cache
def missing() -> list[str]:
    """What this module needs of aioquic and does not find in the one installed."""
    made = QuicConnection(configuration=QuicConfiguration(is_client=True))
    known = [name for name in (*PER_PATH, *USED) if not hasattr(made, name)]
    known += [f"QuicPacketRecovery.{name}" for name in RECOVERY if not hasattr(made._loss, name)]
    return known


RECOVERY = (
    "_cc",
    "_get_loss_space",
    "_on_packets_lost",
    "_pacer",
    "_pto_count",
    "_rtt_initial",
    "_rtt_initialized",
    "_rtt_min",
)
