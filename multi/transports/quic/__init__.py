"""The `quic` transport, registered by name; its code is imported with the first connection."""

from multi.transports.base import Transport, register_transport
from multi.transports.quic.settings import QuicSettings


@register_transport("quic", settings=QuicSettings, over_udp=True, connection_memory=96 * 1024, needs_certificate=True)
def _quic() -> Transport:
    from multi.transports.quic.transport import Quic

    return Quic()
