"""A machine without TUN: the testbed says which back end it uses instead, or why it cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

CODE = """
from multi.lab.testbed import LinkSpec, Direction, Testbed, TestbedError
links = (LinkSpec.symmetric("one", "eth0", Direction(rate_mbps=100, delay_ms=1)),)
try:
    with Testbed(links, backend="{backend}") as testbed:
        print("backend", testbed.backend)
except TestbedError as error:
    print("refused:", error)
"""


def _without_tun(backend: str) -> str:
    """Run the code where /dev/net is empty, in a mount namespace of its own."""
    hidden = 'mount -t tmpfs none /dev/net && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", sys.executable, "-c", CODE.format(backend=backend)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode and "mount:" in done.stderr:
        pytest.skip(f"/dev/net cannot be hidden here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or not os.path.isdir("/dev/net"),
    reason="hiding /dev/net/tun needs root, unshare and a /dev/net to hide",
)


def test_without_tun_the_testbed_uses_veth_by_itself() -> None:
    assert _without_tun("auto") == "backend veth\n"


def test_tap_asked_for_without_tun_is_refused_with_the_reason() -> None:
    output = _without_tun("tap")
    assert output.startswith("refused:")
    assert "/dev/net/tun" in output
