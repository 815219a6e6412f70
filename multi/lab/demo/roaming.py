"""The roaming demo: a file streams to a client that walks in and out of WiFi range while it has 5G.

Two hosts in network namespaces (`multi.lab.testbed`): the client with WiFi and 5G is this process, the server is `multi
serve`. What happens when is in `STORY`. This module plays it and streams the file; it is shown as any copy is, and what
is kept of it is decided in `recording`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from multi.asyncio.client import connect
from multi.asyncio.session import Session
from multi.errors import MultiError, SessionLost
from multi.events import ConnectionChanged
from multi.lab.demo.file_server import DemoFailed, make_file, serving, wait_for_end
from multi.lab.demo.recording import Outcome, Recorder, summary_lines, write_trace
from multi.lab.files.client import Transfer
from multi.lab.files.progress import Progress, in_words
from multi.lab.files.protocol import LINE_LIMIT, End, Get, Sending, encode, read_length, read_message
from multi.lab.testbed import Link, Testbed, TestbedError, load_profile
from multi.reasons import Cause, Reason

FILE_SIZE = 1_350_000_000  # bytes: 42 s of this story on links that are used to the full
FILE_NAME = "python-installation.bin"
PORT = 7788
T = TypeVar("T")

SAMPLE = 0.1  # seconds between samples of the trace
NETWORKS = {"wwan0": "5G", "wlan0": "WiFi"}
"""Interfaces as the story calls them, in the order they are shown in."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens, `at` seconds after the beginning."""

    key: str
    at: float
    title: str
    """For the picture and the summary: three words."""
    what: str
    """For a person who watches."""
    play: Callable[[_Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Stage:
    """What a step can reach."""

    session: Session
    wifi: Link
    cellular: Link
    say: Callable[[str, str], None]


async def _nothing(_: _Stage) -> None:
    pass


async def _in_range(stage: _Stage) -> None:
    stage.wifi.carrier(True)


async def _dies(stage: _Stage) -> None:
    stage.wifi.blackhole(True)


async def _back(stage: _Stage) -> None:
    stage.wifi.blackhole(False)


async def _hand_over(stage: _Stage) -> None:
    try:
        await stage.session.handover(to="wifi")
    except MultiError as error:
        stage.say(str(error), "yellow")


async def _nothing_left(stage: _Stage) -> None:
    stage.wifi.blackhole(True)
    stage.cellular.blackhole(True)


async def _resume(stage: _Stage) -> None:
    stage.wifi.blackhole(False)
    stage.cellular.blackhole(False)


STORY = (
    Step("start", 0, "5G only", "out and about: only 5G is there", _nothing),
    Step("wifi_in_range", 6, "WiFi in range", "WiFi comes into range: both networks carry the file", _in_range),
    Step("wifi_dies", 14, "WiFi dies silently", "walking out: WiFi loses every packet, and nobody is told", _dies),
    Step("wifi_back", 20, "WiFi is back", "back again: WiFi works, and nobody says so", _back),
    Step("handover", 26, "handover to WiFi", "handover to WiFi, planned: 5G finishes what it has and goes", _hand_over),
    Step("total_loss", 32, "no network", "in the lift: no network at all", _nothing_left),
    Step("resume", 35, "networks are back", "out of the lift: both networks are back, the file goes on", _resume),
)


def run_roaming_demo(out: Path, *, speed: float = 1.0) -> int:
    """Play the story; write picture and trace to `out`. Returns the exit code.

    Raises TestbedNotAllowed before anything has happened, DemoFailed and other MultiErrors later.
    """
    testbed = Testbed(load_profile("wifi_and_5g"), congestion="cubic")
    with contextlib.ExitStack() as stack:
        stack.enter_context(testbed)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="multi-demo-", ignore_cleanup_errors=True)))
        # This thread is on the client for good: the loop, its sockets and its threads live there.
        stack.enter_context(testbed.client.entered())
        outcome, recorder = asyncio.run(_demo(testbed, work, speed))
    return write_results(outcome, recorder, out)


