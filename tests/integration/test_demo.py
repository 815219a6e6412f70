"""The demos, shortened: what they say, what they leave behind, and how they end when something breaks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from multi.cli import demo
from multi.lab.demo import loopback as demo_loopback
from multi.lab.demo import roaming
from multi.lab.demo.recording import Outcome, Recorder
from multi.lab.demo.roaming import STORY
from multi.lab.testbed import TestbedNotAllowed, load_profile, pytest_plugin
from multi.linux.mptcp_pm import mptcp_available
from tests.integration.cli_runner import command, run, wait_for_line

KEYS = ["start", "wifi_in_range", "wifi_dies", "wifi_back", "handover", "total_loss", "resume"]


@pytest.fixture(scope="module")
def testbed_allowed() -> None:
    """Skips, with the reason, where the demo would run over loopback."""
    with pytest_plugin.started(load_profile("wifi_and_5g")):
        pass


# --- roaming  ---


@pytest.fixture(scope="module")
def played(testbed_allowed: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What one roaming demo has said, and the directory with what it has left."""
    out = tmp_path_factory.mktemp("demo") / "out"
    done = run("demo", "--speed", "6", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, out


def test_the_roaming_demo_delivers_a_verified_file_and_tells_the_whole_story(played: tuple[str, Path]) -> None:
    said, out = played
    assert re.search(r"delivered and verified: SHA-256 [0-9a-f]{64}", said)

    trace = json.loads((out / "roaming.json").read_text())
    assert trace["verified"]
    assert trace["sha256"] == trace["received_sha256"]
    assert [mark["key"] for mark in trace["story"]] == KEYS == [step.key for step in STORY]
    times = [mark["t"] for mark in trace["story"]]
    assert times == sorted(times)
    assert times[-1] < trace["seconds"]
    for mark in trace["story"]:
        assert 0 <= mark["longest_gap"] < 5, mark
        assert mark["title"] in said
    gaps = {mark["key"]: mark["longest_gap"] for mark in trace["story"]}
    assert gaps["total_loss"] > 0.2, "nothing can come while there is no network"

    samples = trace["samples"]
    assert samples[-1]["delivered"] == trace["size"]
    assert sum(samples[-1]["bytes"].values()) >= trace["size"]
    assert {c["network"] for c in trace["connections"] if c["bytes"]} == {"5G", "WiFi"}
    states = {state for c in trace["connections"] for _, state, _ in c["states"]}
    assert {"active", "suspect", "draining"} <= states


def test_the_picture_shows_both_networks(played: tuple[str, Path]) -> None:
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed: no picture")
    pixels = image.imread(played[1] / "roaming.png")[:, :, :3]
    assert pixels.shape[0] > 500
    assert pixels.shape[1] > 1000
    red, blue = pixels[:, :, 0], pixels[:, :, 2]
    for name, share in (("5G", (red > blue + 0.3).mean()), ("WiFi", (blue > red + 0.3).mean())):
        assert share > 0.03, f"{name} covers {share:.1%} of the picture"


@contextmanager
def _running_demo(
    tmp_path: Path, *arguments: str, ready: str = r"connection 0 .* is open"
) -> Iterator[subprocess.Popen[str]]:
    """A demo that streams, with a directory of its own for temporary files."""
    (tmp_path / "tmp").mkdir()
    whole = command("demo", *arguments, "--speed", "6", "--out", tmp_path / "out")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            wait_for_line(process, ready)
            yield process
        finally:
            process.kill()


def _children(process: int) -> dict[int, str]:
    """Ids and command lines of the children of a process."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    ids = [int(child) for thread in threads for child in thread.read_text().split()]
    return {i: Path(f"/proc/{i}/cmdline").read_bytes().replace(b"\0", b" ").decode() for i in ids}


def _nothing_is_left(children: dict[int, str], tmp_path: Path) -> None:
    assert list((tmp_path / "tmp").iterdir()) == []
    deadline = time.monotonic() + 3
    while left := [i for i in children if Path(f"/proc/{i}").exists()]:
        assert time.monotonic() < deadline, f"{[children[i] for i in left]} still run"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_exits_with_130_at_once_and_leaves_nothing(
    testbed_allowed: None, tmp_path: Path, number: signal.Signals
) -> None:
    with _running_demo(tmp_path) as process:
        children = _children(process.pid)
        assert len(children) == 2
        interrupted = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert time.monotonic() - interrupted < 5  # of 7 seconds that it takes
        assert (process.returncode, errors) == (130, "multi: interrupted\n")
    _nothing_is_left(children, tmp_path)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("multi serve", "the server has ended by signal 9"),
        ("-m multi.lab.testbed ", "the relay between the hosts has died"),
    ],
)
def test_a_demo_that_loses_a_part_says_so_and_leaves_nothing(
    testbed_allowed: None, tmp_path: Path, part: str, words: str
) -> None:
    with _running_demo(tmp_path) as process:
        children = _children(process.pid)
        os.kill(next(i for i, line in children.items() if part in line), signal.SIGKILL)
        _, errors = process.communicate(timeout=10)
        assert process.returncode == 1
        assert words in errors
        assert "Traceback" not in errors
    _nothing_is_left(children, tmp_path)


def test_a_demo_on_a_slow_machine_ends_in_time_with_what_has_come(testbed_allowed: None, tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from multi.lab.demo import roaming\n"
        "roaming.MAX_SECONDS = 15.0\n"
        "sys.exit(roaming.run_roaming_demo(pathlib.Path(sys.argv[1]), speed=6))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2.5 s are over" in done.stdout
    assert re.search(r"\d+ of 225 MB delivered and verified: SHA-256 [0-9a-f]{64}", done.stdout)
    trace = json.loads((tmp_path / "roaming.json").read_text())
    assert 0 < trace["size"] < trace["file_size"]
    assert trace["sha256"] == trace["received_sha256"]


def test_gaps_count_from_the_event_and_until_the_first_read_after_it() -> None:
    times = [0.0, 1.0, 1.1, 4.6, 4.7, 9.0]
    clock = iter([0.0, *times])
    recorder = Recorder(lambda: next(clock), {})
    for _ in times:
        recorder.read(1)
    assert recorder.longest_gap(1.05, 3.0) == pytest.approx(3.5), "it began before the end, and is counted whole"
    assert recorder.longest_gap(4.0, 6.0) == pytest.approx(4.3)
    assert recorder.longest_gap(4.0, 4.65) == pytest.approx(0.6), "time before the event does not count"


def test_without_matplotlib_there_is_a_trace_and_a_word_about_the_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "multi.lab.demo.timeline", None)
    recorder = Recorder(iter(range(100)).__next__, {"wlan0": "WiFi"})
    recorder.mark(1.0, "start", "WiFi only", "only WiFi is there")
    recorder.sample([])
    recorder.read(1000)
    recorder.finish()
    outcome = Outcome(
        file="file",
        file_size=1000,
        size=1000,
        sha256="ab",
        received_sha256="cd",
        verified=False,
        sent_again=0,
        speed=1.0,
    )
    assert roaming.write_results(outcome, recorder, tmp_path) == 1, "it was not verified"
    assert "picture: none without matplotlib" in (said := capsys.readouterr().out)
    assert "NOT verified" in said
    assert [path.name for path in tmp_path.iterdir()] == ["roaming.json"]


# --- loopback  ---


def test_without_namespaces_the_demo_gives_the_reason_and_runs_over_loopback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def not_allowed(*_: object, **__: object) -> int:
        raise TestbedNotAllowed("nobody may")

    def over_loopback(out: Path, *, speed: float) -> int:
        return 7

    monkeypatch.setattr("multi.lab.testbed.enter_user_namespace", not_allowed)
    monkeypatch.setattr(roaming, "run_roaming_demo", not_allowed)
    monkeypatch.setattr(demo_loopback, "run_loopback_demo", over_loopback)
    assert demo.run_demo(tmp_path) == 7
    said = capsys.readouterr().out
    assert "nobody may" in said
    assert "loopback" in said


def test_the_loopback_demo_brings_the_file_back_whole(tmp_path: Path) -> None:
    if not mptcp_available():
        pytest.skip("this kernel has no MPTCP: the loopback demo needs it")
    done = run("demo", "--loopback", "--speed", "6", "--out", tmp_path)
    # It fails too where a connection got less of the processor than it shows: that is the machine's.
    busy = "The file came back whole, but one connection carried only" in done.stdout
    assert done.returncode == (1 if busy else 0), done.stdout + done.stderr
    assert busy or "went out and came back whole" in done.stdout
    trace = json.loads((tmp_path / "demo.json").read_text())
    assert [part["trace"]["copy"] for part in trace] == ["put", "get"]
    for part in trace:
        assert len(part["trace"]["events"]) == 3
        assert len(part["result"]["connections"]) >= 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_loopback_demo_whose_terminal_is_closed_leaves_no_server_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    if not mptcp_available():
        pytest.skip("this kernel has no MPTCP: the loopback demo needs it")
    with _running_demo(tmp_path, "--loopback", ready=r"Sending .* over tcp") as process:
        children = _children(process.pid)
        assert any("multi serve" in line for line in children.values())
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors.splitlines()[-1:]) == (130, ["multi: interrupted"])
        assert "Traceback" not in errors
    _nothing_is_left(children, tmp_path)
