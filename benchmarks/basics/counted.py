"""What a server keeps for sessions that attack its memory, against what it counts for them in `limits.max_memory`.

Each attack meets a server of its own, in a process of its own. It comes as many sessions, each from another network,
and does its worst within what the windows allow: over TCP in clear, sealed and under TLS, and over QUIC; with one
connection a session or eight; with windows as they are at first, or grown. Counted is what the sessions count for when
all has come; traced is what Python has allocated since before the first of them, resident what the process has grown
by, in another run. The promise holds for either.

    python -m benchmarks.basics.counted [--quick] [ATTACK...]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import multi
from benchmarks.processes import Process, answer, resident, say
from multi.lab.cert import write_development_certificates
from multi.protocol.control import MAX_AHEAD
from multi.protocol.payloads import Keepalive, encode_keepalive
from multi.protocol.segment import SegmentType, encode_header
from multi.protocol.settings import MAX_EARLY_DATA, SessionSettings
from multi.types import STREAM_ZERO

MODULE = "benchmarks.basics.counted"
HOST = "127.0.0.1"
SESSIONS = 100
FEW = 10  # where each of them says very much
VERY_FEW = 3  # where that takes either side a minute
WARM_UP = 4  # sessions before the first look at the memory: what a process needs once is not theirs
PROMISE = 1.5  # times what is counted
WINDOW = MAX_EARLY_DATA
GROWN = 1 << 20  # bytes, to which the server's windows may grow where they shall
GROWN_LITTLE = 1 << 18  # where each byte is a segment
DIALS = 5  # of a connection: a server that many attack may be too slow for one
ANSWER = 1 << 20  # bytes that a server writes for each byte it reads, where it answers
LAST_WORDS = "\N{GRINNING FACE}" + "\x01" * 1000  # most of these take ten characters to be told, of four bytes each
STREAMS = range(2, 2 * SessionSettings().max_streams, 2)
RETURNS = 66  # connections, more than are remembered when they have ended
SETTLED = 0.5  # seconds in which nothing more comes
STEADY = 0.99  # of what was kept before: connections that have ended go within a second, once the peer has heard of it

Piece = tuple[int, int, int]
"""Stream, offset, size."""


def bare(window: int) -> Iterator[Piece]:
    """Nothing after the handshake."""
    yield from ()


def unread(window: int) -> Iterator[Piece]:
    """The whole window, in order."""
    for offset in range(0, window, 8192):
        yield 0, offset, 8192


def tiny(window: int) -> Iterator[Piece]:
    """The whole window, byte by byte in order."""
    for offset in range(window):
        yield 0, offset, 1


def islands(window: int) -> Iterator[Piece]:
    """Every other byte of the window."""
    for offset in range(1, window, 2):
        yield 0, offset, 1


def spread_islands(window: int) -> Iterator[Piece]:
    """The same over all streams."""
    for stream in STREAMS:
        for offset in range(1, window // len(STREAMS), 2):
            yield stream, offset, 1


def large_islands(window: int) -> Iterator[Piece]:
    """Pieces with gaps of a byte."""
    for offset in range(1, window - 2100, 2100):
        yield 0, offset, 2099


def overlapping(window: int) -> Iterator[Piece]:
    """Segments of which little is new."""
    for offset in range(1, window // 2, 2100):
        yield 0, offset, window // 2


def streams(window: int) -> Iterator[Piece]:
    """All streams."""
    for stream in STREAMS:
        yield stream, 0, 1


def streams_with_gaps(window: int) -> Iterator[Piece]:
    """All streams, each with a byte above a gap."""
    for stream in STREAMS:
        yield stream, 1, 1


@dataclass(frozen=True)
class Attack:
    """What a session does when it has proved itself."""

    pieces: Callable[[int], Iterator[Piece]] = bare
    way: str = "plain"
    """`plain`, `sealed`, `TLS` or `QUIC`."""
    sessions: int = SESSIONS
    connections: int = 1
    grown: int = 0
    """First send what the application reads, until the window has grown to as many bytes, or how far it gets."""
    unfinished: int = 0
    """Bytes of a segment on each connection that is never finished."""
    questions: int = 0
    """Ask so many and hear no answer."""
    answers: int = 0
    """Have the application write so many times, after as many that were taken, and take nothing."""
    all_but_one: bool = False
    """Take all but one byte of what the application writes."""
    returns: int = 0
    """First open as many connections and break them off, with as long last words as a QUIC packet takes."""
    control_gaps: bool = False
    """Leave every other control segment out, as far as others are kept."""
    unacknowledged: bool = False
    """Acknowledge nothing, of control either."""
    half_records: bool = False
    """Begin a TLS record on each connection and never finish it."""
    gaps: bool = False
    """Fill what the QUIC engine grants with single bytes above gaps."""


ATTACKS: dict[str, Attack] = {
    **{
        pieces.__name__.replace("_", " "): Attack(pieces)
        for pieces in (bare, unread, large_islands, overlapping, streams)
    },
    **{
        pieces.__name__.replace("_", " "): Attack(pieces, sessions=FEW)  # of thousands of segments each
        for pieces in (tiny, islands)
    },
    "spread islands": Attack(spread_islands, sessions=VERY_FEW),
    "streams with gaps": Attack(streams_with_gaps),
    "unfinished segments": Attack(unfinished=200_000, connections=8, sessions=FEW),
    "grown, unread": Attack(unread, grown=GROWN, sessions=FEW),
    "grown, islands": Attack(islands, grown=GROWN_LITTLE, sessions=VERY_FEW),
    "grown, large islands": Attack(large_islands, grown=GROWN, sessions=FEW),
    "returns": Attack(islands, returns=RETURNS, control_gaps=True, sessions=FEW),
    "eight connections, bare": Attack(connections=8),
    "eight connections, unread": Attack(unread, connections=8, sessions=FEW),
    "eight connections, islands": Attack(islands, connections=8, sessions=FEW),
    "sealed, bare": Attack(way="sealed"),
    "sealed, unread": Attack(unread, "sealed"),
    "sealed, tiny": Attack(tiny, "sealed", sessions=FEW),
    "sealed, islands": Attack(islands, "sealed", sessions=FEW),
    "sealed, eight connections": Attack(unread, "sealed", connections=8),
    "sealed, unfinished segments": Attack(way="sealed", unfinished=200_000, connections=8, sessions=FEW),
    "sealed, answers": Attack(way="sealed", answers=16, sessions=FEW),
    "sealed, unacknowledged": Attack(way="sealed", returns=MAX_AHEAD + RETURNS, unacknowledged=True, sessions=FEW),
    "TLS, bare": Attack(way="TLS"),
    "TLS, unread": Attack(unread, "TLS"),
    "TLS, eight connections": Attack(unread, "TLS", connections=8),
    "TLS, half records": Attack(islands, "TLS", connections=8, half_records=True, sessions=FEW),
    "TLS, answers": Attack(way="TLS", answers=16, sessions=FEW),
    "TLS, returns": Attack(islands, "TLS", returns=RETURNS, control_gaps=True, sessions=FEW),
    "all but one byte": Attack(all_but_one=True, sessions=FEW),
    "QUIC, bare": Attack(way="QUIC"),
    "QUIC, unread": Attack(unread, "QUIC"),
    "QUIC, islands": Attack(islands, "QUIC", sessions=FEW),
    "QUIC, streams": Attack(streams, "QUIC"),
    "QUIC, gaps in packets": Attack(way="QUIC", gaps=True, sessions=FEW),
    "QUIC, eight connections": Attack(unread, "QUIC", connections=8, sessions=FEW),
    "QUIC, grown": Attack(large_islands, "QUIC", grown=GROWN, sessions=VERY_FEW),
    "QUIC, questions": Attack(way="QUIC", questions=20_000, sessions=FEW),
    "QUIC, returns": Attack(unread, "QUIC", returns=RETURNS, control_gaps=True, sessions=FEW),
    "QUIC, answers": Attack(way="QUIC", answers=8, sessions=VERY_FEW),
}


# --- the server ---


async def _serve(name: str, certificates: str, traced: bool) -> None:
    """Serve until standard input ends; every line read is answered with [counted, kept, payload received]."""
    attack = ATTACKS[name]

    async def serve(reader: Any, writer: Any) -> None:
        if attack.grown:
            await reader.readexactly(_bulk(attack.grown))
        if attack.all_but_one:
            writer.write(bytes(ANSWER + 1))
        while attack.answers:
            await reader.readexactly(1)
            writer.write(bytes(ANSWER))
        await asyncio.Event().wait()

    over_quic, grown = attack.way == "QUIC", dict.fromkeys(("max_stream_window", "max_session_window"), attack.grown)
    config: dict[str, Any] = {
        "listen": {"host": HOST, "port": 0, "transports": ["quic" if over_quic else "tcp"]},
        "protect": "never" if attack.way == "plain" else "auto",
        "limits": {"max_memory": 16 << 30, "segment_timeout": 600} | (grown if attack.grown else {}),
    }
    if attack.way in ("TLS", "QUIC"):
        config["ssl_config"] = {"cert": f"{certificates}/server-cert.pem", "key": f"{certificates}/server-key.pem"}
    if traced:
        tracemalloc.start()
    server = await multi.start_server(serve, config)
    say(server.port)
    libc = ctypes.CDLL(None)

    def figures(_: str) -> list[int]:
        gc.collect()
        libc.malloc_trim(0)
        kept = tracemalloc.get_traced_memory()[0] if traced else resident()
        received = sum(c.payload_received for s in server.sessions for c in s.connections)
        return [server.admission.taken(), kept, received]

    await answer(figures)


def _bulk(grown: int) -> int:
    """Bytes after which the windows have grown to `grown`: they double with each that was read in time."""
    return 8 * grown


# --- the attackers ---


class _Session:
    """An attacker's session over channels, and what it does with it."""

    def __init__(self, attack: Attack, port: int, source: str) -> None:
        from tests.integration.hostile import OverChannels  # from this checkout

        self._attack = attack
        self._client = OverChannels(attack.way, port, source, *([ANSWER] if attack.all_but_one else []))
        self._client.reads = not attack.all_but_one
        self.said = 0
        """Bytes of DATA."""

    async def open(self) -> None:
        """Prove itself on all connections."""
        for _ in range(self._attack.connections):
            for left in reversed(range(DIALS)):
                try:
                    await self._client.connect()
                    break
                except multi.TransportError:
                    if not left:
                        raise

    async def do_its_worst(self) -> None:
        attack, client = self._attack, self._client
        first, window = 0, WINDOW
        if attack.unacknowledged:
            client.acknowledge_nothing()
        for _ in range(attack.returns):
            await client.come_and_go(LAST_WORDS)
        if attack.control_gaps:
            client.say_control_with_gaps()
        if attack.all_but_one:
            await client.until(lambda: client.core.receiver.charged >= ANSWER)
        if attack.grown:
            first = self.said = _bulk(attack.grown)
            client.core.write(STREAM_ZERO, bytes(first), now=client.now())
            client.flush()
            await client.until(lambda: not client.core.sender.unacked)
            window = client.window - first
        for number, (stream, offset, size) in enumerate(attack.pieces(window)):
            client.say(SegmentType.DATA, bytes(size), sequence=first + offset, stream=stream, over=number)
            self.said += size
            if number % 256 == 255:
                await client.drained()
        await client.drained()
        for number in range(attack.connections if attack.unfinished else 0):
            header = encode_header(SegmentType.DATA, client.core.session_id, 0, STREAM_ZERO, attack.unfinished + 1)
            client.say_raw(header + bytes(attack.unfinished), over=number)
        for number in range(attack.answers):
            client.core.write(STREAM_ZERO, b"?", now=client.now())
            client.flush()
            await client.until(partial(client.has_got, (number + 1) * ANSWER))
        if attack.questions or attack.answers:
            client.be_deaf()
        for number in range(attack.questions):
            client.say(SegmentType.KEEPALIVE, encode_keepalive(Keepalive(number)))
        for number in range(attack.answers):
            client.say(SegmentType.DATA, b"?", sequence=attack.answers + number)
        client.flush()
        if attack.half_records:
            client.say_half_a_tls_record()
        if attack.gaps:
            await client.say_gaps()

    def leave(self) -> None:
        self._client.leave()


