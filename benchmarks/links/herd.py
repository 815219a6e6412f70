"""Honest clients that come at once from one address, over an emulated link of 50 ms and 1 % loss.

Limits are those by default. What one source takes that wants everything is in `benchmarks.hostile.crowd`.

    python -m benchmarks.links.herd
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import multi
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Direction, LinkSpec, Testbed

HERDS = {"sealed TCP": ("tcp", 500), "TLS": ("tcp", 250), "QUIC": ("quic", 100)}
LINK = Direction(rate_mbps=1000, delay_ms=25, loss=0.01)
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


async def herds(certificates: str) -> None:
    link = LinkSpec("wifi", "wlan0", down=LINK, up=LINK)
    async with Testbed((link,)) as testbed:
        host = testbed.server.address()
        write_development_certificates(Path(certificates), [host])
        for kind, (_, size) in HERDS.items():
            running: Coroutine[Any, Any, None] = testbed.server.run_python(serve, kind, certificates, host)
            serving = asyncio.create_task(running)
            await asyncio.sleep(3)
            config = client_config(kind, certificates, link.interface, host)
            found: tuple[Counter[str], list[float]] = await testbed.client.run_python(come, config, size)
            outcome, opened = found
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            median, last = (opened[len(opened) // 2], opened[-1]) if opened else (0.0, 0.0)
            print(f"{size} over {kind}: {dict(outcome)}; open after {median:.1f} s (median), {last:.1f} s (last)")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(herds(directory))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    from benchmarks.links import herd  # by its name, so that processes on the hosts find its functions

    herd.main()
