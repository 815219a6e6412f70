"""The `tcp` transport, registered by name; its code is imported with the first connection."""

from multi.transports.base import Transport, register_transport
from multi.transports.tcp.settings import TcpSettings


@register_transport("tcp", settings=TcpSettings)
def _tcp() -> Transport:
    from multi.transports.tcp.transport import Tcp

    return Tcp()
