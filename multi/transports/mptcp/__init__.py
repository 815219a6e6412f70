"""The `mptcp` transport, registered by name; its code is imported with the first connection."""

from multi.transports.base import Transport, register_transport
from multi.transports.mptcp.settings import MptcpSettings


@register_transport("mptcp", settings=MptcpSettings, spans_interfaces=True, also_accepts=("tcp",))
def _mptcp() -> Transport:
    from multi.transports.mptcp.transport import Mptcp

    return Mptcp()
