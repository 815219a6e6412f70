"""The page of what has been measured: docs/evaluation-mpquic.md, or the like of it for a quick look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.mpquic.cells import Results
from benchmarks.mpquic.figures import Figure, Paper, Table, Target, number
from benchmarks.mpquic.store import Entry

__all__ = ["lines_of_targets", "page", "write"]

HEAD = """# Four papers on multipath QUIC, done again

`make bench-mpquic` repeats experiments of four papers with real QUIC engines in virtual time. The engines that
sessions use decide what is sent, lost and repeated; links are models with a rate, a delay and a queue. A run takes
the processor time that its packets cost, gives the same on any machine except for some bytes of its handshake, and is
kept and not run again.

What is called *testbed* is played between real kernels, over the links of the [testbed](testbed.md), by whole sessions
of `multi` and by the kernel's TCP and MPTCP: everything that a user would wait for, at times of an ordinary machine.
Parties take turns; medians of several runs. What is promised beyond the papers (WiFi 200 and 5G 190/35 Mbit/s, networks
that die and come back) is measured by `python -m benchmarks.links mpquic` and `make bench-roaming`.

```
make bench-mpquic ARGS=--quick                          # a look at all figures, under five minutes
make bench-mpquic                                       # goes on where it was, all figures equally far; hours for all
make bench-mpquic ARGS="--only testbed"                 # on the testbed; half an hour, on a machine with nothing to do
make bench-mpquic ARGS="--only virtual"                 # all others
make bench-mpquic ARGS="--only multiflow-5 --seconds 600"  # cells whose name contains this, for ten minutes
make bench-mpquic ARGS=--report                         # report what is there; --cells lists the cells
make bench-mpquic ARGS=--pack                           # keep what is there in the project, and write this page of it
```

What has been run is in `benchmarks/mpquic/results.jsonl.gz`, each run with its commit; the end of this page lists
them. The engines have changed since: where `docs/architecture.md` gives a later figure, that one holds.

*aioquic* and *native* are the engines of `mpquic_config.engine`; congestion control is Cubic, and everything else the
default, unless the text says otherwise. Numbers of the papers are those of their texts, "-" where a text gives none.
"""


def page(papers: Sequence[Paper], entries: Mapping[str, Entry], pictures: Mapping[str, str], *, quick: bool) -> str:
    """`pictures`: links to those that were drawn, by the keys of figures."""
    results = Results({key: entry.outcome for key, entry in entries.items()})
    parts = [HEAD]
    if quick:
        parts.append("A quick look: fewer scenarios and less data.\n")
    parts += ["## Targets\n", *lines_of_targets(papers, results), ""]
    for paper in papers:
        parts += [f"## {paper.title}\n", f"{paper.source}.\n"]
        for figure in paper.figures:
            parts += _figure(figure, results, pictures.get(figure.key))
    parts += ["## What was run\n", *_origin(papers, entries), ""]
    return "\n".join(parts)


def lines_of_targets(papers: Sequence[Paper], results: Results) -> list[str]:
    targets = [target for paper in papers for figure in paper.figures for target in figure.targets(results)]
    return ["| target | promised | measured | |", "|---|---|---|---|", *map(_target, targets)]


def _target(target: Target) -> str:
    measured = number(target.measured, target.unit) if target.measured is not None else "-"
    return f"| {target.what} | {target.promise} | {measured} | {target.verdict} |"


def _figure(figure: Figure, results: Results, picture: str | None) -> list[str]:
    cells = {cell.key: cell for cell in figure.cells()}.values()
    there = sum(results.of(cell) is not None for cell in cells)
    state = "" if there == len(cells) else f" *{there} of {len(cells)} cells were run.*"
    lines = [f"### {figure.title}\n", f"{figure.setting}{state}\n", *_table(figure.table(results)), ""]
    if figure.why_short and any(target.short for target in figure.targets(results)):
        lines.append(f"Short: {figure.why_short}\n")
    return [*lines, f"![{figure.title}]({picture})\n"] if picture else lines


def _table(table: Table) -> Iterable[str]:
    yield f"| {' | '.join(table.header)} |"
    yield "|---" * len(table.header) + "|"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"


def _origin(papers: Sequence[Paper], entries: Mapping[str, Entry]) -> Iterable[str]:
    cells = {cell.key for paper in papers for figure in paper.figures for cell in figure.cells()}
    found = [entry for key, entry in entries.items() if key in cells]
    minutes = sum(entry.processor_seconds for entry in found) / 60
    yield f"{len(found)} of {len(cells)} cells, {minutes:.0f} minutes of processor time.\n"
    yield "| commit | machine | cells |"
    yield "|---|---|---|"
    for (commit, machine), count in sorted(Counter((e.commit, e.machine) for e in found).items()):
        yield f"| {commit} | {machine} | {count} |"


def write(path: Path, text: str) -> None:
    """Replace the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
