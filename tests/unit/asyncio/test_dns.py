"""Names: which answers are waited for, which are kept, and that a dead resolver holds up nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import uvloop

from multi.asyncio import dns as module
from multi.asyncio.dns import Names
from multi.asyncio.lookups import MAX_THREADS, Share
from multi.types import Family
from tests.resolver import AGAIN, LONG, NO_NAME, Resolver

SIX, FOUR = Family.IPV6, Family.IPV4
HOST, OTHER = "server.example", "other.example"
NO_DATA = socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.end()


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many may ask at once, and none of them is busy."""
    monkeypatch.setattr(module, "THREADS", Share(2))
    return 2


class Told:
    """Counts the calls of `on_more`."""

    def __init__(self) -> None:
        self.times = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self._event.set()

    async def more(self) -> None:
        async with asyncio.timeout(5):
            await self._event.wait()
        self._event.clear()


async def started(resolver: Resolver, count: int) -> None:
    """Until so many questions have been asked."""
    async with asyncio.timeout(5):
        while len(resolver.asked) < count:  # noqa: ASYNC110 - the questions are asked in threads
            await asyncio.sleep(0.001)


async def timed(names: Names, *wanted: tuple[str, str]) -> float:
    begun = time.monotonic()
    async with asyncio.timeout(5):
        await names.resolve(wanted)
    return time.monotonic() - begun


async def test_an_ipv6_answer_is_used_at_once(resolver: Resolver) -> None:
    told = Told()
    names = Names(told, lookup=resolver)
    resolver.answer(HOST, SIX, ["2001:db8::1"])
    await timed(names, (HOST, "any"))
    assert names.addresses == {HOST: ["2001:db8::1"]}
    assert names.errors == {}
    assert names.pending
    assert told.times == 0
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    await told.more()
    assert names.addresses == {HOST: ["2001:db8::1", "192.0.2.1"]}
    assert not names.pending


async def test_both_families_are_asked_at_the_same_time(resolver: Resolver) -> None:
    names = Names(Told(), lookup=resolver)
    waiting = asyncio.create_task(names.resolve([(HOST, "any")]))
    await started(resolver, 2)
    assert set(resolver.asked) == {(HOST, SIX), (HOST, FOUR)}
    resolver.answer(HOST, FOUR, NO_NAME)
    resolver.answer(HOST, SIX, NO_NAME)
    await waiting


async def test_an_ipv4_answer_waits_for_ipv6_no_longer_than_the_resolution_delay(resolver: Resolver) -> None:
    names = Names(Told(), lookup=resolver)
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    took = await timed(names, (HOST, "any"))
    assert took >= module.RESOLUTION_DELAY - 0.002
    assert names.addresses == {HOST: ["192.0.2.1"]}


