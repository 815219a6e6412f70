"""`quic_config`: what a configuration may say about QUIC connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ValidationInfo, field_validator

from multi.transports.settings import DAY, Range, TransportSection
from multi.types import Side

USUAL_DATAGRAM = 1350  # bytes


class QuicSettings(TransportSection):
    """QUIC connections (paper Figure 2, `quic_config`)."""

    idle_timeout: Annotated[float, Range(0.1, DAY)] = 60.0
    """Seconds without receiving anything after which a connection is given up (RFC 9000 section 10.1; the
    smaller value of both ends counts). Keep-alives go every min(15 s, a third of it). Default 60: as for
    TCP."""
    engine: Literal["aioquic", "qh3", "noq"] = "aioquic"
    """QUIC implementation; both ends may use different ones. `qh3` is several times as fast and has to be installed
    (`pip install 'multi-session[qh3]'`); its congestion control is always `cubic`, and on a server it cannot ask for
    client certificates (`client_ca`). `noq` is the native engine, as fast, which `make native` builds. Default
    `aioquic`: it is always there."""
    congestion: Literal["cubic", "reno", "bbr"] = "cubic"
    """Congestion control; `bbr` (version 3) needs the engine `noq`. Default `cubic`: recovers faster than Reno on fast
    or long paths (RFC 9438)."""
    max_datagram_size: Annotated[int, Range(1200, 65_527)] = USUAL_DATAGRAM
    """Largest UDP payload sent, in bytes; 1200 is the minimum of RFC 9000 section 14. Where the system knows that
    the path carries less, less is sent; where larger ones vanish, 1200, and with `qh3`, which does not notice that,
    always but inside one machine; and where nobody answers for a second a client tries 1232 as well. The peer sends no
    larger ones either. Default 1350: fits through usual tunnels and mobile networks."""
    retry: Annotated[bool, Side.SERVER] = False
    """Server: whether every client must show that it receives at its address (RFC 9000 section 8.1.2) before anything
    is kept for it. It costs one round trip. Default false: that is asked only while many handshakes are unfinished."""

    def cannot_ask_clients(self) -> Iterator[tuple[str, str]]:
        if self.engine == "qh3":
            message = 'found "qh3" together with ssl_config.client_ca; allowed: "aioquic", "noq", which can ask clients'
            yield "engine", message

    @field_validator("congestion")
    @classmethod
    def _engine_has_it(cls, congestion: str, info: ValidationInfo) -> str:
        engine = info.data.get("engine")
        if engine == "qh3" and congestion != "cubic":
            raise ValueError('"cubic" with the engine "qh3", which has no other')
        if engine == "aioquic" and congestion == "bbr":
            raise ValueError('"cubic" or "reno" with the engine "aioquic"; only "noq" has "bbr"')
        return congestion
