"""Viernickel et al. between real kernels: sessions of `multi` over QUIC beside the kernel's TCP and MPTCP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from benchmarks.mpquic.cells import ENGINES, TESTBED, Results, Route, route
from benchmarks.mpquic.compared import Compared, Value
from benchmarks.mpquic.figures import Target
from benchmarks.mpquic.testbed import Fetch, Party, Rate, UrgentOnTestbed
from multi.lab.engines.links import MBIT, DatagramLinkSpec
from multi.lab.testbed import Direction, load_profile

__all__ = ["Networks", "PageLoad", "Parties", "SizesOnTestbed", "UrgentBeside"]

Jobs = Mapping[str, tuple[int, ...]]
"""Names, and the sizes of the files of each."""

PATH = route(10.0, 0.044)
MPTCP = Party("mptcp")
SHOWN = {setup.engine: setup.name for setup in ENGINES}
OURS = {setup.engine: Party("mpquic", setup) for setup in ENGINES}
ALONE = {setup.engine: Party("quic", setup, (0,)) for setup in ENGINES}
PARTIES = (
    Party("tcp", paths=(0,)),
    MPTCP,
    *(party for s in ENGINES for party in (ALONE[s.engine], Party("quic", s), OURS[s.engine])),
)
SMALL: Jobs = {"10 kB": (10_000,), "100 kB": (100_000,), "1 MB": (1_000_000,)}
LARGE: Jobs = {"10 MB": (10_000_000,)}
PAGE: Jobs = {"page": (30_000, 60_000, 110_000, 200_000, 300_000, 500_000)}
RATIOS = (1, 2, 8)
ENDS = (
    "Sessions of `multi`, both ends processes of their own; TCP and MPTCP are the kernel's, with TLS 1.3. From the "
    "opening of a connection to the last byte; certificates and code are loaded before."
)


def _far(ratio: float) -> tuple[Route, Route]:
    """As in Figure 9c."""
    return PATH, route(10.0, 0.004 + ratio * 0.040)


def _fetched(party: Party, jobs: Jobs, routes: tuple[Route, ...], what: str) -> Iterable[tuple[str, Value]]:
    cell = party.cell(Parties.key, what, Fetch(routes=routes, jobs=tuple(jobs.items())))
    return ((name, Value(cell, name)) for name in jobs)


def _small(party: Party, ratio: float) -> dict[str, Value]:
    """Small files and the page, which one run has all."""
    return dict(_fetched(party, {**SMALL, **PAGE}, _far(ratio), f"ratio {ratio:g}"))


class Networks(Compared):
    key = "viernickel-7" + TESTBED
    title = "Figure 7: WiFi and LTE, on the testbed"
    setting = (
        "Downloads of 5 s, the rate from 2 s on. WiFi and 5G: 200 Mbit/s and 1.8 ms, 190 and 46 ms, with queues of 50 "
        "and 100 ms. WiFi and LTE: 20 Mbit/s and 20 ms, 10 and 60 ms. The paper shows that LTE added to WiFi reduces "
        "download times, without numbers. Beside MPTCP stands TCP alone. aioquic is measured where the processor does "
        "not bound it."
    )
    runs = (1, 3)
    unit = "Mbit/s"
    logarithmic = True
    FAST, SLOW = "WiFi and 5G", "WiFi and LTE"

    def _routes(self, network: str) -> tuple[Route, ...]:
        if network == self.SLOW:
            return route(20.0, 0.020), route(10.0, 0.060)
        return tuple((_modelled(link.up), _modelled(link.down)) for link in load_profile("wifi_and_5g"))

    def _row(self, network: str, party: Party) -> dict[str, Value]:
        play = Rate(routes=self._routes(network), seconds=5.0, down=True)
        alone = "tcp" if party == MPTCP else party.transport  # kernels make subflows over all links there are
        parties = {
            "both": party,
            "WiFi alone": Party(alone, party.setup, (0,)),
            "the other alone": Party(alone, party.setup, (1,)),
        }
        return {name: Value(each.cell(self.key, network, play), "mbps 0") for name, each in parties.items()}

    def _rows(self) -> Sequence[tuple[str, Party]]:
        engines = {self.SLOW: list(OURS.values()), self.FAST: [OURS["noq"]]}
        if self.quick:
            return [(self.SLOW, OURS["noq"])]
        return [(network, party) for network, ours in engines.items() for party in (MPTCP, *ours)]

    def values(self) -> Mapping[str, Mapping[str, Value]]:
        return {f"{network}: {party}": self._row(network, party) for network, party in self._rows()}

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for network, party in self._rows():
            if party != MPTCP:
                row = f"{network}: {party}"
                both, one, other = (self.middle(results, row, column) for column in self.columns)
                share = both / (one + other) if both and one and other else None
                what = f"testbed: {network}, both / the sum of each alone, {party.setup.name}"
                found.append(Target(what, share, 0.93, at_least=True, unit=" times"))
        return found


def _modelled(way: Direction) -> DatagramLinkSpec:
    return DatagramLinkSpec(way.rate_mbps * MBIT, way.delay_ms / 1e3, round(way.queue_limit))


class SizesOnTestbed(Compared):
    key = "viernickel-8" + TESTBED
    title = "Figure 8 on the testbed"
    setting = f"10 Mbit/s and 44 ms each. {ENDS}"
    why_short = (
        "opening, and aioquic's pacer. A session is open after 60 to 65 ms with aioquic and after 57 to 60 with the "
        "native engine, where the engines alone need 46 in virtual time: the rest is processor time of both ends, and "
        "1 MB, which takes 0.615 s in virtual time, is late by as much. Of a small file the pacer lets three "
        "datagrams or four leave at once, and two more each 4.5 ms: in virtual time 10 kB take 103 ms over one path "
        "and 107 over two, and 100 over either without a pacer."
    )
    runs = (1, 3)
    unit = "seconds"
    logarithmic = True
    BOUNDS: ClassVar = {"aioquic": 0.62, "noq": 0.66}

    def _row(self, party: Party) -> dict[str, Value]:
        large = {} if self.quick else dict(_fetched(party, LARGE, (PATH, PATH), "10 MB"))
        return {name: value for name, value in _small(party, 1).items() if name in SMALL} | large

    def values(self) -> Mapping[str, Mapping[str, Value]]:
        return {str(party): self._row(party) for each in SHOWN for party in (ALONE[each], OURS[each])}

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for engine, name in SHOWN.items():
            one, two = str(ALONE[engine]), str(OURS[engine])
            seconds = self.middle(results, two, "1 MB")
            found.append(Target(f"testbed: 1 MB over two equal paths, {name}", seconds, self.BOUNDS[engine], unit=" s"))
            if "10 MB" in self.columns:
                gain = self.ratio(results, (one, "10 MB"), (two, "10 MB"))
                what = f"testbed: 10 MB over two equal paths, {name}"
                found.append(Target(what, gain, 1.94, at_least=True, unit=" times"))
            shares = [self.ratio(results, (two, size), (one, size)) for size in self.columns]
            known = [share for share in shares if share is not None]
            worst = max(known) if len(known) == len(shares) else None
            what = f"testbed: any size over two equal paths / one path, worst, {name}"
            found.append(Target(what, worst, 1.02, unit=" times"))
        return found


class _Contest(Compared):
    """Multipath QUIC of each engine against all others but the other engine's."""

    unit = "seconds"

    @property
    def parties(self) -> Sequence[Party]:
        """A quick look leaves out two connections of QUIC."""
        return [party for party in PARTIES if not self.quick or party.transport != "quic" or len(party.paths) == 1]

    def values(self) -> Mapping[str, Mapping[str, Value]]:
        return {str(party): self.row(party) for party in self.parties}

    def row(self, party: Party) -> dict[str, Value]:
        raise NotImplementedError

    def against(self, results: Results, engine: str, columns: Iterable[str]) -> float | None:
        """Time / the shortest of any other, where that is most; None where not everything was run."""
        others = [party for party in self.parties if party.setup.engine in (engine, "kernel") and party != OURS[engine]]
        worst = []
        for column in columns:
            ours = self.middle(results, str(OURS[engine]), column)
            theirs = [self.middle(results, str(party), column) for party in others]
            known = [each for each in theirs if each is not None]
            if ours is None or len(known) < len(theirs):
                return None
            worst.append(ours / min(known))
        return max(worst)


