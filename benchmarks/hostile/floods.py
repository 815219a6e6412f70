"""Floods of what strangers and clients can send cheaply, and what honest clients on the same server notice of them.

Server, attacker and honest clients are processes of their own. For each flood, first the rate is looked for from which
on the server's thread has no rest any more, step by step: what one piece costs in a flood that drops most of them says
nothing of it. Then the attacker sends half as many, and then as many as it can. Honest clients of five other networks
say something every 50 ms and hear it again; what counts is the 99th percentile of how long that takes while half is
sent, and how long after the end of too much somebody still waits for more than 100 ms. Three processes share the
machine, so the first line is what they take without any attack, and waiting for a processor counts as having no rest.
Whatever is sent, no callback of the server may take longer than 20 ms of the processor.

    python -m benchmarks.hostile.floods [--quick] [FLOOD...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import multi
from benchmarks.processes import Process, answer, raise_descriptors, say
from benchmarks.verdicts import verdict_at_most
from multi.lab.cert import write_development_certificates

MODULE = "benchmarks.hostile.floods"
HOST = "127.0.0.1"
WAYS = {"sealed": "tcp", "TLS": "tcp", "QUIC": "quic"}
HONEST = 5  # clients, each of a network of its own
PAUSE = 0.05  # seconds between two words of one of them
SECONDS, QUICK_SECONDS = 8.0, 3.0  # of each part
PROMISE = 0.100  # seconds, for 99 of 100 answers under half of what saturates the server
RECOVERY = 1.0  # seconds after the end of whatever flood until answers come in time again
NETWORKS = 200  # that a flood comes from
OPEN = 4000  # connections that it holds open
SATURATED = 0.95  # of the time the server's thread runs or waits for a processor
STEP = 2.0  # seconds of each rate tried
FIRST_RATE = 50.0  # pieces a second tried first
MIN_STEP, MAX_STEP = 1.2, 8.0  # times the rate before
AIM = 0.9  # of what would saturate it if each piece cost the same
RESTED = 0.3  # of the time that the server may still have no rest when it has come to all it was sent
MAX_REST = 15.0  # seconds
KEPT_UP = 0.8  # of the rate wanted; an attacker that sends less can do no more
OPENING = 200  # sessions that it opens at the same time
BATCH = 0.005  # seconds between two looks at how many pieces are due
SEGMENTS = 64  # in one write of a flood of tiny segments
DATAGRAMS = 300  # different ones in a flood of QUIC packets


async def _serve(way: str, certificates: str) -> None:
    from tests.integration.callbacks import callbacks_measured  # from this checkout

    raise_descriptors()

    async def echo(reader: Any, writer: Any) -> None:
        with suppress(OSError, multi.MultiError):
            while data := await reader.read(1000):
                writer.write(data)
            writer.close()

    config: dict[str, Any] = {"listen": {"host": HOST, "port": 0, "transports": [WAYS[way]]}}
    if way != "sealed":
        config["ssl_config"] = {"cert": f"{certificates}/server-cert.pem", "key": f"{certificates}/server-key.pem"}
    server = await multi.start_server(echo, config)
    say(server.port)
    with callbacks_measured() as callbacks:
        await answer(
            lambda _: {
                "callbacks": callbacks.figures(),
                "cpu": time.process_time(),
                "busy": _busy(),
                "hits": {k: v for k, v in server.statistics.items() if v},
            }
        )


def _busy() -> float:
    """Seconds that this thread has run or waited for a processor (proc_pid_schedstat(5))."""
    ran, waited, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    return (ran + waited) / 1e9


# --- honest clients ---


async def _be_honest(way: str, port: int) -> None:
    """Say something and hear it again; says when all are there, then what they have met since the last question."""
    from tests.integration.support import until  # from this checkout

    answers: list[tuple[float, float]] = []
    waiting: dict[str, float] = {}
    """Since when each of them waits for an answer."""
    met = Counter[str]()
    there = 0

    async def one(source: str) -> None:
        nonlocal there
        config: dict[str, Any] = {
            "connection_priority": [[WAYS[way], "ipv4", source]],
            "remote_host": HOST,
            "remote_port": port,
        }
        if way != "sealed":
            config["ssl_config"] = {"verify": False}
        while True:
            try:
                async with multi.connect(config) as session:
                    await session.confirmed()
                    there += 1
                    while True:
                        began = waiting[source] = time.monotonic()
                        session.writer.write(b"hello")
                        await session.reader.readexactly(5)
                        del waiting[source]
                        answers.append((began, time.monotonic() - began))
                        await asyncio.sleep(PAUSE)
            except (OSError, EOFError, multi.MultiError) as error:
                met[str(error).splitlines()[0]] += 1

    tasks = [asyncio.create_task(one(f"127.200.{number}.1")) for number in range(HONEST)]
    await until(lambda: there == len(tasks), "all are in", timeout=60)
    say("all are there")

    def figures(_: str) -> object:
        now = time.monotonic()  # who has had no answer yet has waited at least so long
        late = [(began, now - began) for began in waiting.values() if now - began > PROMISE]
        found = {"answers": answers + late, "lost": dict(met), "cpu": time.process_time()}
        answers.clear()
        return found

    await answer(figures)


# --- floods: each makes what sends one piece or several, and says how many ---

Sender = Callable[[], int]


def _source(number: int) -> str:
    return f"127.{100 + number % NETWORKS // 100}.{number % 100}.{1 + number // NETWORKS % 200}"


def _connecting(port: int, words: Callable[[], bytes]) -> Sender:
    """A connection from another network each time, that says this and stays until `OPEN` others have come."""
    held: deque[socket.socket] = deque()
    numbers = count()

    def send() -> int:
        sock = socket.socket()
        try:
            sock.settimeout(1.0)
            sock.bind((_source(next(numbers)), 0))
            sock.connect((HOST, port))
            sock.send(words())
        except OSError:
            sock.close()
            return 0
        held.append(sock)
        if len(held) > OPEN:
            held.popleft().close()
        return 1

    return send


async def hellos(port: int) -> Sender:
    """HELLO, never confirmed."""
    from multi.protocol.segment import SegmentType, encode
    from multi.types import SessionId
    from tests.integration.hostile import hello_payload

    payload = hello_payload()
    return _connecting(port, lambda: encode(SegmentType.HELLO, SessionId(os.urandom(16)), payload))


async def joins(port: int) -> Sender:
    """JOIN by somebody who holds no keys."""
    from multi.types import SessionId
    from tests.integration.hostile import join_segment

    return _connecting(port, lambda: join_segment(SessionId(os.urandom(16))))


async def dropped(port: int) -> Sender:
    """Sessions that are confirmed and then left without a word."""
    from benchmarks.hostile.light import LightClient

    numbers, tasks = count(), set[asyncio.Task[None]]()

    async def one() -> None:
        with suppress(OSError):
            client = await LightClient.at(port, _source(next(numbers)))
            await client.confirmed()
            client.drop()

    def send() -> int:
        if len(tasks) >= OPENING:
            return 0
        task = asyncio.create_task(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return 1

    return send


async def tiny_segments(port: int) -> Sender:
    """The same byte again and again, from ten clients that have proved themselves."""
    from multi.protocol.segment import SegmentType
    from tests.integration.hostile import OverChannels

    clients = [OverChannels("sealed", port, _source(number)) for number in range(10)]
    for client in clients:
        await client.connect()
    numbers = count()

    def send() -> int:
        client = clients[next(numbers) % len(clients)]
        if client.clogged:
            return 0
        for _ in range(SEGMENTS):
            client.say(SegmentType.DATA, b"x")
        client.flush()
        return SEGMENTS

    return send


async def tls_handshakes(port: int) -> Sender:
    """ClientHello, and no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["multi/1"])
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    words = outgoing.read()
    return _connecting(port, lambda: words)


