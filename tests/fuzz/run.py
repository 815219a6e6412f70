"""The long run: `python -m tests.fuzz.run`, or `make fuzz`.

Coverage-guided by atheris (libFuzzer) where it is installed; otherwise inputs are mutated at random from the seeds,
without knowing what they reach. Either way the targets and the verdicts are the same, one process works at a time, and
every finding is printed with its input as a literal, ready for `test_fuzz_regressions.py`. Exit code 1 = findings.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Judge, LineCoverage, Target

SECONDS = 60.0  # for a target of weight 1
MAX_CORPUS = 2000  # inputs kept by the random driver
MEMORY_LIMIT_MB = 2048  # of a process under atheris: more is a finding
HANG = 20  # seconds for one input, far beyond any that is only slow
NAME_WIDTH = 24
PROJECT = Path(__file__).resolve().parents[2]


def main() -> int:
    options = _options()
    if options.one:
        return _run_one(options)
    return _run_all(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help="only this; may be repeated")
    parser.add_argument("--list", action="store_true", help="show the targets")
    parser.add_argument("--seconds", type=float, help=f"for a target of weight 1; by default {SECONDS:g}")
    parser.add_argument("--inputs", type=int, help="for each target, instead of or beside --seconds")
    parser.add_argument("--driver", choices=("auto", "atheris", "random"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="keep what atheris finds here, and go on from it")
    parser.add_argument("--cover", type=int, default=2000, metavar="N", help="inputs replayed to count lines")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # this process is the driver of one target
    return parser.parse_args()


def has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


# --- all targets, one process after the other  ---


def _run_all(options: argparse.Namespace) -> int:
    from tests.fuzz.targets import TARGETS

    if options.list:
        for target in TARGETS.values():
            print(f"{target.name:{NAME_WIDTH}} {', '.join(m.__name__.removeprefix('multi.') for m in target.modules)}")
        return 0
    unknown = [name for name in options.target if name not in TARGETS]
    if unknown:
        print(f"no target {', '.join(unknown)}; --list shows them", file=sys.stderr)
        return 2
    logging.disable()
    driver = options.driver if options.driver != "auto" else "atheris" if has_atheris() else "random"
    guided = "guided by coverage" if driver == "atheris" else "not guided: atheris is not installed or not wanted"
    print(f"driver: {driver} ({guided})", flush=True)
    reports = []
    for name in options.target or TARGETS:
        report = _run_process(options, TARGETS[name], driver)
        reports.append(report)
        print(_line(report), flush=True)
        for finding in report["findings"]:
            print(finding, flush=True)
    total, found = sum(r["inputs"] for r in reports), sum(len(r["findings"]) for r in reports)
    print(f"{total:,} inputs, {found} findings")
    if options.report:
        options.report.write_text(json.dumps({"driver": driver, "targets": reports}, indent=1))
    return 1 if found else 0


def _line(report: dict[str, Any]) -> str:
    rate = report["inputs"] / report["seconds"] if report["seconds"] else 0.0
    edges = f", {report['edges']} edges" if report.get("edges") else ""
    return (
        f"{report['target']:{NAME_WIDTH}} {report['inputs']:>10,} inputs {rate:>9,.0f}/s, "
        f"slowest {report['slowest']:.3f} s, {report['coverage']}{edges}, {len(report['findings'])} findings"
    )


def _run_process(options: argparse.Namespace, target: Target, driver: str) -> dict[str, Any]:
    """Run one target in a process of its own: libFuzzer never returns, and what one leaves behind is not the next's."""
    seconds = options.seconds if options.seconds is not None else None if options.inputs else SECONDS
    with tempfile.TemporaryDirectory(prefix="multi-fuzz-") as directory:
        answer, said = Path(directory) / "report.json", Path(directory) / "said"
        arguments = [sys.executable, "-m", "tests.fuzz.run", "--one", target.name, "--driver", driver]
        arguments += ["--seed", str(options.seed), "--report", str(answer)]
        arguments += ["--seconds", str(seconds * target.weight)] if seconds is not None else []
        arguments += ["--inputs", str(options.inputs)] if options.inputs else []
        corpus = (options.corpus or Path(directory)) / target.name
        arguments += ["--corpus", str(corpus)]
        with said.open("wb") as output:
            done = subprocess.run(arguments, stdout=output, stderr=subprocess.STDOUT, cwd=PROJECT, check=False)
        text = said.read_text(errors="replace")
        report: dict[str, Any] = {"target": target.name, "inputs": 0, "seconds": 0.0, "slowest": 0.0, "findings": []}
        with suppress(OSError, ValueError):
            report |= json.loads(answer.read_text())
        found = sorted(corpus.iterdir(), key=lambda path: path.stat().st_size) if corpus.is_dir() else []
        report["coverage"] = _covered(target, [path.read_bytes() for path in found][: options.cover], report)
        _take_figures_of_libfuzzer(report, text)
        if done.returncode:
            report["findings"].append(f"{target.name}: the process ended with {done.returncode}\n{text[-4000:]}")
        return report


