"""What happens to a session when networks come, go and die: the rows of `benchmarks.roaming`, shortened.

Every byte has to be what was sent, in every run. A first run that keeps every promise as it stands decides. Otherwise a
figure is judged by the median of three runs, against its promise and what shared machines take from it: half of it, and
for a gap as much as the longest of the same session while nothing happened. The third is made only when the first two
disagree. What was measured is printed next to what is promised.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from benchmarks.roaming.figures import Figure
from benchmarks.roaming.report import figure_in_words
from benchmarks.roaming.rows import BASE, ROWS, SHORT, Outcome, measure, row
from benchmarks.roaming.stage import Timing, Variant
from multi.lab.testbed import load_profile
from multi.lab.testbed.pytest_plugin import started

TOLERANCE = 1.5  # times a promised time, or as much less of a rate: two shared processors carry ends and networks
UNDISTURBED_GAP = "undisturbed: longest gap, ms"
RUNS = 3
MAJORITY = 2  # of them that decide where the median lies
ALONE = "silent-death"
TOGETHER = (("nothing-full", "nothing-idle", "nothing-limited"), ("first-silent", "first-swallowed"))
"""Each on a testbed of its own, at the same time."""
LEAVING = ("carrier-lost", "address-gone", "handover-to-5g", "handover-to-wifi", "handover-rescue")
"""The same, on slower networks."""
BESIDE = (
    ("flap-silent", "back-blackhole-3", "address-changes"),
    ("all-lost-carrier", "all-lost-silent", "back-carrier", "back-address"),
)
"""The promises are a second and more, or a share of what the same session gets: other tests may run beside these."""

LIGHT = replace(BASE, scale=1 / 8)
"""On networks an eighth as fast, several sessions leave the processors time."""
GAP_ONLY: Timing = replace(SHORT, baseline=0.0, undisturbed=0.8, after=1.0)
"""Long enough for a gap, which is promised to be much less than a second; without a figure for 5G alone."""
LONG_GAP = replace(GAP_ONLY, settle=0.3, undisturbed=2.0)
"""QUIC in user space takes longer to leave its slow start behind, and with it the variation of round trips that delays
suspicion."""


@pytest.fixture(scope="module", autouse=True)
def _allowed() -> None:
    """Skips everything where there can be no testbed."""
    with started(load_profile("wifi_and_5g")):
        pass


def kept(figure: Figure, outcome: Outcome) -> bool:
    """Whether a figure is within the tolerance of what is promised."""
    if figure.bound is None:
        return True
    if figure.value is None:
        return False
    if not figure.at_most:
        return figure.value >= figure.bound / TOLERANCE
    anyway = outcome.facts.get(UNDISTURBED_GAP, 0.0) if figure.name == "gap" else 0.0
    return figure.value <= figure.bound * TOLERANCE + anyway


async def check(
    key: str, variant: Variant, timing: Timing, capsys: pytest.CaptureFixture[str], *, names: tuple[str, ...] = ()
) -> None:
    """Play a row until it is known whether its figures are kept; see the module."""
    verdicts: dict[str, list[bool]] = {}
    for number in range(1, RUNS + 1):
        outcome = await measure(row(key), variant, timing, number)
        figures = [figure for figure in outcome.figures if not names or figure.name in names]
        tell(outcome, figures, capsys)
        assert not outcome.faults
        assert figures
        if number == 1 and all(figure.held for figure in figures):
            return
        for figure in figures:
            verdicts.setdefault(figure.name, []).append(kept(figure, outcome))
        missed = [figure_in_words(f) for f in figures if verdicts[f.name].count(False) >= MAJORITY]
        assert not missed, f"{'; '.join(missed)}, in the last of {number} runs; {outcome.suspicions}"
        if all(of_figure.count(True) >= MAJORITY for of_figure in verdicts.values()):
            return


def tell(outcome: Outcome, figures: list[Figure], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        words = [*map(figure_in_words, figures), *outcome.faults]
        waited = outcome.facts.get("afterwards: ends kept waiting by the machine, ms", 0.0)
        before = outcome.facts.get(UNDISTURBED_GAP, 0.0)
        print(f"\n  {outcome.row} {outcome.variant}: {'; '.join(words)}", end="")
        print(f" [undisturbed gap {before:.0f} ms, ends kept waiting {waited:.0f} ms] ", end="")


def test_every_quick_row_is_played() -> None:
    played = [ALONE, *(key for keys in (*TOGETHER, LEAVING, *BESIDE) for key in keys)]
    assert sorted(played) == sorted(row.key for row in ROWS if row.quick)


@pytest.mark.alone
async def test_a_session_over_tcp_lives_through_the_silent_death_of_wifi(capsys: pytest.CaptureFixture[str]) -> None:
    await check(ALONE, BASE, SHORT, capsys)


@pytest.mark.alone
async def test_sessions_go_on_when_wifi_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    await asyncio.gather(*(check(key, LIGHT, GAP_ONLY, capsys) for key in LEAVING))


@pytest.mark.alone
@pytest.mark.parametrize("keys", TOGETHER, ids=" and ".join)
async def test_sessions_side_by_side_live_through(keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    await asyncio.gather(*(check(key, BASE, SHORT, capsys) for key in keys))


@pytest.mark.parametrize("keys", BESIDE, ids=" and ".join)
async def test_sessions_come_back_when(keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    await asyncio.gather(*(check(key, LIGHT, SHORT, capsys) for key in keys))


@pytest.mark.alone
@pytest.mark.parametrize(
    "variant",
    [
        replace(BASE, transport="quic"),
        replace(BASE, transport="quic-qh3"),
        replace(BASE, transport="mptcp"),
        replace(BASE, transport="mixed"),
        replace(BASE, version=6),
        replace(BASE, way="up"),
    ],
    ids=str,
)
async def test_so_does_a_session_over(variant: Variant, capsys: pytest.CaptureFixture[str]) -> None:
    if variant.engine == "qh3":
        pytest.importorskip("qh3")
    await check(ALONE, variant, LONG_GAP if variant.needs_certificate else GAP_ONLY, capsys, names=("gap",))
