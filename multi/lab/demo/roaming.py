"""The roaming demo: a file streams to a client that walks in and out of WiFi range while it has 5G.

Two hosts in network namespaces (`multi.lab.testbed`): the client with WiFi and 5G is this process, the server is `multi
serve`. What happens when is in `STORY`. This module plays it and streams the file; it is shown as any copy is, and what
is kept of it is decided in `recording`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from multi.asyncio.api import connect
from multi.asyncio.interruption import run_interruptible
from multi.asyncio.session import Session
from multi.errors import MultiError, SessionLost
from multi.events import ConnectionChanged
from multi.lab.demo.file_server import DemoFailed, hash_of_beginning, make_file, serving, wait_for_end
from multi.lab.demo.recording import SAMPLE, Outcome, Recorder, summary_lines, write_trace
from multi.lab.files.client import Transfer
from multi.lab.files.progress import Progress, in_words
from multi.lab.files.protocol import MAX_LINE, End, Get, Sending, encode, read_length, read_message
from multi.lab.testbed import Testbed, TestbedError, load_profile
from multi.reasons import Cause, Reason

FILE_SIZE = 1_350_000_000  # bytes: 42 s of this story on links that are used to the full
MAX_SECONDS = 75.0  # then what has come is compared: a machine that is too slow for the links shows the story too
FILE_NAME = "python-installation.bin"
PORT = 7788
T = TypeVar("T")

NETWORKS = {"wwan0": "5G", "wlan0": "WiFi"}
"""Interfaces as the story calls them, in the order they are shown in."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Something that happens, `at` seconds after the beginning."""

    key: str
    at: float
    title: str
    """For the picture and the summary: three words."""
    what: str
    """For a person who watches."""
    away: str = ""
    """The link that has no carrier from then on."""
    silent: tuple[str, ...] = ()
    """The links that lose every packet from then on."""
    handover: bool = False
    """The application asks for WiFi."""


STORY = (
    Scene("start", 0, "5G only", "out and about: only 5G is there", away="wifi"),
    Scene("wifi_in_range", 6, "WiFi in range", "WiFi comes into range: both networks carry the file"),
    Scene(
        "wifi_dies",
        14,
        "WiFi dies silently",
        "walking out: WiFi loses every packet, and nobody is told",
        silent=("wifi",),
    ),
    Scene("wifi_back", 20, "WiFi is back", "back again: WiFi works, and nobody says so"),
    Scene(
        "handover", 26, "handover to WiFi", "handover to WiFi, planned: 5G finishes what it has and goes", handover=True
    ),
    Scene("total_loss", 32, "no network", "in the lift: no network at all", silent=("wifi", "5g")),
    Scene(
        "resume",
        35,
        "networks are back",
        "out of the lift: both networks are back; 5G helps until WiFi has held for 5 s",
    ),
)


def run_roaming_demo(out: Path, *, speed: float) -> int:
    """Play the story; write picture and trace to `out`. Returns the exit code.

    Raises TestbedNotAllowed before anything has happened, DemoFailed and other MultiErrors later.
    """
    testbed = Testbed(load_profile("wifi_and_5g"), congestion="cubic")
    with contextlib.ExitStack() as stack:
        stack.enter_context(testbed)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="multi-demo-", ignore_cleanup_errors=True)))
        # This thread is on the client for good: the loop, its sockets and its threads live there.
        stack.enter_context(testbed.client.entered())
        outcome, recorder = run_interruptible(_demo(testbed, work, speed))
    return write_results(outcome, recorder, out)


def write_results(outcome: Outcome, recorder: Recorder, out: Path) -> int:
    """Write trace and picture to `out`, print the summary. Returns the exit code."""
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
    return 0 if outcome.verified else 1


