"""What the paper says in figures: every number of Figures 4 to 11 that its text gives, and in words what it says else.

The bars and curves themselves are pictures; a value that only they have is "not given in the text".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.paper.cells import Cell

__all__ = ["NOT_GIVEN", "Said", "said"]

NOT_GIVEN = "not given in the text"


@dataclass(frozen=True, slots=True)
class Said:
    """What the paper says of one value."""

    value: float | None
    """In the unit of the figure; None where the text has no number."""
    words: str = ""

    def __str__(self) -> str:
        number = "" if self.value is None else f"{self.value:g}"
        return f"{number} ({self.words})" if number and self.words else number or self.words or NOT_GIVEN


NOTHING = Said(None)

IPERF = {
    ("ethernet", True): Said(940, "roughly"),
    ("ethernet", False): Said(940, "roughly"),
    ("wifi", True): Said(200),
    ("wifi", False): Said(200),
    ("5g", True): Said(190),
    ("5g", False): Said(35),
}
"""Figure 4, by link and whether the client receives; TCP and UDP are not told apart. Section IV-D1."""

OPEN = {
    ("tcp", "ethernet"): Said(2.09),
    ("tcp", "wifi"): Said(5.57),
    ("quic", "ethernet"): Said(31.53),
    ("quic", "wifi"): Said(34.32),
    ("quic", "5g"): Said(50.2),
}
"""Figure 5 (a), base, milliseconds. Section IV-D1."""

LARGE = {
    ("base", "tcp", "ethernet", False): Said(844),
    ("base", "tcp", "ethernet", True): Said(724),
    ("base", "quic", "ethernet", False): Said(48),
    ("base", "quic", "ethernet", True): Said(78),
    ("multi", "tcp", "ethernet", False): Said(None, "less than 5 % under base"),
    ("multi", "tcp", "ethernet", True): Said(None, "less than 5 % under base"),
    ("multi", "tcp", "wifi", False): Said(None, "less than 5 % under base"),
    ("multi", "tcp", "wifi", True): Said(None, "less than 5 % under base"),
    ("multi", "quic", "ethernet", False): Said(None, "up to 20 % under base"),
    ("multi", "quic", "ethernet", True): Said(None, "up to 20 % under base"),
    ("multi", "quic", "wifi", False): Said(None, "up to 20 % under base"),
    ("multi", "quic", "wifi", True): Said(None, "up to 20 % under base"),
    ("multi", "tcp", "5g", True): Said(None, "degrades considerably"),
}
"""Figure 5 (c), Mbit/s. Section IV-D1."""

JOIN: dict[tuple[tuple[str, ...], str], Said] = {
    (("tcp", "tcp"), "before, mbps"): Said(100, "around"),
    (("tcp", "tcp"), "peak, mbps"): Said(340),
    (("tcp", "tcp"), "after, mbps"): Said(300, "roughly"),
    (("quic", "quic"), "peak, mbps"): Said(75),
    (("tcp", "quic"), "before, mbps"): Said(100, "around, Figure 7 (a)"),
    (("tcp", "quic"), "5g after, mbps"): Said(50, "drops to"),
    (("tcp", "quic"), "wifi after, mbps"): Said(None, "similar to Figure 7 (b)"),
    (("quic", "tcp"), "before, mbps"): Said(30, "around"),
    (("quic", "tcp"), "5g after, mbps"): Said(None, "drops"),
    (("quic", "tcp"), "wifi after, mbps"): Said(None, "unstable from 23 s on"),
}
"""Figures 7 and 8, by the transports over 5G and WiFi. Section IV-D3."""

SWITCH = Said(None, "as over a single interface")
"""Figure 9."""


def said(cell: Cell, name: str) -> Said:
    """What the paper says of a value of a cell, named as in its outcome."""
    link, kind = cell.links[0], cell.kinds[0]
    match cell.measure, name:
        case _ if cell.style == "adaptive" or kind in ("tls", "sealed"):
            return Said(None, "not in the paper")
        case "iperf", "mbps":
            return IPERF[link, cell.receives] if cell.figure == 4 else Said(None, "similar to Figure 4")
        case "small", "open, ms" if len(cell.links) > 1:
            return _open_several(cell)
        case "small", "open, ms":
            return OPEN.get((kind, link), NOTHING) if (cell.figure, cell.party) == (5, "base") else NOTHING
        case "small", "small, ms" if cell.figure == 6:
            return Said(None, "longer than one connection; Tx faster than Rx")
        case "small", "small, ms" if cell.party == "multi" and len(cell.links) == 1:
            return Said(None, "longer than base" if kind == "quic" and cell.receives else "similar to base")
        case "large", "mbps" if len(cell.links) == 1:
            return LARGE.get((cell.party, kind, link, cell.receives), NOTHING) if cell.figure == 5 else NOTHING
        case "large", "mbps" if set(cell.kinds) == {"tcp"}:
            return Said(None, "less than TCP over Ethernet, roughly twice TCP over WiFi")
        case "join", _:
            return JOIN.get((cell.kinds, name), NOTHING)
        case "switch", _ if name.endswith("mbps"):
            return SWITCH
    return NOTHING


def _open_several(cell: Cell) -> Said:
    if cell.figure == 6:
        return Said(None, "least of all" if set(cell.kinds) == {"tcp"} else "longer than one connection")
    if len(set(cell.kinds)) == 1:
        return Said(None, "twice that of one connection")
    return NOTHING