async def test_an_ipv4_answer_waits_no_longer_once_there_is_no_ipv6(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESOLUTION_DELAY", LONG)
    names = Names(Told(), lookup=resolver)
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    waiting = asyncio.create_task(names.resolve([(HOST, "any")]))
    await started(resolver, 2)
    resolver.answer(HOST, SIX, NO_DATA)
    async with asyncio.timeout(5):
        await waiting
    assert names.addresses == {HOST: ["192.0.2.1"]}
    assert names.errors == {}


async def test_ipv6_within_the_resolution_delay_comes_first(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESOLUTION_DELAY", LONG)
    told = Told()
    names = Names(told, lookup=resolver)
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    waiting = asyncio.create_task(names.resolve([(HOST, "any")]))
    await started(resolver, 2)
    resolver.answer(HOST, SIX, ["2001:db8::2", "2001:db8::1", "2001:db8::2"])
    async with asyncio.timeout(5):
        await waiting
    assert names.addresses == {HOST: ["2001:db8::2", "2001:db8::1", "192.0.2.1"]}
    assert told.times == 0


@pytest.mark.parametrize(("ip", "family"), [("ipv4", FOUR), ("ipv6", SIX)])
async def test_only_the_family_that_is_wanted_is_asked(resolver: Resolver, ip: str, family: Family) -> None:
    names = Names(Told(), lookup=resolver)
    resolver.answer(HOST, family, ["192.0.2.1"])
    await timed(names, (HOST, ip))
    assert resolver.asked == [(HOST, family)]
    assert names.addresses == {HOST: ["192.0.2.1"]}
    assert not names.pending


@pytest.mark.parametrize("literal", ["192.0.2.7", "2001:db8::7", "fe80::7%eth0"])
async def test_a_literal_address_asks_nobody_and_holds_nobody_up(resolver: Resolver, literal: str) -> None:
    names = Names(Told(), lookup=resolver)
    await timed(names, (literal, "any"), (HOST, "any"))
    assert names.addresses == {literal: [literal], HOST: []}
    assert names.errors == {}
    assert names.unanswered == {HOST}
    assert all(host == HOST for host, _family in resolver.asked)


async def test_an_ipv4_address_has_no_zone_so_what_seems_to_be_one_makes_a_name_of_it(resolver: Resolver) -> None:
    names, host = Names(Told(), lookup=resolver), "192.0.2.7%.example.com"
    for family in (SIX, FOUR):
        resolver.answer(host, family, NO_NAME)
    await timed(names, (host, "any"))
    assert names.addresses == {host: []}
    assert resolver.asked


async def test_a_silent_name_does_not_hold_up_another(resolver: Resolver) -> None:
    told = Told()
    names = Names(told, lookup=resolver)
    resolver.answer(OTHER, SIX, ["2001:db8::9"])
    await timed(names, (HOST, "any"), (OTHER, "ipv6"))
    assert names.errors == {}
    assert names.unanswered == {HOST}
    resolver.answer(HOST, SIX, NO_NAME)
    resolver.answer(HOST, FOUR, NO_NAME)
    await told.more()
    assert names.errors == {HOST: f"cannot resolve {HOST}: Name or service not known"}


async def test_when_nothing_comes_all_failures_are_waited_for(resolver: Resolver) -> None:
    names = Names(Told(), lookup=resolver)
    waiting = asyncio.create_task(names.resolve([(HOST, "any"), (OTHER, "ipv4")]))
    resolver.answer(HOST, SIX, NO_DATA)
    resolver.answer(HOST, FOUR, AGAIN)
    await started(resolver, 3)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    resolver.answer(OTHER, FOUR, NO_DATA)
    async with asyncio.timeout(5):
        await waiting
    assert names.errors == {
        HOST: f"cannot resolve {HOST}: Temporary failure in name resolution",
        OTHER: f"cannot resolve {OTHER}: No address associated with hostname",
    }
    assert names.addresses == {HOST: [], OTHER: []}


@pytest.mark.parametrize("failure", [ValueError("embedded null byte"), ZeroDivisionError("a bug")])
async def test_whatever_the_lookup_raises_is_a_reason(failure: Exception) -> None:
    def broken(_host: str, _family: Family) -> list[str]:
        raise failure

    names = Names(Told(), lookup=broken)
    await timed(names, (HOST, "any"))
    assert names.errors == {HOST: f"cannot resolve {HOST}: {failure}"}


async def test_an_answer_without_addresses_is_no_address(resolver: Resolver) -> None:
    names = Names(Told(), lookup=resolver)
    resolver.answer(HOST, FOUR, [])
    await timed(names, (HOST, "ipv4"))
    assert names.errors == {HOST: f"cannot resolve {HOST}: No address associated with hostname"}


async def test_young_answers_are_used_again(resolver: Resolver) -> None:
    names = Names(Told(), lookup=resolver)
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    resolver.answer(HOST, SIX, NO_DATA)
    await timed(names, (HOST, "any"))
    await timed(names, (HOST, "any"))
    assert len(resolver.asked) == 2


async def test_old_addresses_stay_until_new_ones_come(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.0)
    told = Told()
    names = Names(told, lookup=resolver)
    resolver.answer(HOST, SIX, ["2001:db8::1"])
    await timed(names, (HOST, "ipv6"))
    resolver.silent(HOST, SIX)
    await timed(names, (HOST, "ipv6"))
    assert names.addresses == {HOST: ["2001:db8::1"]}
    resolver.answer(HOST, SIX, ["2001:db8::2"])
    await told.more()
    assert names.addresses == {HOST: ["2001:db8::2"]}


@pytest.mark.parametrize("failure", [AGAIN, NO_NAME])
async def test_a_failure_keeps_the_old_addresses(
    resolver: Resolver, failure: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.0)
    told = Told()
    names = Names(told, lookup=resolver)
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    await timed(names, (HOST, "ipv4"))
    resolver.answer(HOST, FOUR, failure)
    await timed(names, (HOST, "ipv4"))
    await told.more()
    assert not names.pending
    assert names.addresses == {HOST: ["192.0.2.1"]}
    assert names.errors == {}


@pytest.mark.parametrize("failure", [AGAIN, NO_DATA])
async def test_the_last_answer_is_told_also_when_it_changes_no_address(resolver: Resolver, failure: OSError) -> None:
    told = Told()
    names = Names(told, lookup=resolver)
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    await timed(names, (HOST, "any"))
    assert names.pending
    resolver.answer(HOST, SIX, failure)
    await told.more()
    assert not names.pending


async def test_a_name_that_fails_at_once_is_not_asked_again_and_again(resolver: Resolver) -> None:
    told = Told()
    names = Names(told, lookup=resolver)
    wanted = [("192.0.2.1", "any"), (HOST, "any"), (OTHER, "any")]
    for host in (HOST, OTHER):
        resolver.answer(host, SIX, NO_NAME)
        resolver.answer(host, FOUR, AGAIN)
    await timed(names, *wanted)
    while names.pending:
        await told.more()
        await timed(names, *wanted)  # who is told looks
    asked = len(resolver.asked)
    assert asked == 4
    await asyncio.sleep(module.ASK_AGAIN)
    await timed(names, *wanted)
    await started(resolver, asked + 1)  # who looks for another reason asks


async def test_an_address_that_comes_after_a_faster_failure_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.0)
    release = threading.Event()
    order = iter((True, False))

    def lookup(host: str, family: Family) -> list[str]:
        if next(order):
            release.wait(LONG)
            return ["192.0.2.1"]
        raise AGAIN

    names = Names(Told(), lookup=lookup)
    first = asyncio.create_task(names.resolve([(HOST, "ipv4")]))
    await asyncio.sleep(0.02)
    second = asyncio.create_task(names.resolve([(HOST, "ipv4")]))
    await asyncio.sleep(0.05)
    release.set()
    async with asyncio.timeout(5):
        await asyncio.gather(first, second)
    assert names.addresses == {HOST: ["192.0.2.1"]}


async def test_a_failed_name_is_asked_again(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.0)
    names = Names(Told(), lookup=resolver)
    resolver.answer(HOST, FOUR, AGAIN)
    await timed(names, (HOST, "ipv4"))
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    await timed(names, (HOST, "ipv4"))
    assert names.addresses == {HOST: ["192.0.2.1"]}
    assert names.errors == {}


async def test_a_question_that_hangs_is_asked_anew_but_not_without_bound(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.0)
    names = Names(Told(), lookup=resolver)
    waiting = [asyncio.create_task(names.resolve([(HOST, "ipv4")])) for _ in range(2 * module.MAX_QUESTIONS)]
    await started(resolver, module.MAX_QUESTIONS)
    await asyncio.sleep(0.05)
    assert len(resolver.asked) == module.MAX_QUESTIONS
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    assert names.addresses == {HOST: ["192.0.2.1"]}


async def test_a_cancelled_resolve_leaves_the_answer_for_later(resolver: Resolver) -> None:
    told = Told()
    names = Names(told, lookup=resolver)
    waiting = asyncio.create_task(names.resolve([(HOST, "ipv6")]))
    await started(resolver, 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    resolver.answer(HOST, SIX, ["2001:db8::1"])
    await told.more()
    assert names.addresses == {HOST: ["2001:db8::1"]}


async def test_closing_ends_the_wait_and_nothing_is_told_after_it(resolver: Resolver) -> None:
    told = Told()
    names = Names(told, lookup=resolver)
    waiting = asyncio.create_task(names.resolve([(HOST, "ipv6")]))
    await started(resolver, 1)
    names.close()
    async with asyncio.timeout(5):
        await waiting
    assert not names.pending
    resolver.answer(HOST, SIX, ["2001:db8::1"])
    await asyncio.sleep(0.05)
    assert told.times == 0
    await timed(names, (OTHER, "any"))
    assert len(resolver.asked) == 1


async def test_a_question_without_answer_does_not_keep_a_closed_session(resolver: Resolver) -> None:
    told = Told()
    names = Names(told, lookup=resolver)
    waiting = asyncio.create_task(names.resolve([(HOST, "ipv6")]))
    await started(resolver, 1)
    names.close()
    await waiting
    gone = weakref.ref(told)
    del told
    assert gone() is None


async def test_the_default_executor_and_the_loop_stay_free(resolver: Resolver) -> None:
    names = Names(Told(), lookup=resolver)
    waiting = asyncio.create_task(names.resolve([(f"{n}.example", "any") for n in range(50)]))
    await started(resolver, MAX_THREADS)
    async with asyncio.timeout(1):
        assert await asyncio.to_thread(lambda: "free") == "free"
    waiting.cancel()
    names.close()


async def test_a_dead_resolver_holds_a_bounded_number_of_threads(resolver: Resolver, few_threads: int) -> None:
    sessions = [Names(Told(), lookup=resolver) for _ in range(10 * few_threads)]
    waiting = [asyncio.create_task(names.resolve([(HOST, "ipv6")])) for names in sessions]
    await started(resolver, few_threads)
    await asyncio.sleep(0.05)
    assert len(resolver.asked) == few_threads
    resolver.answer(HOST, SIX, ["2001:db8::1"])
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    assert all(names.addresses == {HOST: ["2001:db8::1"]} for names in sessions)


async def test_a_closed_session_leaves_no_question_in_line(resolver: Resolver, few_threads: int) -> None:
    dead = [Names(Told(), lookup=resolver) for _ in range(few_threads)]
    leaving, staying = Names(Told(), lookup=resolver), Names(Told(), lookup=resolver)
    waiting = [asyncio.create_task(names.resolve([(HOST, "ipv6")])) for names in dead]
    in_line = asyncio.create_task(leaving.resolve([(OTHER, "any")]))
    last = asyncio.create_task(staying.resolve([(HOST, "ipv6")]))
    await started(resolver, few_threads)
    in_line.cancel()
    leaving.close()
    await asyncio.wait([in_line])
    gone = weakref.ref(leaving)
    del leaving, in_line
    gc.collect()
    assert gone() is None
    resolver.answer(HOST, SIX, ["2001:db8::1"])
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting, last)
    assert resolver.asked == [(HOST, SIX)] * (few_threads + 1)


async def test_a_question_in_line_is_dropped_once_another_has_brought_the_answer(
    resolver: Resolver, few_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "THREADS", Share(1))
    monkeypatch.setattr(module, "ASK_AGAIN", 0.0)
    names, other = Names(Told(), lookup=resolver), Names(Told(), lookup=resolver)
    waiting = []
    for who, host in ((names, HOST), (other, OTHER), (names, HOST)):
        waiting.append(asyncio.create_task(who.resolve([(host, "ipv4")])))
        await asyncio.sleep(0.01)
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    async with asyncio.timeout(5):
        await asyncio.gather(waiting[0], waiting[2])
    resolver.answer(OTHER, FOUR, NO_NAME)
    await timed(names, (OTHER, "ipv4"))
    await waiting[1]
    assert resolver.asked == [(HOST, FOUR), (OTHER, FOUR), (OTHER, FOUR)]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_program_ends_while_the_resolver_hangs(loop: str) -> None:
    code = (
        "import asyncio, sys, time\n"
        f"import {loop} as runner\n"
        "from multi.asyncio.dns import Names\n"
        "async def main():\n"
        "    names = Names(print, lookup=lambda *_: time.sleep(60))\n"
        "    try:\n"
        "        async with asyncio.timeout(0.1): await names.resolve([('x', 'any')])\n"
        "    except TimeoutError: print(names.unanswered)\n"
        "runner.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True, timeout=20
    )
    assert (done.stdout, done.stderr, done.returncode) == ("{'x'}\n", "", 0)


def test_an_answer_after_the_loop_was_closed_is_dropped(resolver: Resolver) -> None:
    names = Names(lambda: None, lookup=resolver)

    async def ask() -> None:
        waiting = asyncio.create_task(names.resolve([(HOST, "ipv4")]))
        await started(resolver, 1)
        waiting.cancel()

    asyncio.run(ask())
    before = threading.active_count()
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    deadline = time.monotonic() + 5
    while threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert threading.active_count() < before
    assert names.addresses == {HOST: []}


# The system's resolver


@pytest.mark.alone
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_name_in_the_hosts_file_takes_well_under_5_ms(
    new_loop: Callable[[], asyncio.AbstractEventLoop], capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask() -> list[float]:
        durations = []
        for _ in range(20):
            names = Names(lambda: None)
            durations.append(await timed(names, ("localhost", "any")))
            assert set(names.addresses["localhost"]) <= {"::1", "127.0.0.1"}
            assert names.addresses["localhost"]
        return durations

    with asyncio.Runner(loop_factory=new_loop) as runner:
        durations = sorted(runner.run(ask()))
    with capsys.disabled():
        print(f"\n    localhost: median {1e3 * durations[10]:.2f} ms, most {1e3 * durations[-1]:.2f} ms", end="")
    assert durations[0] < 0.005


async def test_a_moment_without_threads_is_forgotten(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver.answer(HOST, SIX, ["2001:db8::1"])
    resolver.answer(HOST, FOUR, ["192.0.2.1"])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(20):  # more than there may be questions about a name
            names = Names(Told(), lookup=resolver)
            await timed(names, (HOST, "any"))
            assert "can't start new thread" in names.errors[HOST]
            assert not names.pending
    names = Names(Told(), lookup=resolver)
    await timed(names, (HOST, "any"))
    assert "2001:db8::1" in names.addresses[HOST]