def _covered(target: Target, inputs: list[bytes], report: dict[str, Any]) -> str:
    """Lines that a sample of the inputs reaches, and the seeds: too slow to be counted all the time."""
    lines = LineCoverage(target.modules)
    for data in [*target.seeds(), *inputs]:
        lines.run(target, data)
    report["lines"], report["all_lines"] = lines.hit, len(lines.all)
    return str(lines)


def _take_figures_of_libfuzzer(report: dict[str, Any], said: str) -> None:
    """It ends its process without a word to Python: the last figures are those it prints."""
    edges = re.findall(r"cov: (\d+)", said)
    report["edges"] = int(edges[-1]) if edges else 0
    if done := re.search(r"Done (\d+) runs in (\d+) second", said):
        report["inputs"], report["seconds"] = int(done[1]), max(1.0, float(done[2]))


# --- one target  ---


class _Progress:
    """Judges inputs and writes the report now and then, as libFuzzer ends the process without a word."""

    def __init__(self, target: Target, path: Path) -> None:
        self.judge = Judge(target, timed=True)
        self._path = path
        self._started = time.monotonic()
        self._written = 0.0
        self._found = 0

    def run(self, data: bytes) -> None:
        self.judge.run(data)
        found = len(self.judge.findings)
        if found != self._found or (self.judge.inputs % 256 == 0 and time.monotonic() - self._written > 1):
            self._found = found
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        report = {
            "inputs": self.judge.inputs,
            "seconds": round(self._written - self._started, 1),
            "slowest": round(self.judge.slowest, 4),
            "findings": [str(finding) for finding in self.judge.findings.values()],
        }
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(report))
        os.replace(temporary, self._path)


def _run_one(options: argparse.Namespace) -> int:
    if options.driver == "atheris":
        return _run_atheris(options)
    from tests.fuzz.targets import TARGETS

    target = TARGETS[options.one]
    progress = _Progress(target, options.report)
    kept = random_run(target, progress, options.seed, options.inputs, options.seconds)
    progress.write()
    options.corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(kept):
        (options.corpus / f"kept-{number}").write_bytes(data)
    return 0


def random_run(
    target: Target, judge: Judge | _Progress, seed: int, inputs: int | None, seconds: float | None
) -> list[bytes]:
    """Mutate seeds, and mutants of them, until `inputs` have been made or `seconds` are over; return some of them."""
    random = Random(seed)
    mutator = Mutator(random, target.words, target.longest)
    pool = list(target.seeds())
    for data in pool:
        judge.run(data)
    end = None if seconds is None else time.monotonic() + seconds
    made = 0
    while (inputs is None or made < inputs) and (end is None or made % 64 or time.monotonic() < end):
        made += 1
        data = mutator.mutated(random.choice(pool), random.choice(pool)) if random.random() < 0.95 else mutator.fresh()
        judge.run(data)
        if random.random() < 0.05:
            if len(pool) < MAX_CORPUS:
                pool.append(data)
            else:
                pool[random.randrange(len(pool))] = data
    return pool


def _run_atheris(options: argparse.Namespace) -> int:
    import atheris

    with atheris.instrument_imports(include=["multi"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS

    target = TARGETS[options.one]
    corpus = options.corpus
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    words = corpus.with_suffix(".dict")
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words))
    progress = _Progress(target, options.report)
    arguments = [sys.argv[0], str(corpus), f"-seed={options.seed}", f"-max_len={target.longest}"]
    arguments += [f"-dict={words}"] if target.words else []
    arguments += [f"-timeout={HANG}", f"-rss_limit_mb={MEMORY_LIMIT_MB}", "-len_control=0"]
    arguments += [f"-artifact_prefix={corpus.parent}/", "-print_final_stats=1"]
    if options.inputs:
        arguments.append(f"-runs={options.inputs}")
    if options.seconds is not None:
        arguments.append(f"-max_total_time={max(1, int(options.seconds))}")
    atheris.Setup(arguments, progress.run, internal_libfuzzer=True)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
