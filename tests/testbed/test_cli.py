"""`multi testbed` as a person uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multi.lab.testbed import paper_links
from multi.lab.testbed.pytest_plugin import MakeTestbed

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, make_testbed: MakeTestbed) -> Iterator[Run]:
    make_testbed(paper_links()).close()  # skips where nothing is allowed
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    env = os.environ | {"XDG_RUNTIME_DIR": str(runtime)}

    def testbed(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "multi", "testbed", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=20, check=False)

    yield testbed
    for name in runtime.glob("multi-testbed/*.sock"):
        assert testbed("down", name.stem).returncode == 0
    assert list(runtime.glob("multi-testbed/*")) == []


def test_a_testbed_from_up_to_down(run: Run) -> None:
    up = run("up", "--name", "one")
    assert up.returncode == 0, up.stderr
    assert "wlan0" in up.stdout
    again = run("up", "--name", "one")
    assert again.returncode == 1
    assert "'one' is running" in again.stderr
    assert "eth0" in run("exec", "one", "client", "--", "cat", "/proc/net/dev").stdout
    assert run("exec", "one", "server", "--", "sh", "-c", "exit 7").returncode == 7
    changed = run("set", "one", "wifi", "rate_mbps=20", "loss=0.01", "direction=down")
    assert "down 20 Mbit/s" in changed.stdout
    assert "up   200 Mbit/s" in changed.stdout
    assert run("set", "one", "wifi", "present=off").returncode == 0
    assert "wlan0" not in run("exec", "one", "client", "--", "cat", "/proc/net/dev").stdout
    assert run("up", "--name", "two", "--profile", "wifi_and_5g", "--backend", "veth").returncode == 0
    listed = run("list").stdout
    assert "one: server 10.77.0.1" in listed
    assert "two: server 10.77.0.1" in listed
    assert run("down", "one").returncode == 0
    assert "one:" not in run("list").stdout


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("up", "--name", "a/b"), "is no name", 1),
        (("up", "--profile", "nowhere"), "no such profile", 1),
        (("down", "nothing"), "no testbed 'nothing' is running", 1),
        (("exec", "nothing", "client", "--", "true"), "no testbed 'nothing' is running", 1),
        (("exec", "nothing", "client"), "no program given", 2),
        (("set", "nothing", "wifi", "rate_mbps"), "KEY=VALUE is wanted", 2),
    ],
)
def test_bad_requests_fail_in_words(run: Run, arguments: tuple[str, ...], words: str, code: int) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_impossible_changes_fail_in_words(run: Run) -> None:
    assert run("up", "--name", "one").returncode == 0
    for change, words in (
        ("rate_mbps=-1", "rate_mbps: -1 is outside"),
        ("rate_mbps=nan", "rate_mbps: nan is no finite number"),
        ("rate_mbps=fast", "rate_mbps: 'fast' is no number"),
        ("carrier=maybe", "carrier: 'maybe' is neither on nor off"),
        ("colour=red", "'colour' is unknown"),
    ):
        done = run("set", "one", "wifi", change)
        assert done.returncode == 1
        assert words in done.stderr


@pytest.mark.parametrize("named", [False, True], ids=["at once", "with its name"])
def test_one_that_is_interrupted_while_it_comes_up_leaves_nothing(tmp_path: Path, run: Run, named: bool) -> None:
    command = [sys.executable, "-m", "multi", "testbed", "up", "--name", "one"]
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
    deadline = time.monotonic() + 20

    def wait_until(condition: Callable[[], object]) -> None:
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def status(process: int, key: str) -> str:
        return Path(f"/proc/{process}/status").read_text().split(f"{key}:")[1].split()[0]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as up:
        children = Path(f"/proc/{up.pid}/task/{up.pid}/children")
        wait_until(lambda: children.read_text().strip())
        keeper = int(children.read_text())
        if named:
            wait_until((tmp_path / "run/multi-testbed/one.sock").exists)
            os.kill(keeper, signal.SIGSTOP)
            wait_until(lambda: status(keeper, "State") == "T")
        up.send_signal(signal.SIGINT)
        if named:
            try:
                wait_until(lambda: int(status(keeper, "ShdPnd"), 16) & 1 << (signal.SIGTERM - 1))
            finally:
                os.kill(keeper, signal.SIGCONT)
        _, errors = up.communicate(timeout=20)
    assert (up.returncode, errors) == (130, "multi: interrupted\n")
    wait_until(lambda: not Path(f"/proc/{keeper}").exists())
    assert run("list").stdout == ""


def test_a_name_is_free_again_after_a_crash(run: Run) -> None:
    up = run("up", "--name", "one")
    keeper = int(up.stdout.split("process ")[1].split(")")[0])
    os.kill(keeper, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while run("up", "--name", "one").returncode:
        assert time.monotonic() < deadline
