"""The `mptcp` transport, registered by name; its code is imported with the first connection."""

from multi.transports.base import Transport, register_transport
from multi.transports.mptcp.settings import MptcpSettings
from multi.types import Candidate


def _why_separately(candidate: Candidate) -> str:
    from multi.linux.mptcp_pm import why_no_subflows

    return why_no_subflows(candidate)


@register_transport(
    "mptcp",
    settings=MptcpSettings,
    spans_interfaces=True,
    also_accepts=("tcp",),
    why_separately=_why_separately,  # each is MPTCP: it becomes TCP by itself where it has to
)
def _mptcp() -> Transport:
    from multi.transports.mptcp.transport import Mptcp

    return Mptcp()
