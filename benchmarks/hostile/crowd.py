"""One source that wants 20,000 sessions, beside honest clients of its own network and of another one.

Server, greedy clients and honest ones are processes of their own. The greedy clients open their sessions, 100 at a
time, prove themselves, and then only answer what they are asked; who is told "busy" comes again. After three minutes
they stop. Of either network ten honest clients speak every 200 ms and open a session again when they lose one, and ten
say nothing once they are in. It is done twice: with default limits, of which one source has its share, and with limits
above what is wanted, where file descriptors are what is scarce.

    python -m benchmarks.hostile.crowd [--quick] [--wanted N]

All that is wanted has to be confirmed, as far as the server's descriptors go, and honest clients have to keep their
sessions, except for those of the greedy source's own network that say nothing: it pays with idle sessions. And no
callback of the server may take longer than 20 ms of the processor. The exit code is 1 where it was otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import multi
from benchmarks.processes import Process, answer, raise_descriptors, resident, say
from benchmarks.verdicts import verdict, verdict_at_most

MODULE = "benchmarks.hostile.crowd"
HOST = "127.0.0.1"
WANTED, QUICK_WANTED = 20_000, 2_000
PROCESSES = 2  # of the greedy source, which has two addresses
PARALLEL = 50  # sessions that one of them opens at the same time
SECONDS, QUICK_SECONDS = 180.0, 30.0  # for all of them
PATIENCE = 10.0  # seconds in which one that is turned away comes again
COMING = 60.0  # seconds in which honest clients have to be in
RETRY = 0.5  # seconds
HONEST = 10  # clients of each kind and network
OTHERS = 100  # descriptors of a server that honest clients and it itself need
PAUSE = 0.2  # seconds between two words of an honest client
GREEDY, NEIGHBOUR, OTHER = "127.7.7.", "127.7.7.99", "127.9.9.9"
PRICE = "its own network, silent"
"""Whose sessions go where one source wants more than its share, or descriptors are scarce."""
GENEROUS = {"max_sessions": 100_000, "max_sessions_per_source": 100_000, "max_memory": 16 << 30}
LIMITS: dict[str, dict[str, int]] = {"default limits": {}, "limits beyond what is wanted": GENEROUS}


async def _serve(limits: str) -> None:
    """Echo; says its port, then its figures."""
    from tests.integration.callbacks import callbacks_measured  # from this checkout

    descriptors = raise_descriptors()

    async def echo(reader: Any, writer: Any) -> None:
        with suppress(OSError, multi.MultiError):
            while data := await reader.read(1000):
                writer.write(data)
            writer.close()

    config = {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}, "limits": LIMITS[limits]}
    server = await multi.start_server(echo, config)
    say(server.port)

    def figures(_: str) -> object:
        hits = {name: count for name, count in server.statistics.items() if count}
        counted = server.admission.taken()
        return {
            "callbacks": callbacks.figures(),
            "sessions": len(server.sessions),
            "descriptors": descriptors,
            "counted": counted,
            "resident": resident(),
            "cpu": time.process_time(),
            "hits": hits,
        }

    with callbacks_measured() as callbacks:
        await answer(figures)


# --- those who want everything ---


async def _want(port: int, source: str, wanted: int, seconds: float) -> None:
    """Open so many sessions in this time; says when it has tried them all, then how many it has now."""
    from benchmarks.hostile.light import LightClient

    raise_descriptors()
    found = Counter[str]()
    turns = asyncio.Semaphore(PARALLEL)
    clients: list[LightClient] = []
    gc.disable()  # nothing of it is garbage
    deadline = asyncio.get_running_loop().time() + seconds

    async def one() -> None:
        loop = asyncio.get_running_loop()
        async with turns:
            until = min(loop.time() + PATIENCE, deadline)
            while loop.time() < until:
                with suppress(OSError):
                    client = await LightClient.at(port, source)
                    if await client.confirmed():
                        clients.append(client)
                        found["confirmed"] += 1
                        return
                found["turned away"] += 1
                await asyncio.sleep(RETRY)
            found["gave up"] += 1

    def figures(_: str) -> object:
        return {**found, "living": sum(client.living for client in clients), "cpu": time.process_time()}

    await asyncio.gather(*(one() for _ in range(wanted)))
    say("tried all")
    await answer(figures)


# --- honest clients ---


async def _be_honest(port: int) -> None:
    """Speak and be silent from both networks; says when all are there, then what they have met."""
    from tests.integration.support import until  # from this checkout

    raise_descriptors()
    lost: dict[str, Counter[str]] = {}
    waits: dict[str, list[float]] = {}
    openings: dict[str, list[float]] = {}
    loop = asyncio.get_running_loop()

    async def one(source: str, speaks: bool) -> None:
        name = f"{'its own network' if source == NEIGHBOUR else 'another network'}, {'speaks' if speaks else 'silent'}"
        config = {"connection_priority": [["tcp", "ipv4", source]], "remote_host": HOST, "remote_port": port}
        met, took = lost.setdefault(name, Counter()), waits.setdefault(name, [])
        opened = openings.setdefault(name, [])
        while True:
            began = loop.time()
            try:
                async with multi.connect(config) as session:
                    await session.confirmed()
                    opened.append(loop.time() - began)
                    while speaks:
                        began = loop.time()
                        session.writer.write(b"hello")
                        await session.reader.readexactly(5)
                        took.append(loop.time() - began)
                        await asyncio.sleep(PAUSE)
                    await session.wait_closed()
            except (OSError, EOFError, multi.MultiError) as error:
                met[str(error).splitlines()[0]] += 1
                if not speaks:
                    return  # idle sessions that are lost are the price; who uses one comes back

    tasks = [
        asyncio.create_task(one(source, speaks))
        for source in (NEIGHBOUR, OTHER)
        for speaks in (True, False)
        for _ in range(HONEST)
    ]
    await until(lambda: sum(map(len, openings.values())) == len(tasks), "all are in", timeout=COMING)
    say("all are there")

    def figures(_: str) -> object:
        return {"lost": lost, "waits": waits, "openings": openings}

    await answer(figures)


# --- both ---


def _crowd(limits: str, wanted: int, seconds: float) -> bool:
    """Print what becomes of everybody; return whether what is promised was kept."""
    from tests.integration.callbacks import in_words  # from this checkout

    with Process(MODULE, "--serve", limits) as server:
        port = server.line()
        with Process(MODULE, "--honest", str(port)) as honest:
            honest.line()
            before, began = server.ask(), time.monotonic()
            sources = [GREEDY + str(1 + place) for place in range(PROCESSES)]
            each = str(wanted // PROCESSES), str(seconds)
            greedy = [Process(MODULE, "--want", str(port), source, *each) for source in sources]
            try:
                for process in greedy:
                    process.line()
                took = time.monotonic() - began
                after, met = server.ask(), honest.ask()
                total = sum((Counter(process.ask()) for process in greedy), Counter[str]())
            finally:
                for process in greedy:
                    process.__exit__()
    room = min(wanted, after["descriptors"] - OTHERS)
    print(f"\n{wanted} sessions of one source, {limits}, in {took:.0f} s:")
    print(
        f"  {total['confirmed']} proved themselves (at least {room}: {verdict(total['confirmed'], room, 0)}), "
        f"{total['living']} live at the end, {total['gave up']} never got in in {seconds:.0f} s, "
        f"{total['turned away']} times somebody was turned away"
    )
    print(
        f"  the server: {after['sessions']} sessions, counted {after['counted'] >> 20} MiB, "
        f"{after['descriptors']} descriptors, "
        f"grown by {(after['resident'] - before['resident']) >> 20} MiB, {after['cpu'] - before['cpu']:.0f} s of "
        f"processor time, they {total['cpu']:.0f} s; load {os.getloadavg()[0]:.1f}"
    )
    print(f"  {in_words(after['callbacks'])}; limits hit: {after['hits']}")
    held = bool(after["callbacks"]["held"]) and bool(total["confirmed"] >= room)
    for name in met["lost"]:
        lost = sum(met["lost"][name].values())
        promised = name != PRICE
        held = held and not (promised and lost)
        waits, openings = sorted(met["waits"][name]), met["openings"][name]
        answers = (
            f"; {len(waits)} answers, median {statistics.median(waits) * 1e3:.0f} ms, "
            f"99 of 100 within {waits[len(waits) * 99 // 100] * 1e3:.0f} ms"
            if waits
            else ""
        )
        print(
            f"  {HONEST} of {name}: lost {lost} {met['lost'][name] or ''}"
            f"{f' (none: {verdict_at_most(lost, 0, 0)})' if promised else ''}, "
            f"open after {max(openings):.1f} s at most{answers}",
            flush=True,
        )
    return held


def run(*, quick: bool, wanted: int = 0) -> bool:
    """Print what becomes of everybody; return whether what is promised was kept."""
    wanted, seconds = wanted or (QUICK_WANTED if quick else WANTED), QUICK_SECONDS if quick else SECONDS
    wanted -= wanted % PROCESSES
    held = [_crowd(limits, wanted, seconds) for limits in LIMITS]
    return all(held)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_WANTED} sessions: a look, not a measurement")
    parser.add_argument("--wanted", type=int, default=0, help=f"sessions, default {WANTED}")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--want", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--honest", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(_serve(chosen.serve))
    elif chosen.want:
        port, source, wanted, seconds = chosen.want
        asyncio.run(_want(int(port), source, int(wanted), float(seconds)))
    elif chosen.honest:
        asyncio.run(_be_honest(chosen.honest))
    else:
        return 0 if run(quick=chosen.quick, wanted=chosen.wanted) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
