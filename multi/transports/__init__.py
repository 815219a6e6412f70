"""Transports: how bytes travel. Importing this package registers the ones that ship with `multi`."""

from multi.transports import mptcp as mptcp
from multi.transports import quic as quic
from multi.transports import tcp as tcp
from multi.transports.base import register_transport, transport, transport_names

__all__ = ["register_transport", "transport", "transport_names"]