async def quic_initials(port: int) -> Sender:
    """First packets of connections that do not go on."""
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import QuicConnection

    first: list[bytes] = []
    for _ in range(DATAGRAMS):
        configuration = QuicConfiguration(alpn_protocols=["multi/1"], verify_mode=ssl.CERT_NONE)
        quic = QuicConnection(configuration=configuration)
        quic.connect((HOST, port), now=0.0)
        first += [data for data, _ in quic.datagrams_to_send(now=0.0)]
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(NETWORKS)]
    for number, sock in enumerate(sockets):
        sock.bind((_source(number), 0))
        sock.connect((HOST, port))
    numbers = count()

    def send() -> int:
        number = next(numbers)
        with suppress(OSError):
            sockets[number % len(sockets)].send(first[number % len(first)])
            return 1
        return 0

    return send


async def quic_gaps(port: int) -> Sender:
    """Packets full of single bytes above gaps, said again and again by ten clients."""
    from tests.findings.test_quic_offsets import Attacker, packed, stream_frame

    attackers = [await Attacker.at(port, _source(number)) for number in range(10)]
    said = [
        attacker.prepared(packed(stream_frame(1 + n % 120 * 500) for n in range(60 * DATAGRAMS // 10)))
        for attacker in attackers
    ]
    pieces = [
        (attacker, data) for each in zip(*said, strict=True) for attacker, data in zip(attackers, each, strict=True)
    ]
    numbers = count()

    def send() -> int:
        attacker, data = pieces[next(numbers) % len(pieces)]
        attacker.send(data)
        return 1

    return send


FLOODS: dict[str, tuple[str, Callable[[int], Awaitable[Sender]]]] = {
    "HELLO": ("sealed", hellos),
    "JOIN": ("sealed", joins),
    "dropped sessions": ("sealed", dropped),
    "tiny segments": ("sealed", tiny_segments),
    "TLS handshakes": ("TLS", tls_handshakes),
    "QUIC Initials": ("QUIC", quic_initials),
    "QUIC gaps": ("QUIC", quic_gaps),
}


async def _flood(kind: str, port: int, rate: float) -> None:
    """Send `rate` pieces a second, 0 = as many as possible; says when it begins, then how many it has sent."""
    raise_descriptors()
    send = await FLOODS[kind][1](port)
    sent, began = 0, time.monotonic()
    say("begins")

    async def go_on() -> None:
        nonlocal sent
        while True:
            until = time.monotonic() + BATCH
            while time.monotonic() < until and (not rate or sent < (time.monotonic() - began) * rate):
                sent += send()
            await asyncio.sleep(BATCH if rate else 0)

    flooding = asyncio.create_task(go_on())
    await answer(lambda _: {"sent": sent, "seconds": time.monotonic() - began, "cpu": time.process_time()})
    await flooding


# --- one flood after the other ---


def _percentile(answers: list[tuple[float, float]], share: float = 0.99) -> float:
    waits = sorted(wait for _, wait in answers)
    return waits[min(len(waits) - 1, int(len(waits) * share))] if waits else float("inf")


class _Part:
    """What everybody did in one part: the server's and the attacker's time, and honest answers."""

    def __init__(self, kind: str, port: int, server: Process, honest: Process, rate: float, seconds: float) -> None:
        with Process(MODULE, "--flood", kind, str(port), str(rate)) as attacker:
            attacker.line()
            honest.ask()
            before, began = server.ask(), time.monotonic()
            time.sleep(seconds)
            after, flood = server.ask(), attacker.ask()
            seconds = time.monotonic() - began
            self.met = honest.ask()
        self.ended = time.monotonic()
        self.rate = flood["sent"] / flood["seconds"]
        """Pieces a second that were really sent."""
        self.busy = (after["busy"] - before["busy"]) / seconds
        self.server, self.attacker = (after["cpu"] - before["cpu"]) / seconds, flood["cpu"] / flood["seconds"]


def _rest(server: Process) -> None:
    """Wait until the server has come to what it was sent."""
    until, busy = time.monotonic() + MAX_REST, server.ask()["busy"]
    while time.monotonic() < until:
        time.sleep(RECOVERY)
        before, busy = busy, server.ask()["busy"]
        if busy - before < RESTED * RECOVERY:
            return


def _saturating(kind: str, port: int, server: Process, honest: Process) -> tuple[float, bool]:
    """(pieces a second from which on the server has no rest, True), or (as many as the attacker can send, False)."""
    rate, most = FIRST_RATE, 0.0
    while True:
        part = _Part(kind, port, server, honest, rate, STEP)
        _rest(server)
        if part.busy >= SATURATED:
            return part.rate, True
        if part.rate < KEPT_UP * rate:
            return max(most, part.rate), False
        most = part.rate
        rate *= min(MAX_STEP, max(MIN_STEP, AIM * SATURATED / part.busy))


def _measure(kind: str, certificates: str, seconds: float) -> None:
    from tests.integration.callbacks import in_words  # from this checkout

    way = FLOODS[kind][0]
    with ExitStack() as stack:
        server = stack.enter_context(Process(MODULE, "--serve", way, certificates))
        port = server.line()
        honest = stack.enter_context(Process(MODULE, "--honest", way, str(port)))
        honest.line()
        before, _ = server.ask(), honest.ask()
        time.sleep(seconds)
        idle, calm = (server.ask()["cpu"] - before["cpu"]) / seconds, honest.ask()
        rate, saturates = _saturating(kind, port, server, honest)
        half = _Part(kind, port, server, honest, rate / 2, seconds)
        _rest(server)
        over = _Part(kind, port, server, honest, 0.0, seconds)
        time.sleep(3 * RECOVERY)
        met = honest.ask()
        last = server.ask()
    late = [began + wait for began, wait in met["answers"] if wait > PROMISE and began + wait > over.ended]
    recovered = max(late, default=over.ended) - over.ended
    found = _percentile(half.met["answers"])
    what = "leave the server no rest" if saturates else "are all that the attacker can send, and leave the server rest"
    print(f"\n{kind}: {rate:.0f} a second {what}")
    print(f"  without: {_shown(calm['answers'])}, the server takes {idle:.0%} of a core")
    print(
        f"  half, {half.rate:.0f} a second: {_shown(half.met['answers'])}; server {half.server:.0%} of a core, no rest "
        f"for {half.busy:.0%}, attacker {half.attacker:.0%} ({verdict_at_most(found * 1e3, PROMISE * 1e3, 0, ' ms')})"
    )
    print(
        f"  as many as it can, {over.rate:.0f} a second: {_shown(over.met['answers'])}; server {over.server:.0%}, "
        f"attacker {over.attacker:.0%}; answers in time again after {recovered:.2f} s "
        f"({verdict_at_most(recovered * 1e3, RECOVERY * 1e3, 0, ' ms')}); lost {met['lost'] or 'nothing'}"
    )
    print(f"  {in_words(last['callbacks'])}")
    print(f"  limits hit: {last['hits']}; load {os.getloadavg()[0]:.1f}", flush=True)


def _shown(answers: list[tuple[float, float]]) -> str:
    if not answers:
        return "no answer"
    median, most = _percentile(answers, 0.5), _percentile(answers)
    return f"{len(answers)} answers, median {median * 1e3:.0f} ms, 99 of 100 within {most * 1e3:.0f} ms"


def run(*, quick: bool, only: list[str] | None = None) -> None:
    """Print what each flood costs and what honest clients notice."""
    with tempfile.TemporaryDirectory() as directory:
        write_development_certificates(Path(directory), [])
        for kind in only or FLOODS:
            _measure(kind, directory, QUICK_SECONDS if quick else SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", choices=[*FLOODS, []], metavar="FLOOD", help=f"of {', '.join(FLOODS)}")
    parser.add_argument("--quick", action="store_true", help="shorter parts: a look, not a measurement")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--honest", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--flood", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        way, certificates = chosen.serve
        asyncio.run(_serve(way, certificates))
    elif chosen.honest:
        way, port = chosen.honest
        asyncio.run(_be_honest(way, int(port)))
    elif chosen.flood:
        kind, port, rate = chosen.flood
        asyncio.run(_flood(kind, int(port), float(rate)))
    else:
        run(quick=chosen.quick, only=chosen.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
