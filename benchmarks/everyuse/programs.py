"""Programs that know nothing of sessions, over both links: ssh through `multi connect`, curl through `multi forward`.

ssh: a key every 50 ms to a program that echoes, while WiFi dies silently; handover: the same in a planned one. curl: a
download through the proxy against `multi bench` over the same links in turn. stream: 8 Mbit/s through a forwarded port
over two links of 6 Mbit/s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.links.stage import Stage, serving, spread
from benchmarks.verdicts import verdict, verdict_at_most
from multi.lab.testbed import Direction, LinkSpec, load_profile

FORWARD_PORT, TARGET_PORT, NEAR_PORT = 7801, 7802, 7803
KEYS_APART = 0.050  # seconds, fast typing
DIES_AT = 3.0  # seconds after the first key
MAX_ECHO = 200.0  # ms the latest echo may take while WiFi dies
HANDOVER_SLACK = 50.0  # ms it may take beyond an idle round trip of 5G in a planned handover
OVER_STEADY = 10.0  # ms that the latest of one may be later than is usual afterwards, in the middle of all runs
CONTROL = "control.sock"
CURL_SHARE = 0.93  # of what `multi bench` carries
CURL_FIGURES = "%{size_download} %{time_starttransfer} %{time_total}"
STREAM_RATE = 8e6 / 8  # bytes per second
STREAM_TICK = 0.020  # seconds between two writes, a frame
STREAM_LAG = 0.5  # seconds
STREAM_SHARE = 7.9 / 8

Keys = list[tuple[float, float]]
Watched = tuple[float, float, float]


# --- ssh ---


async def serve_ssh() -> None:
    import asyncssh

    class Anybody(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

    async def echo(process: Any) -> None:
        while key := await process.stdin.read(1):
            process.stdout.write(key)

    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1",
        TARGET_PORT,
        server_factory=Anybody,
        server_host_keys=[key],
        process_factory=echo,
        encoding=None,
        line_editor=False,
    )
    await server.wait_closed()


async def type_keys(config: str, seconds: float) -> Keys:
    """(seconds since the first key, milliseconds until its echo) of each key."""
    import asyncssh

    command = [sys.executable, "-m", "multi", "connect", config, f"127.0.0.1:{TARGET_PORT}"]
    took: Keys = []
    async with asyncssh.connect(
        "127.0.0.1", TARGET_PORT, username="x", known_hosts=None, proxy_command=command, client_keys=None, config=None
    ) as connection:
        process: Any = await connection.create_process(encoding=None)
        start = time.monotonic()
        sent: list[float] = []

        async def echoes() -> None:
            while await process.stdout.read(1):
                begun = sent[len(took)]
                took.append((begun - start, (time.monotonic() - begun) * 1e3))

        reading = asyncio.create_task(echoes())
        while time.monotonic() < start + seconds:
            sent.append(time.monotonic())
            process.stdin.write(b"x")
            await asyncio.sleep(KEYS_APART)
        await asyncio.sleep(1.0)
        reading.cancel()
        took += [(begun - start, float("inf")) for begun in sent[len(took) :]]
    return took


async def ssh(rounds: int, seconds: float) -> None:
    usual, worst = [], []
    for _ in range(2 * rounds):
        took = await _typing(seconds, _die)
        usual.append(_usual(took))
        worst.append(max(ms for _, ms in took))
    print(f"  echo of a key over both: {spread(usual)} ms", flush=True)
    held = verdict_at_most(max(worst), MAX_ECHO)
    print(f"  the latest while WiFi dies: {spread(worst)} ms, at most {MAX_ECHO:g}: {held}", flush=True)


async def _die(stage: Stage, _: Path) -> None:
    stage.testbed.links["wifi"].blackhole(True)


async def handover(rounds: int, seconds: float) -> None:
    """What somebody sees who types and sends his `multi connect` over to 5G."""
    worst, steady, over = [], [], []
    for _ in range(2 * rounds):
        took = await _typing(seconds, _hand_over)
        worst.append(max(ms for at, ms in took if at >= DIES_AT - 1.0))
        steady.append(statistics.median(ms for at, ms in took if at >= DIES_AT + 3.0))
        over.append(worst[-1] - steady[-1])
    _, cellular = load_profile("wifi_and_5g")
    idle = cellular.down.delay_ms + cellular.up.delay_ms
    print(f"  echo of a key over 5G afterwards: {spread(steady)} ms", flush=True)
    held = verdict_at_most(max(worst), idle + HANDOVER_SLACK)
    print(f"  the latest: {spread(worst)} ms, at most {idle:g} + {HANDOVER_SLACK:g}: {held}", flush=True)
    held = verdict_at_most(statistics.median(over), OVER_STEADY)
    print(f"  later than usual afterwards by {spread(over)} ms, median at most {OVER_STEADY:g}: {held}", flush=True)


async def _hand_over(_: Stage, control: Path) -> None:
    """As `multi top --do block all wifi` does it, without a process that would take the processor meanwhile."""
    order = json.dumps({"command": "block", "session": "all", "network": "wifi"}).encode()
    reader, writer = await asyncio.open_unix_connection(control)
    writer.write(b"POST /command HTTP/1.1\r\nHost: multi\r\nContent-Length: %d\r\n\r\n" % len(order) + order)
    answer = await reader.read()
    writer.close()
    if b"block for 1 session" not in answer:
        raise RuntimeError(f"no handover: {answer.decode(errors='replace')}")


async def _typing(seconds: float, event: Callable[[Stage, Path], Coroutine[None, None, None]]) -> Keys:
    """The echoes of somebody who types while `event` happens to the stage; it gets the session's control socket too."""
    async with _stage(load_profile("wifi_and_5g"), ["--forward-to", "localhost:*"]) as (stage, config):
        serving_ssh: asyncio.Task[None] = asyncio.create_task(stage.testbed.server.run_python(serve_ssh))
        await asyncio.sleep(2.0)
        typing: asyncio.Task[Keys] = asyncio.create_task(
            stage.testbed.client.run_python(type_keys, config, 2 * DIES_AT + seconds)
        )
        control = Path(config).with_name(CONTROL)
        while not (control.exists() or typing.done()):  # noqa: ASYNC110 - the session is about to open
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0 + DIES_AT)
        await event(stage, control)
        took = await typing
        serving_ssh.cancel()
        await asyncio.gather(serving_ssh, return_exceptions=True)
    return took


