"""Nothing is left behind, however a testbed ends; and testbeds without root."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from multi.lab.testbed import Direction, LinkSpec, Testbed, TestbedError
from multi.lab.testbed.pytest_plugin import MakeTestbed

ROOT = Path(__file__).resolve().parents[2]
LINKS = (LinkSpec.symmetric("wire", "eth0", Direction(rate_mbps=100, delay_ms=1)),)
NOBODY = "65534"
OWNER = """
import sys, time
from multi.lab.testbed import Direction, LinkSpec, Testbed
links = (LinkSpec.symmetric("wire", "eth0", Direction(rate_mbps=100, delay_ms=1)),)
testbed = Testbed(links)
testbed.start()
program = testbed.client.popen(["sleep", "1000"])
print(testbed.relay_process, program.pid, testbed.rootless, testbed.backend, flush=True)
time.sleep(1000)
"""
ROOTLESS = """
import asyncio, os, socket, sys
from multi.lab.testbed import TestbedNotAllowed, Testbed, load_profile
from tests.testbed import measure

async def main():
    async with Testbed(load_profile("wifi_and_5g")) as testbed:
        assert testbed.rootless
        echo = asyncio.create_task(testbed.server.run_python(measure.echo_datagrams, 5000, 10.0))
        await asyncio.sleep(0.5)
        with testbed.client.socket() as sock:
            assert sock.fileno() >= 0
        times = await testbed.client.run_python(
            measure.round_trips, testbed.server.address(6), 5000, "wlan0", count=10
        )
        bare = await testbed.server.run_python(measure.round_trips, "127.0.0.1", 5000, count=9, interval=0.002)
        testbed.links["wifi"].carrier(False)
        testbed.links["wifi"].vanish()
        testbed.links["wifi"].reappear()
        echo.cancel()
        print(os.geteuid(), testbed.backend, len(times), times[len(times) // 2], bare[len(bare) // 2])

try:
    asyncio.run(main())
except TestbedNotAllowed as error:
    print("NOT ALLOWED", error)
"""


def gone(process: int, patience: float = 5.0) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_close_ends_what_runs_in_the_hosts(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(LINKS)
    relay = testbed.relay_process
    # A grandchild that nobody knows: the child ends at once.
    started = testbed.server.popen(["sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    grandchild = int(started.stdout.readline())
    started.stdout.close()
    started.wait()
    testbed.close()
    assert gone(grandchild)
    assert gone(relay)
    testbed.close()
    with pytest.raises(TestbedError, match="not up"):
        testbed.statistics()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_an_owner_that_is_killed(make_testbed: MakeTestbed, how: signal.Signals) -> None:
    make_testbed(LINKS).close()  # skips where nothing is allowed
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    with owner.stdout:
        relay, program, *_rest = owner.stdout.readline().split()
        owner.send_signal(how)
        owner.wait()
    assert gone(int(relay))
    assert gone(int(program))


def test_a_dead_relay_is_an_error_in_words(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(LINKS)
    os.kill(testbed.relay_process, signal.SIGKILL)
    with pytest.raises(TestbedError, match="relay of this testbed has died"):
        testbed.statistics()
    testbed.close()


async def test_a_cancelled_start_leaves_nothing(make_testbed: MakeTestbed) -> None:
    make_testbed(LINKS).close()  # skips where nothing is allowed
    testbed = Testbed(LINKS)
    task = asyncio.create_task(testbed.__aenter__())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TestbedError, match="not up"):
        testbed.statistics()


def as_nobody(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as an ordinary user: as this one, or as nobody when root."""
    words = list(command)
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("NO setpriv HERE: cannot become an ordinary user")
        words = [setpriv, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", *words]
    found = importlib.util.find_spec("pyroute2")
    assert found is not None
    assert found.origin is not None
    path = f"{ROOT}{os.pathsep}{Path(found.origin).parents[1]}"  # another interpreter may have no pyroute2 of its own
    env = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | (environment or {})
    return subprocess.run(words, capture_output=True, text=True, cwd="/", env=env, timeout=60, check=False)


def python_of_others() -> str:
    """An interpreter an ordinary user can start again and again: ours may be in the home of root."""
    again = "import subprocess, sys; assert sys.version_info >= (3, 11); subprocess.run([sys.executable, '-c', ''])"
    for python in (sys.executable, shutil.which("python3", path=os.defpath)):
        if (
            python is not None
            and as_nobody(python, "-c", f"{again}; import multi.lab.testbed, pyroute2").returncode == 0
        ):
            return python
    pytest.skip("NO INTERPRETER HERE that an ordinary user may start")


@pytest.mark.alone
def test_an_ordinary_user_gets_a_testbed() -> None:
    done = as_nobody(python_of_others(), "-c", ROOTLESS)
    if "NOT ALLOWED" in done.stdout:
        pytest.skip(f"NO TESTBED WITHOUT ROOT HERE: {done.stdout}")
    assert done.returncode == 0, done.stderr
    user, backend, count, *medians = done.stdout.split()
    over_link, bare = (float(median) * 1e3 for median in medians)
    print(f"as user {user}: {backend}, {count} of 10 round trips, median {over_link:.3f} ms, over no link {bare:.3f}")
    assert user != "0"
    assert int(count) == 10
    assert over_link == pytest.approx(
        1.8, abs=max(0.75, 6 * bare)
    )  # by a busy machine they are late without a link too


def test_an_ordinary_user_may_enter_hosts_after_entering_a_user_namespace() -> None:
    code = (
        "import socket\n"
        "from multi.lab.testbed import Testbed, TestbedNotAllowed, enter_user_namespace, paper_links\n"
        "try:\n"
        "    enter_user_namespace()\n"
        "    with Testbed(paper_links()) as testbed, testbed.client.entered(): print(socket.if_nameindex())\n"
        "    print(socket.if_nameindex())\n"
        "except TestbedNotAllowed as error: print('NOT ALLOWED', error)\n"
    )
    done = as_nobody(python_of_others(), "-c", code)
    if "NOT ALLOWED" in done.stdout:
        pytest.skip(f"NO TESTBED WITHOUT ROOT HERE: {done.stdout}")
    assert done.returncode == 0, done.stderr
    inside, outside = done.stdout.splitlines()
    assert "wlan0" in inside
    assert outside == "[(1, 'lo')]"


def test_without_any_permission_it_is_said_what_is_missing() -> None:
    code = (
        "import multi.lab.testbed.namespaces as n, errno, sys\n"
        "def no(*_): raise PermissionError(errno.EPERM, 'operation not permitted')\n"
        "n._unshare = no\n"
        "from multi.lab.testbed.wiring import Build, Hosts\n"
        "from multi.lab.testbed import TestbedNotAllowed\n"
        "try: Hosts(Build((), 'auto', {}, False, False, 0, 0))\n"
        "except TestbedNotAllowed as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "not root, and this system gives users no user namespaces" in done.stdout
