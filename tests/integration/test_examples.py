"""The examples do what they say."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.cli_runner import Files, wait_for_line
from tests.processes import MORTAL

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_echo_client_gets_back_from_the_echo_server_what_it_sends() -> None:
    program = [*MORTAL, sys.executable, "-W", "error", str(EXAMPLES / "echo_server.py"), "0"]
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


def test_the_download_tells_events_and_hands_over(tmp_path: Path) -> None:
    files = Files(tmp_path)
    content = os.urandom(12_000_000)
    (files.served / "film").write_bytes(content)
    program = [*MORTAL, sys.executable, "-W", "error", str(EXAMPLES / "roaming_download.py")]
    server = subprocess.Popen(
        [*program, str(files.server_config()), str(files.served / "film")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(wait_for_line(server, r"on port (\d+)").group(1))
        config = files.client_config(port, "tcp", "tcp", max_rate_mbps=40)
        arguments = [*program, str(config), str(files.here / "film")]
        with subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as client:
            try:
                wait_for_line(client, r"over 127\.0\.0\.\d:\d+\) is open")
                wait_for_line(client, r"over 127\.0\.0\.\d:\d+\) is open")
                assert client.stdin is not None
                client.stdin.write("127.0.0.3\n")
                client.stdin.flush()
                wait_for_line(client, r"connection \d \(tcp over 127\.0\.0\.2:\d+\) is handed over")
                output, errors = client.communicate(timeout=30)
            finally:
                client.kill()
    finally:
        server.kill()
        server.communicate()
    assert (client.returncode, errors) == (0, "")
    assert hashlib.sha256(content).hexdigest() in output
    assert (files.here / "film").read_bytes() == content


def test_a_transport_from_outside_carries_a_session() -> None:
    program = [*MORTAL, sys.executable, "-W", "error", str(EXAMPLES / "custom_transport.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    greeting, count = done.stdout.splitlines()
    assert greeting == "hello, world"
    found = re.fullmatch(r"(\d+) bytes sent, (\d+) received, at both ends together", count)
    assert found is not None
    assert int(found[1]) == int(found[2]) > 2 * len("world")


def test_a_transport_from_outside_takes_little() -> None:
    assert len((EXAMPLES / "custom_transport.py").read_text().splitlines()) < 120


def test_streams_of_one_session_are_answered_each_for_itself() -> None:
    program = [*MORTAL, sys.executable, "-W", "error", str(EXAMPLES / "streams.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "b'A FEW WORDS, NOW\\n' b'A LOT OF DATA, LATER\\n'\n"


def test_the_tour_uses_every_kind_of_call() -> None:
    program = [*MORTAL, sys.executable, "-W", "error", str(EXAMPLES / "tour.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=True)
    for line in ("b'HELLO\\n'", "b'BY PROTOCOL'", "b'HELLO AGAIN\\n'", "b'A SECRET IN A SECRET\\n'"):
        assert line in done.stdout.splitlines()
    assert re.search(r"^DatagramCounts\(", done.stdout, re.MULTILINE)
    assert "connection 0 is backup" in done.stdout


def test_the_first_session_of_the_tutorial_has_two_connections() -> None:
    program = [*MORTAL, sys.executable, str(EXAMPLES / "first_server.py"), "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            port = wait_for_line(server, r"port (\d+)").group(1)
            program = [*MORTAL, sys.executable, str(EXAMPLES / "first_client.py"), port]
            with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
                try:
                    wait_for_line(client, r"^b'LINE 0")
                    wait_for_line(client, r"1 127\.0\.0\.2:\d+ active")
                finally:
                    client.send_signal(signal.SIGINT)
        finally:
            server.send_signal(signal.SIGINT)
