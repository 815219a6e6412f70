"""Transports: how bytes travel. Importing this package registers the ones that ship with `multi`."""

import multi.transports.mptcp.transport
import multi.transports.quic.transport
import multi.transports.tcp.transport  # noqa: F401
from multi.transports.base import register_transport, transport, transport_names

__all__ = ["register_transport", "transport", "transport_names"]