async def _attack(attack: Attack, sessions: int, process: Process) -> tuple[int, int]:
    """(counted, kept) bytes of all sessions together."""
    port = process.line()
    clients: list[_Session] = []

    async def open_one() -> _Session:
        client = _Session(attack, port, f"127.{1 + len(clients) % 250}.1.1")
        clients.append(client)
        await client.open()
        return client

    for _ in range(WARM_UP):
        await open_one()
    await asyncio.sleep(SETTLED)
    before, expected = await asyncio.to_thread(process.ask), 0
    for _ in range(sessions):
        client = await open_one()
        await client.do_its_worst()
        expected += client.said
    after, last, steady = before, None, 0
    for _ in range(600):
        await asyncio.sleep(SETTLED)
        last, after = after, await asyncio.to_thread(process.ask)
        calm = after[2] >= expected and after[0] == last[0] and after[1] >= STEADY * last[1]
        steady = steady + 1 if calm else 0
        if steady == 3:
            break
    else:
        raise SystemExit(f"only {after[2]} of {expected} bytes came")
    for client in clients:
        client.leave()
    return after[0] - before[0], after[1] - before[1]


def measure(name: str, sessions: int, *, traced: bool) -> tuple[int, int]:
    """(counted, kept) bytes for each session."""
    with tempfile.TemporaryDirectory() as directory:
        write_development_certificates(Path(directory), [])
        arguments = ["--serve", name, directory, *(["--traced"] if traced else [])]
        with Process(MODULE, *arguments) as process:
            counted, kept = asyncio.run(_attack(ATTACKS[name], sessions, process))
    return counted // sessions, kept // sessions


