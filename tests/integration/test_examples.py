"""The examples do what they say."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_echo_client_gets_back_from_the_echo_server_what_it_sends() -> None:
    program = [sys.executable, "-W", "error", str(EXAMPLES / "echo_server.py"), "0"]
    server = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().split()[-1].decode()
        text = b"".join(b"line %d\n" % number for number in range(300))
        client = [sys.executable, "-W", "error", str(EXAMPLES / "echo_client.py"), port]
        done = subprocess.run(client, input=text, capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == text
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=10)
    assert (server.returncode, errors) == (0, b"")


def test_the_examples_stay_short() -> None:
    for name in ("echo_client", "echo_server"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 25