async def _demo(testbed: Testbed, work: Path, speed: float) -> tuple[Outcome, Recorder]:
    console = Console(highlight=False, markup=False)
    file, file_size = work / "files" / FILE_NAME, int(FILE_SIZE / speed)
    console.print(f"Making a file of {file_size / 1e6:.0f} MB from this Python installation ...")
    digest = await make_file(file, file_size)
    for link in testbed.links.values():
        down = link.spec.down
        console.print(
            f"  {NETWORKS[link.interface]:4}  {link.interface}: {down.rate_mbps:g} Mbit/s down, "
            f"{link.spec.up.rate_mbps:g} up, {down.delay_ms + link.spec.up.delay_ms:g} ms round trip"
        )
    testbed.links[STORY[0].away].carrier(False)
    listen = {"host": "::", "port": PORT, "transports": ["tcp"]}
    async with serving(testbed.server.popen, work, listen) as server:
        recorder = Recorder(asyncio.get_running_loop().time, NETWORKS)
        async with connect(_client_config(testbed, work), limit=MAX_LINE) as session:
            async with Progress(console) as progress:
                ours, theirs = await _first(
                    _stream(session, recorder, progress, MAX_SECONDS / speed),
                    _play(session, testbed, recorder, progress.say, speed),
                    _sample(session, recorder),
                    _follow(session, recorder),
                    wait_for_end(server.process.pid, server.explain_end),
                    wait_for_end(testbed.relay_process, lambda: "the relay between the hosts has died"),
                )
            recorder.sample(session.connections)
        size = recorder.delivered
        expected = digest if theirs else await asyncio.to_thread(hash_of_beginning, file, size)
        verified = size > 0 and ours == expected == (theirs or expected)
        outcome = Outcome(FILE_NAME, file_size, size, expected, ours, verified, server.sent_again(), speed)
        return outcome, recorder


def _client_config(testbed: Testbed, work: Path) -> dict[str, Any]:
    return {
        "connection_priority": [["tcp", "ipv4", "wifi"], ["tcp", "ipv4", "cellular"]],
        "multi_config": {"connect": "par", "open_timeout": 60},
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


async def _stream(session: Session, recorder: Recorder, progress: Progress, longest: float) -> tuple[str, str]:
    """Fetch the file as `multi get` does, but keep only its hash, and for `longest` seconds at most.

    Returns the hash of what has come and, where that is all, the server's.
    """
    reader, sha256, theirs = session.reader, hashlib.sha256(), ""
    transfer = Transfer("get", FILE_NAME, session)
    progress.update(transfer)
    session.writer.write(encode(Get(FILE_NAME, 0, sha256.hexdigest())))
    await session.confirmed()
    try:
        async with asyncio.timeout(longest - recorder.now()):
            transfer.size = (await read_message(reader, Sending)).size
            while length := await read_length(reader):
                while length:
                    piece = await reader.read(length)
                    if not piece:
                        raise EOFError
                    recorder.read(len(piece))
                    transfer.done = recorder.delivered
                    sha256.update(piece)
                    length -= len(piece)
            theirs = (await read_message(reader, End)).sha256.lower()
    except TimeoutError:
        progress.say(f"{longest:g} s are over: the demo ends with what has come", "yellow")
    except EOFError:
        text = "the server has ended the session before everything was there"
        raise SessionLost(Reason(Cause.PEER_CLOSED, text)) from None
    recorder.finish()
    return sha256.hexdigest(), theirs


async def _play(
    session: Session, testbed: Testbed, recorder: Recorder, say: Callable[[str, str], None], speed: float
) -> None:
    for step in STORY:
        await asyncio.sleep(step.at / speed - recorder.now())
        # The first is the opening itself.
        recorder.mark(recorder.now() if step.at else 0.0, step.key, step.title, step.what)
        say(step.what, "bold magenta")
        try:
            for name, link in testbed.links.items():
                link.carrier(name != step.away)
                link.blackhole(name in step.silent)
        except TestbedError as error:
            raise DemoFailed(str(error)) from error
        if step.handover:
            try:
                await session.handover(to="wifi")
            except MultiError as error:
                say(str(error), "yellow")
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