def run(*, quick: bool, only: list[str] | None = None) -> None:
    """Print the table."""
    print(f"up to {SESSIONS} sessions each; KiB a session:")
    columns = f"{'counted':>8} {'counted':>8} {'traced':>8} {'resident':>9}"  # of either run
    print(f"{'attack':28} {columns}   of what is counted (promised {PROMISE:g})")
    for name in only or ATTACKS:
        sessions = -(-ATTACKS[name].sessions // 10) if quick else ATTACKS[name].sessions
        counted, traced = measure(name, sessions, traced=True)
        counted_too, resident_too = measure(name, sessions, traced=False)  # which may have lost other connections
        share = max(traced / counted, resident_too / counted_too)
        verdict = "held" if share <= PROMISE else f"short by {share - PROMISE:.2f}"
        sizes = f"{counted / 1024:8.0f} {counted_too / 1024:8.0f} {traced / 1024:8.0f} {resident_too / 1024:9.0f}"
        print(f"{name:28} {sizes}   {share:.2f} ({verdict})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", choices=[*ATTACKS, []], metavar="ATTACK", help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer sessions: a look, not a measurement")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        name, certificates = chosen.serve
        asyncio.run(_serve(name, certificates, chosen.traced))
    else:
        run(quick=chosen.quick, only=chosen.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
