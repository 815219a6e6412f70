"""`mptcp_config`: what a configuration may say about MPTCP connections."""

from __future__ import annotations

from multi.transports.tcp.settings import KernelName, TcpSettings


class MptcpSettings(TcpSettings):
    """MPTCP connections (paper Figure 2, `mptcp_config`)."""

    scheduler: KernelName = ""
    """The kernel's MPTCP scheduler. Linux has one per host and not per connection: a name that is not the one
    in force is reported as a warning and changes nothing. Default empty: whatever the host uses."""
