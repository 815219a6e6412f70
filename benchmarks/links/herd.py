"""Honest clients that come at once from one address, over an emulated link of 50 ms and 1 % loss.

Limits are those by default. What one source takes that wants everything is in `benchmarks.hostile.crowd`.

    python -m benchmarks.links.herd [--quick]

All of them have to be open in time and served: the exit code is 1 when some were not.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import multi
from benchmarks.links.stage import serving
from benchmarks.verdicts import verdict, verdict_at_most
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Direction, LinkSpec, Testbed

HERDS = {"sealed TCP": ("tcp", 500), "TLS": ("tcp", 250), "QUIC": ("quic", 100)}
QUICK = 5  # times fewer
PROMISE = 10.0  # seconds until the last of them is open
LINKS = (LinkSpec.symmetric("wifi", "wlan0", Direction(rate_mbps=1000, delay_ms=25, loss=0.01)),)
PORT = 7788


def raise_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def echo(reader: Any, writer: Any) -> None:
    with suppress(OSError, multi.MultiError):
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()


def server_config(kind: str, certificates: str, host: str) -> dict[str, Any]:
    config: dict[str, Any] = {"listen": {"host": host, "port": PORT, "transports": [HERDS[kind][0]]}}
    if kind != "sealed TCP":
        config["ssl_config"] = {"cert": f"{certificates}/server-cert.pem", "key": f"{certificates}/server-key.pem"}
    return config


def client_config(kind: str, certificates: str, interface: str, host: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "connection_priority": [[HERDS[kind][0], "ipv4", interface]],
        "remote_host": host,
        "remote_port": PORT,
    }
    if kind != "sealed TCP":
        config["ssl_config"] = {"ca": f"{certificates}/ca.pem"}
    return config


# --- a herd ---


async def serve(kind: str, certificates: str, host: str) -> None:
    raise_limit()
    server = await multi.start_server(echo, server_config(kind, certificates, host))
    print("serving", flush=True)
    await server.serve_forever()


async def come(config: dict[str, Any], size: int) -> tuple[Counter[str], list[float]]:
    """What became of all of them, and after how long those that opened were open."""
    raise_limit()
    opened: list[float] = []
    started = time.monotonic()

    async def one() -> str:
        try:
            reader, writer = await multi.open_connection(config)
        except OSError as error:
            return f"did not open: {error}"
        opened.append(time.monotonic() - started)
        try:
            writer.write(b"hello")
            await reader.readexactly(5)
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, EOFError) as error:
            return f"lost after opening: {error}"
        return "served"

    return Counter(await asyncio.gather(*(one() for _ in range(size)))), sorted(opened)


async def herd_over(testbed: Testbed, kind: str, certificates: str, size: int) -> tuple[Counter[str], list[float]]:
    """What becomes of `size` clients of one host that come at once over the testbed's link; see `come`."""
    (link,) = testbed.links.values()
    host = testbed.server.address()
    words = f"herd.serve({kind!r}, {certificates!r}, {host!r})"
    with serving(testbed.server, ["-c", f"import asyncio; from benchmarks.links import herd; asyncio.run({words})"]):
        config = client_config(kind, certificates, link.interface, host)
        found: tuple[Counter[str], list[float]] = await testbed.client.run_python(come, config, size)
    return found


async def herds(certificates: str, *, quick: bool) -> bool:
    """Print what becomes of each; return whether all were open in time and served."""
    held = True
    async with Testbed(LINKS) as testbed:
        write_development_certificates(Path(certificates), [testbed.server.address()])
        for kind, (_, full_size) in HERDS.items():
            size = full_size // QUICK if quick else full_size
            outcome, opened = await herd_over(testbed, kind, certificates, size)
            median, last = (opened[len(opened) // 2], opened[-1]) if opened else (math.inf, math.inf)
            served, in_time = outcome["served"], verdict_at_most(last, PROMISE, 1)
            held = held and served == size and last <= PROMISE
            print(
                f"{size} over {kind}: {dict(outcome)}, all served: {verdict(served, size, 0)}; open after "
                f"{median:.1f} s (median), {last:.1f} s at most, within {PROMISE:g} s: {in_time}",
                flush=True,
            )
    return held


def run(*, quick: bool) -> bool:
    """Print what becomes of each herd; return whether the promise is kept."""
    with tempfile.TemporaryDirectory() as directory:
        held = asyncio.run(herds(directory, quick=quick))
    print(f"load {os.getloadavg()[0]:.1f}")
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK}th of the clients: a look, not a measurement")
    return 0 if run(quick=parser.parse_args().quick) else 1


if __name__ == "__main__":
    from benchmarks.links import herd  # by its name, so that processes on the hosts find its functions

    sys.exit(herd.main())