def _usual(took: Keys) -> float:
    return statistics.median(ms for at, ms in took if at < DIES_AT - 1.0)


# --- curl ---


async def serve_download() -> None:
    """HTTP, as much as anybody takes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", TARGET_PORT)
    await server.serve_forever()


async def _download(stage: Stage, seconds: float) -> float:
    """Mbit/s that curl gets through the proxy, from the first byte on; 0 where it cannot connect."""
    asked = ["curl", "-s", "-o", "/dev/null", "-m", str(seconds), "-w", CURL_FIGURES]
    through = ["--socks5-hostname", f"127.0.0.1:{NEAR_PORT}", f"http://127.0.0.1:{TARGET_PORT}/"]
    done = await stage.testbed.client.exec([*asked, *through], check=False)
    size, first, total = map(float, done.stdout.split())
    return size * 8 / (total - first) / 1e6


async def curl(rounds: int, seconds: float) -> None:
    ours, bench = [], []
    async with _stage(load_profile("wifi_and_5g"), ["--forward-to", "localhost:*"], ["sealed"]) as (stage, config):
        target: asyncio.Task[None] = asyncio.create_task(stage.testbed.server.run_python(serve_download))
        command = ["-m", "multi", "forward", config, "--socks", str(NEAR_PORT)]
        with serving(stage.testbed.client, command):
            while not await _download(stage, 1.0):  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.5)  # the target does not listen yet
            for _ in range(rounds):
                ours.append(await _download(stage, seconds))
                bench.append((await stage.session([("tcp", "wlan0"), ("tcp", "wwan0")], seconds, down=True)).mbps)
        target.cancel()
        await asyncio.gather(target, return_exceptions=True)
    ratio = statistics.median(o / b for o, b in zip(ours, bench, strict=True))
    print(
        f"  curl {spread(ours)}  multi bench {spread(bench)} Mbit/s  ratio {ratio:.3f}, at least {CURL_SHARE:g}: "
        f"{verdict(ratio, CURL_SHARE, 3)}",
        flush=True,
    )


# --- a constant stream ---


async def watch_stream() -> Watched:
    """Share delivered in time, the largest lag and the longest gap in seconds, of what one connection brings."""
    done: asyncio.Future[Watched] = asyncio.get_running_loop().create_future()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seconds = float(await reader.readline())
        start = before = time.monotonic()
        size, in_time, lag, gap = 0, 0, 0.0, 0.0
        while data := await reader.read(1 << 20):
            now = time.monotonic()
            size += len(data)
            gap, before = max(gap, now - before), now
            lag = max(lag, now - start - size / STREAM_RATE)
            in_time = size if now < start + seconds + STREAM_LAG else in_time
        writer.close()
        done.set_result((in_time / (seconds * STREAM_RATE), lag, gap))

    async with await asyncio.start_server(watch, "127.0.0.1", TARGET_PORT):
        return await done


async def send_stream(seconds: float) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", NEAR_PORT)
    writer.write(f"{seconds}\n".encode())
    start, size = time.monotonic(), 0
    while (now := time.monotonic()) < start + seconds:
        due = int((now - start) * STREAM_RATE) - size
        writer.write(bytes(due))
        size += due
        await asyncio.sleep(STREAM_TICK)
    writer.write_eof()
    await asyncio.sleep(2.0)


async def stream(rounds: int, seconds: float) -> None:
    figures = Direction(6, 10, queue_ms=200)
    links = [
        LinkSpec("one", "wlan0", figures, figures, kind="wifi"),
        LinkSpec("two", "wwan0", figures, figures, kind="cellular"),
    ]
    shares, lags = [], []
    for _ in range(rounds):
        async with _stage(links, ["--forward-to", "localhost:*"]) as (stage, config):
            target: asyncio.Task[Watched] = asyncio.create_task(stage.testbed.server.run_python(watch_stream))
            command = ["-m", "multi", "forward", config, "-L", f"{NEAR_PORT}:127.0.0.1:{TARGET_PORT}"]
            with serving(stage.testbed.client, command):
                await asyncio.sleep(2.0)
                sending: asyncio.Task[None] = asyncio.create_task(
                    stage.testbed.client.run_python(send_stream, 2 * seconds)
                )
                await sending
                share, lag, _ = await target
        shares.append(share)
        lags.append(lag)
    share, lag = statistics.median(shares), statistics.median(lags)
    print(
        f"  delivered in time {share:.3f}, at least {STREAM_SHARE:.4g}: {verdict(share, STREAM_SHARE, 3)}", flush=True
    )
    print(f"  lag {spread(lags)} s, at most {STREAM_LAG:g}: {verdict_at_most(lag, STREAM_LAG)}", flush=True)


# --- inside ---


@contextlib.asynccontextmanager
async def _stage(
    links: Any, rules: list[str], protections: list[str] | None = None
) -> AsyncIterator[tuple[Stage, str]]:
    """A testbed whose server forwards, and a client's configuration for it."""
    with (
        tempfile.TemporaryDirectory(prefix="multi-everyuse-") as work,
        Stage.open(links, "bbr", Path(work), protections=protections or []) as stage,
    ):
        server, client = Path(work) / "forward-server.json", Path(work) / "forward-client.json"
        listen = {"host": "::", "port": FORWARD_PORT, "transports": ["tcp"]}
        server.write_text(json.dumps({"listen": listen}))
        entries = [("tcp", "wlan0"), ("tcp", "wwan0")]
        more = {"remote_port": FORWARD_PORT, "control": {"socket": str(Path(work) / CONTROL)}}
        client.write_text(json.dumps(stage.config(entries, "sealed") | more))
        with serving(stage.testbed.server, ["-m", "multi", "serve", str(server), *rules]):
            yield stage, str(client)


PARTS: dict[str, tuple[str, Callable[[int, float], Coroutine[None, None, None]]]] = {
    "ssh": ("ssh through `multi connect`, WiFi dies silently", ssh),
    "handover": ("ssh through `multi connect`, sent over from WiFi to 5G", handover),
    "curl": ("curl through `multi forward --socks`, WiFi and 5G", curl),
    "stream": ("8 Mbit/s through `multi forward -L` over 6 + 6 Mbit/s", stream),
}