class Parties(_Contest):
    key = "viernickel-10" + TESTBED
    title = "Figure 10: QUIC, multipath QUIC, TCP and MPTCP, on the testbed"
    setting = (
        "10 Mbit/s each; the first path has 44 ms, the second 1, 2 and 8 times as much at the bottleneck, as in Figure "
        f"9c. {ENDS} The paper: multipath QUIC is the fastest, QUIC is faster than MPTCP for 10 kB, and MPTCP suffers "
        "from unequal paths as well. Two connections of QUIC are what a session has without multipath QUIC."
    )
    why_short = (
        "with 10 kB, which are over before a second path is of use. With aioquic that costs what is said at Figure 8; "
        "with the native engine 2 ms, while runs of one party differ by 3, and nothing in virtual time."
    )
    runs = (1, 3)
    logarithmic = True

    def row(self, party: Party) -> dict[str, Value]:
        ratios = RATIOS[:1] if self.quick else RATIOS
        return {f"{name}, ratio {ratio:g}": _small(party, ratio)[name] for ratio in ratios for name in SMALL}

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for engine, name in SHOWN.items():
            equal = [column for column in self.columns if column.endswith("ratio 1")]
            what = f"testbed: Figure 10, equal paths, time / the fastest other, worst size, {name}"
            found.append(Target(what, self.against(results, engine, equal), 1.0, unit=" times"))
            if others := [column for column in self.columns if column not in equal]:
                what = f"testbed: Figure 10, unequal paths, time / the fastest other, worst, {name}"
                found.append(Target(what, self.against(results, engine, others), 1.05, unit=" times"))
        return found


