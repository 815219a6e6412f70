"""WireGuard over `multi forward --udp`: a file copied through the tunnel while a network dies, as the how-to says it.

Needs `wireguard-go` and `wg` (Debian: wireguard-go, wireguard-tools) and a machine that lets hosts make TUN devices.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Host, Testbed, load_profile
from multi.lab.testbed.pytest_plugin import MakeTestbed

SIZE = 3_000_000  # bytes
PORT, NEAR, WIREGUARD = 7870, 7871, 51820
HERE, THERE = "10.99.0.2", "10.99.0.1"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "wireguard.md"


def said(process: subprocess.Popen[Any], word: str) -> None:
    """Return when a program has printed a line with this word."""
    assert process.stdout is not None
    stdout: IO[bytes] = process.stdout
    while line := stdout.readline():
        if word.encode() in line:
            return
    raise AssertionError(f"{process.args!r} has ended without a word of {word!r}")


@contextlib.contextmanager
def running(host: Host, command: list[str], word: str) -> Iterator[None]:
    process = host.popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    try:
        said(process, word)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=10)


def done(host: Host, *command: str) -> str:
    process = host.popen(list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text, _ = process.communicate(timeout=20)
    assert process.returncode == 0, f"{' '.join(command)}: {text}"
    return str(text)


@contextlib.contextmanager
def tunnel(host: Host, name: str, key: Path, *settings: str, mtu: int, address: str) -> Iterator[None]:
    """A WireGuard interface on a host."""
    environment = os.environ | {"LOG_LEVEL": "error"}
    process = host.popen(
        ["wireguard-go", "-f", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    control = Path(f"/var/run/wireguard/{name}.sock")
    try:
        for _ in range(100):
            if control.exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        if process.poll() is not None:
            pytest.skip(f"NO WIREGUARD HERE: {process.communicate()[0].decode(errors='replace').strip()[-200:]}")
        done(host, "wg", "set", name, "private-key", str(key), *settings)
        done(host, "ip", "address", "add", f"{address}/24", "dev", name)
        done(host, "ip", "link", "set", name, "mtu", str(mtu), "up")
        yield
    finally:
        process.terminate()
        process.communicate(timeout=10)
        control.unlink(missing_ok=True)


def keys(work: Path) -> tuple[tuple[Path, str], tuple[Path, str]]:
    """(file of the private key, public key) of both ends."""
    pairs = []
    for name in ("client", "server"):
        private = subprocess.run(["wg", "genkey"], capture_output=True, text=True, check=True).stdout
        public = subprocess.run(["wg", "pubkey"], input=private, capture_output=True, text=True, check=True).stdout
        (file := work / f"{name}.key").write_text(private)
        file.chmod(0o600)
        pairs.append((file, public.strip()))
    return pairs[0], pairs[1]


def serve_file(path: str) -> None:
    with socket.create_server((THERE, 8080)) as listening:
        print("listening", flush=True)
        connection, _ = listening.accept()
        with connection:
            connection.sendall(Path(path).read_bytes())


FETCH = f"""
import hashlib, socket, sys
found, size = hashlib.sha256(), 0
with socket.create_connection(("{THERE}", 8080), timeout=20) as connection:
    while data := connection.recv(65536):
        found.update(data)
        size += len(data)
        if size > {SIZE // 3}:
            print("third", flush=True)
print(size, found.hexdigest(), "end", flush=True)
"""


def documented_mtu(transport: str) -> int:
    """What the how-to says for sessions of such connections."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {transport}"))
    return int(row.split("|")[2])


@pytest.mark.parametrize("transport", ["TCP", "QUIC"])
def test_a_file_comes_through_wireguard_over_a_session_whose_wifi_dies(
    transport: str, make_testbed: MakeTestbed, tmp_path: Path
) -> None:
    if not (shutil.which("wireguard-go") and shutil.which("wg")):
        pytest.skip("NO WIREGUARD HERE: needs wireguard-go and wg (Debian: wireguard-go, wireguard-tools)")
    testbed: Testbed = make_testbed(load_profile("wifi_and_5g"))
    write_development_certificates(tmp_path, [])
    content = os.urandom(SIZE)
    (tmp_path / "content").write_bytes(content)
    kind = transport.lower()
    server: dict[str, Any] = {"listen": {"host": "::", "port": PORT, "transports": [kind]}}
    client: dict[str, Any] = {
        "connection_priority": [[kind, "ipv4", "wlan0"], [kind, "ipv4", "wwan0"]],
        "remote_host": testbed.server.address(),
        "remote_port": PORT,
        "interfaces": testbed.interface_kinds,
    }
    if kind == "quic":
        server["ssl_config"] = {name: str(tmp_path / f"server-{name}.pem") for name in ("cert", "key")}
        client["ssl_config"] = {"ca": str(tmp_path / "ca.pem"), "server_name": "localhost"}
    for name, config in (("server", server), ("client", client)):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    (own, own_public), (far, far_public) = keys(tmp_path)
    multi = [sys.executable, "-m", "multi"]
    mtu = documented_mtu(transport)
    serve = [*multi, "serve", str(tmp_path / "server.json"), "--forward-to", f"localhost:{WIREGUARD}"]
    forward = [*multi, "forward", str(tmp_path / "client.json"), "--udp", f"{NEAR}:127.0.0.1:{WIREGUARD}"]
    peer = ("peer", far_public, "endpoint", f"127.0.0.1:{NEAR}", "allowed-ips", "10.99.0.0/24")
    code = f"from tests.testbed.test_wireguard import serve_file; serve_file({str(tmp_path / 'content')!r})"
    ends = tunnel(testbed.server, "mwgs", far, "listen-port", str(WIREGUARD), "peer", own_public,
                  "allowed-ips", f"{HERE}/32", mtu=mtu, address=THERE)  # fmt: skip
    with (
        ends,
        running(testbed.server, serve, "forward"),
        running(testbed.client, forward, "ready"),
        tunnel(testbed.client, "mwgc", own, *peer, mtu=mtu, address=HERE),
        running(testbed.server, [sys.executable, "-c", code], "listening"),
    ):
        fetching = testbed.client.popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE)
        said(fetching, "third")
        testbed.links["wifi"].blackhole(True)
        text, _ = fetching.communicate(timeout=60)
    size, digest, _ = text.decode().split()[-3:]
    assert (int(size), digest) == (SIZE, hashlib.sha256(content).hexdigest())