def write_results(outcome: Outcome, recorder: Recorder, out: Path) -> int:
    """Write trace and picture to `out`, print the summary. Returns the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    trace, picture = out / "roaming.json", out / "roaming.png"
    content = write_trace(trace, outcome, recorder)
    print("\n" + "\n".join(summary_lines(content)))
    try:
        from multi.lab.demo.timeline import draw_timeline
    except ImportError as error:
        print(f"  picture: none without matplotlib ({error}); pip install 'multi-session[plot]' brings it")
    else:
        draw_timeline(content, picture)
        print(f"  picture: {picture}")
    print(f"  trace:   {trace}")
    return 0 if outcome["verified"] else 1


async def _demo(testbed: Testbed, work: Path, speed: float) -> tuple[Outcome, Recorder]:
    # SIGTERM is an interruption too: everything is taken down in order.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    console = Console(highlight=False, markup=False)
    size = int(FILE_SIZE / speed)
    console.print(f"Making a file of {size / 1e6:.0f} MB from this Python installation ...")
    digest = await make_file(work / "files" / FILE_NAME, size)
    for link in testbed.links.values():
        down = link.spec.down
        console.print(
            f"  {NETWORKS[link.interface]:4}  {link.interface}: {down.rate_mbps:g} Mbit/s down, "
            f"{link.spec.up.rate_mbps:g} up, {down.delay_ms + link.spec.up.delay_ms:g} ms round trip"
        )
    testbed.links["wifi"].carrier(False)
    listen = {"host": "::", "port": PORT, "transports": ["tcp"]}
    async with serving(testbed.server.popen, work, listen) as server:
        recorder = Recorder(asyncio.get_running_loop().time, NETWORKS)
        async with connect(_client_config(testbed, work), limit=LINE_LIMIT) as session:
            async with Progress(console) as progress:
                stage = _Stage(session, testbed.links["wifi"], testbed.links["5g"], progress.say)
                size, theirs, ours = await _first(
                    _stream(session, recorder, progress),
                    _play(stage, recorder, speed),
                    _sample(session, recorder),
                    _follow(session, recorder),
                    wait_for_end(server.process.pid, server.explain_end),
                    wait_for_end(testbed.relay_process, lambda: "the relay between the hosts has died"),
                )
            recorder.sample(session.connections)
        outcome: Outcome = {
            "file": FILE_NAME,
            "size": size,
            "sha256": digest,
            "received_sha256": ours,
            "verified": theirs == ours == digest,
            "sent_again": server.sent_again(),
            "speed": speed,
        }
    return outcome, recorder


def _client_config(testbed: Testbed, work: Path) -> dict[str, Any]:
    return {
        "connection_priority": [["tcp", "ipv4", "wifi"], ["tcp", "ipv4", "cellular"]],
        "multi_config": {"connect": "par"},
        "remote_host": testbed.server.address(),
        "remote_port": PORT,
        "ssl_config": {"ca": str(work / "certs" / "ca.pem"), "server_name": "localhost"},
        "interfaces": testbed.interface_kinds,
    }


async def _first(main: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, None]) -> T:
    """The result of `main`; what goes wrong in one of `others`, which do not end by themselves, ends it."""
    first = asyncio.ensure_future(main)
    tasks = [first, *map(asyncio.ensure_future, others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return await first
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- what runs at the same time ---


async def _stream(session: Session, recorder: Recorder, progress: Progress) -> tuple[int, str, str]:
    """Fetch the file as `multi get` does, but keep only its hash. Returns its size, the server's hash and ours."""
    reader, sha256 = session.reader, hashlib.sha256()
    transfer = Transfer("get", FILE_NAME, session)
    progress.update(transfer)
    session.writer.write(encode(Get(FILE_NAME, 0, sha256.hexdigest())))
    await session.confirmed()
    try:
        answer = await read_message(reader, Sending)
        transfer.size = answer.size
        while length := await read_length(reader):
            while length:
                piece = await reader.read(length)
                if not piece:
                    raise EOFError
                recorder.read(len(piece))
                transfer.done = recorder.delivered
                sha256.update(piece)
                length -= len(piece)
        end = await read_message(reader, End)
    except EOFError:
        text = "the server has ended the session before everything was there"
        raise SessionLost(Reason(Cause.PEER_CLOSED, text)) from None
    recorder.finish()
    return recorder.delivered, end.sha256.lower(), sha256.hexdigest()


async def _play(stage: _Stage, recorder: Recorder, speed: float) -> None:
    for step in STORY:
        await asyncio.sleep(step.at / speed - recorder.now())
        # The first is the opening itself.
        recorder.mark(recorder.now() if step.at else 0.0, step.key, step.title, step.what)
        stage.say(step.what, "bold magenta")
        try:
            await step.play(stage)
        except TestbedError as error:
            raise DemoFailed(str(error)) from error
    await asyncio.get_running_loop().create_future()


async def _sample(session: Session, recorder: Recorder) -> None:
    due = recorder.now()
    while True:
        recorder.sample(session.connections)
        due = max(due + SAMPLE, recorder.now())
        await asyncio.sleep(due - recorder.now())


async def _follow(session: Session, recorder: Recorder) -> None:
    async for event in session.events():
        text = in_words(event)
        if isinstance(event, ConnectionChanged):
            recorder.state_changed(event.connection, event.state.value, event.reason)
        if text:
            recorder.event(text)
    await asyncio.get_running_loop().create_future()
