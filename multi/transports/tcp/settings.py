"""`tcp_config`: what a configuration may say about TCP connections."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from multi.transports.settings import TransportSection

KernelName = Annotated[str, Field(max_length=15, pattern=r"^[A-Za-z0-9_-]*$")]  # as long as Linux allows


class TcpSettings(TransportSection):
    """TCP connections (paper Figure 2, `tcp_config`)."""

    nagle: bool = False
    """Whether the kernel may hold back small segments (Nagle's algorithm, RFC 896). Default false: the
    session coalesces small writes itself, waiting again would only add latency."""
    congestion: KernelName = ""
    """Congestion control of the kernel, for example `cubic` or `bbr` (Linux `TCP_CONGESTION`). Default empty:
    the system's own default, which its owner has chosen; inside this machine `reno`, which does not pace."""
