"""The `mpquic` transport, registered by name; its code is imported with the first connection."""

from multi.transports.base import Transport, register_transport
from multi.transports.mpquic.settings import MpquicSettings


@register_transport(
    "mpquic",
    settings=MpquicSettings,
    over_udp=True,
    connection_memory=104 * 1024,
    spans_interfaces=True,
    needs_certificate=True,
    also_accepts=("quic",),
    by_name_only=True,
    separately="quic",  # which another, faster engine may carry
)
def _mpquic() -> Transport:
    from multi.transports.mpquic.transport import Mpquic

    return Mpquic()
