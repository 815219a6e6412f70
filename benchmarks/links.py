"""One TCP connection of `multi` against plain kernel TCP on emulated WiFi and 5G, and both links together.

Alternating runs in one testbed with the same congestion control. Kernel TCP is a blocking socket that sends 128 KiB at
a time and a receiver that always reads; rates are the receiver's, from its first byte to its last, for both parties.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multi.testbed import Host, Testbed, load_profile

PORT = 7788
PLAIN_PORT = 7799
LINKS = {"wifi": "wlan0", "5g": "wwan0"}
PROMISE = 0.97  # of what kernel TCP reaches

RECEIVE = """
import socket, time
connection = {connection}
total, first, last = 0, 0.0, 0.0
buffer = bytearray(1 << 20)
while size := connection.recv_into(buffer):
    last = time.monotonic()
    first = first or last
    total += size
print(total * 8 / (last - first) / 1e6)
"""
SEND = """
import socket, time
connection = {connection}
block = bytes(128 * 1024)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    connection.sendall(block)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"""
LISTENING = "socket.create_server(('{address}', {port})).accept()[0]"
DIALLING = (
    "socket.socket(); connection.setsockopt(socket.SOL_SOCKET, 25, b'{interface}'); "
    "connection.connect(('{address}', {port}))"
)


async def kernel(testbed: Testbed, interface: str, seconds: float, *, down: bool) -> float:
    """Mbit/s of plain TCP over one interface."""
    address = testbed.server.address()
    listening = LISTENING.format(address=address, port=PLAIN_PORT)
    dialling = DIALLING.format(interface=interface, address=address, port=PLAIN_PORT)
    at_server, at_client = (SEND, RECEIVE) if down else (RECEIVE, SEND)
    server = testbed.server.popen(
        [sys.executable, "-c", at_server.format(connection=listening, seconds=seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(50):
            await asyncio.sleep(0.1)
            listed = await testbed.server.exec(["cat", "/proc/net/tcp"])
            if f":{PLAIN_PORT:04X} " in listed.stdout:
                break
        text = await testbed.client.run_code(at_client.format(connection=dialling, seconds=seconds))
        output, _ = await asyncio.to_thread(server.communicate, timeout=30)
    finally:
        server.kill()
    return float(text if down else output)


async def session(testbed: Testbed, config: Path, seconds: float, *, down: bool) -> dict[str, Any]:
    """The JSON of `multi bench run`."""
    command = [sys.executable, "-m", "multi", "bench", "run", str(config), "-t", str(seconds), "--json"]
    result = await testbed.client.exec(command + (["-R"] if down else []))
    measured: dict[str, Any] = json.loads(result.stdout)
    return measured


@contextmanager
def serving(host: Host, config: Path) -> Iterator[None]:
    server = host.popen([sys.executable, "-m", "multi", "bench", "serve", str(config)], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    try:
        yield
    finally:
        server.terminate()
        server.wait(10)


def _configs(testbed: Testbed, directory: Path) -> dict[str, Path]:
    kinds = {kind: list(names) for kind, names in testbed.interface_kinds.items()}
    contents: dict[str, dict[str, object]] = {
        "server": {"listen": {"host": "::", "port": PORT, "transports": ["tcp"]}, "protect": "never"}
    }
    wanted = {**{name: [interface] for name, interface in LINKS.items()}, "both": list(LINKS.values())}
    for name, interfaces in wanted.items():
        contents[name] = {
            "connection_priority": [["tcp", "ipv4", interface] for interface in interfaces],
            "multi_config": {"connect": "par"},
            "remote_host": testbed.server.address(),
            "remote_port": PORT,
            "interfaces": kinds,
            "protect": "never",
        }
    paths = {}
    for name, content in contents.items():
        paths[name] = directory / f"{name}.json"
        paths[name].write_text(json.dumps(content))
    return paths


async def measure(congestion: str, rounds: int, seconds: float) -> None:
    """Print medians of alternating runs."""
    async with Testbed(load_profile("wifi_and_5g"), congestion=congestion) as testbed:
        with tempfile.TemporaryDirectory() as directory:
            configs = _configs(testbed, Path(directory))
            with serving(testbed.server, configs["server"]):
                for down in (True, False):
                    await _one_way(testbed, configs, rounds, seconds, congestion, down=down)


async def _one_way(
    testbed: Testbed, configs: dict[str, Path], rounds: int, seconds: float, congestion: str, *, down: bool
) -> None:
    way = "down" if down else "up"
    single: dict[str, float] = {}
    for name, interface in LINKS.items():
        plain, ours = [], []
        for _ in range(rounds):
            plain.append(await kernel(testbed, interface, seconds, down=down))
            ours.append((await session(testbed, configs[name], seconds, down=down))["mbps"])
        single[name] = statistics.median(ours)
        ratio = statistics.median(own / base for own, base in zip(ours, plain, strict=True))
        verdict = "held" if ratio >= PROMISE else f"short by {PROMISE - ratio:.3f}"
        print(
            f"  {congestion:5} {name:4} {way:4}  kernel TCP {statistics.median(plain):6.1f}  "
            f"multi {single[name]:6.1f} Mbit/s  ratio {ratio:.3f} ({verdict})",
            flush=True,
        )
    both = [await session(testbed, configs["both"], seconds, down=down) for _ in range(rounds)]
    rates = [result["mbps"] for result in both]
    gaps = [result["longest_gap_ms"] for result in both]
    print(
        f"  {congestion:5} both {way:4}  multi {statistics.median(rates):6.1f} Mbit/s, "
        f"{statistics.median(rates) / sum(single.values()):.3f} of the sum; "
        f"longest gap {statistics.median(gaps):.0f} ms",
        flush=True,
    )


def run(*, quick: bool) -> None:
    rounds, seconds = (1, 3.0) if quick else (5, 8.0)
    print(f"WiFi 200 Mbit/s 1.8 ms and 5G 190/35 Mbit/s 46 ms; {rounds} alternating runs of {seconds:g} s, medians")
    for congestion in ("bbr", "cubic"):
        asyncio.run(measure(congestion, rounds, seconds))


if __name__ == "__main__":
    run(quick="--quick" in sys.argv)