class PageLoad(_Contest):
    key = "viernickel-11" + TESTBED
    title = "Figure 11: a page of six files, on the testbed"
    setting = (
        "30 to 500 kB, 1.2 MB in all, asked for at once: as streams, over TCP and MPTCP one after the other in one "
        f"connection. Paths as in Figure 10. {ENDS} The paper: multipath QUIC is the fastest, without numbers."
    )
    runs = (1, 3)

    def row(self, party: Party) -> dict[str, Value]:
        return {f"ratio {ratio:g}": _small(party, ratio)["page"] for ratio in (RATIOS[:1] if self.quick else RATIOS)}

    def targets(self, results: Results) -> Sequence[Target]:
        return [
            Target(
                f"testbed: a page over equal paths, time / the fastest other, {name}",
                self.against(results, engine, ["ratio 1"]),
                1.0,
                unit=" times",
            )
            for engine, name in SHOWN.items()
        ]


class UrgentBeside(Compared):
    key = "viernickel-12" + TESTBED
    title = "Figure 12 on the testbed"
    setting = (
        "10 Mbit/s each, 22 and 62 ms; from its second second on a download is accompanied by requests for the "
        "kilobyte, five a second. In order: on the stream of the download, as over MPTCP, behind what the sender's "
        "buffers hold."
    )
    why_short = (
        "what queues, as in virtual time, and processes that are busy. The request, for which nothing queues, takes "
        "14 ms with aioquic and 13 with the native engine, where the way has 11; the answer 28 to 35 and 28 to 29, of "
        "which 12 are the way and 13 to 14 the queue of the near path. What is left ends need that are busy with the "
        "download; it is more where processors have other things to do."
    )
    runs = (1, 3)
    unit = "ms"
    logarithmic = True
    OWN, ORDERED = "a stream of its own", "in order"
    ROUTES = (route(10, 0.022), route(10, 0.062))

    def values(self) -> Mapping[str, Mapping[str, Value]]:
        asked = [(party, in_order) for party in OURS.values() for in_order in (False, True)]
        return {self._name(*each): self._row(*each) for each in [*asked, (MPTCP, True)]}

    def _name(self, party: Party, in_order: bool) -> str:
        return f"{party}, {self.ORDERED if in_order else self.OWN}"

    def _row(self, party: Party, in_order: bool) -> dict[str, Value]:
        size = (5 if self.quick else 10) * 1_000_000
        play = UrgentOnTestbed(routes=self.ROUTES, size=size, in_order=in_order)
        what = f"{self.ORDERED if in_order else self.OWN}, {size // 1000} kB"
        return {
            f"{name} of a run": Value(party.cell(self.key, what, play), name, 1000.0) for name in ("median", "worst")
        }

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        column = "median of a run"
        for engine, party in OURS.items():
            own, ordered = (self._name(party, in_order) for in_order in (False, True))
            what = f"testbed: urgent kilobyte, median, {SHOWN[engine]}: 1.5 round trips of 22 ms and 1 ms"
            found.append(Target(what, self.middle(results, own, column), 34.0, unit=" ms"))
            for name, other in (("the same in order", ordered), ("over MPTCP", self._name(MPTCP, True))):
                share = self.ratio(results, (own, column), (other, column))
                what = f"testbed: urgent kilobyte / {name}, {SHOWN[engine]}"
                found.append(Target(what, share, 0.5, unit=" times"))
        return found
