"""Signal strength of WiFi: what is read from nl80211, and what a watch reports."""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from multi.linux.wifi_signal import SignalWatch, read_signal
from tests.unit.linux.fake_nl80211 import FAMILY, GET_STATION, FakeKernel, attribute

INTERFACE = "lo"  # exists everywhere; the kernel of these tests calls it WiFi
SIGNAL, SIGNAL_AVERAGE, FLAGS, BEACON_AVERAGE = 7, 13, 17, 30

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="nl80211 is Linux only")


def index() -> int:
    return socket.if_nametoindex(INTERFACE)


def dbm(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("b", value))


def flags(*, direct: bool) -> bytes:
    return attribute(FLAGS, struct.pack("=II", 0xFF, 0x40 if direct else 0x26))


@linux_only
@pytest.mark.parametrize(
    ("stations", "expected"),
    [
        ([dbm(SIGNAL, -61) + dbm(SIGNAL_AVERAGE, -58) + dbm(BEACON_AVERAGE, -57)], -58),
        ([dbm(BEACON_AVERAGE, -57) + dbm(SIGNAL, -61)], -57),
        ([dbm(1, 0) + dbm(SIGNAL, -61)], -61),
        ([dbm(SIGNAL, -128)], None),
        ([dbm(SIGNAL_AVERAGE, 0) + dbm(SIGNAL, -61)], -61),
        ([dbm(SIGNAL, 0)], None),
        ([attribute(SIGNAL, b"")], None),
        ([b""], None),
        ([], None),
        ([flags(direct=False) + dbm(SIGNAL, -61), flags(direct=True) + dbm(SIGNAL, -30)], -61),
        ([dbm(SIGNAL, -61), dbm(SIGNAL, -62)], None),
    ],
)
def test_the_signal_is_that_of_the_access_point(stations: list[bytes], expected: int | None) -> None:
    kernel = FakeKernel(saving={index(): True}, stations=stations)
    assert read_signal(INTERFACE, kernel.open) == expected


@linux_only
@pytest.mark.skipif(sys.byteorder != "little", reason="the bytes are written down in little-endian order")
def test_the_request_is_these_bytes() -> None:
    kernel = FakeKernel(saving={index(): True})
    assert read_signal(INTERFACE, kernel.open) is None
    # header: length, type, flags (request, dump), number, port; generic header; interface index
    number = struct.pack("<I", index()).hex()
    assert kernel.requests[-1] == bytes.fromhex(f"1c000000 1c00 0103 02000000 00000000 11000000 08000300 {number}")


@linux_only
def test_the_request_is_what_pyroute2_would_send_and_it_reads_our_answer_alike() -> None:
    nl80211 = pytest.importorskip("pyroute2.netlink.nl80211")
    kernel = FakeKernel(saving={index(): True}, stations=[dbm(SIGNAL, -61)])
    assert read_signal(INTERFACE, kernel.open) == -61
    other = nl80211.nl80211cmd()
    other["cmd"], other["version"] = GET_STATION, 0
    other["attrs"] = [("NL80211_ATTR_IFINDEX", index())]
    other["header"] |= {"type": FAMILY, "flags": 0x301, "sequence_number": 2, "pid": 0}
    other.encode()
    assert kernel.requests[-1] == bytes(other.data)
    with kernel.open() as asking:
        asking.send(kernel.requests[-1])
        (station, *_rest) = nl80211.MarshalNl80211().parse(asking.recv(1 << 16))
    assert station.get_attr("NL80211_ATTR_STA_INFO").get_attr("NL80211_STA_INFO_SIGNAL") == -61


@linux_only
@pytest.mark.parametrize(
    "kernel",
    [FakeKernel(loaded=False), FakeKernel(), FakeKernel({index(): True}, refusals={GET_STATION: errno.EIO})],
)
def test_where_there_is_no_wifi_there_is_no_signal(kernel: FakeKernel) -> None:
    assert read_signal(INTERFACE, kernel.open) is None
    assert read_signal("no-such-thing", kernel.open) is None


def test_this_machine_is_asked_without_an_error() -> None:
    assert read_signal(INTERFACE) is None


class ShiftedLoop(asyncio.SelectorEventLoop):
    """Its clock goes on by a second with every reading, so that tests need not wait."""

    def __init__(self) -> None:
        super().__init__(selectors.DefaultSelector())
        self.shift = 0.0

    def time(self) -> float:
        return super().time() + self.shift


Report = tuple[str, bool, float]


class Course:
    """A signal that takes given values, one each second, and then stays; None = nothing to measure."""

    def __init__(self, loop: ShiftedLoop, **values: list[float | None]) -> None:
        self._loop = loop
        self._values: dict[str, Iterator[float | None]] = {
            name: chain(course, repeat(course[-1])) for name, course in values.items()
        }
        self.readings: list[str] = []
        self.threads: set[int] = set()

    def read(self, interface: str) -> float | None:
        self.readings.append(interface)
        self.threads.add(threading.get_ident())
        self._loop.shift += 1.0
        return next(self._values[interface])


def run(main: Callable[[ShiftedLoop], Coroutine[None, None, None]]) -> None:
    with asyncio.Runner(loop_factory=ShiftedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, ShiftedLoop)
        runner.run(main(loop))


def collector() -> tuple[Callable[[str, bool, float], None], asyncio.Queue[Report]]:
    queue: asyncio.Queue[Report] = asyncio.Queue()
    return lambda *report: queue.put_nowait(report), queue


def test_only_changes_are_reported_and_the_loop_is_not_blocked() -> None:
    async def main(loop: ShiftedLoop) -> None:
        callback, reports = collector()
        course = Course(loop, wlan0=[-60, -60, *[-85.0] * 6, *[-60.0] * 20, -85])
        watch = SignalWatch(callback, read=course.read, interval=0.0)
        watch.watch(["wlan0"])
        assert [(await reports.get())[1] for _ in range(3)] == [True, False, True]
        watch.close()
        assert reports.empty()
        assert threading.get_ident() not in course.threads

    run(main)


def test_a_report_names_interface_and_strength() -> None:
    async def main(loop: ShiftedLoop) -> None:
        callback, reports = collector()
        course = Course(loop, wlan0=[-50], wlan1=[-82])
        watch = SignalWatch(callback, read=course.read, interval=0.0)
        watch.watch(["wlan0", "wlan1"])
        assert await reports.get() == ("wlan1", True, -82)
        watch.close()
        assert reports.empty()

    run(main)


def test_without_interfaces_nothing_is_read_and_no_task_runs() -> None:
    async def main(loop: ShiftedLoop) -> None:
        callback, reports = collector()
        course = Course(loop, wlan0=[-82])
        watch = SignalWatch(callback, read=course.read, interval=0.0)
        watch.watch([])
        watch.close()
        tasks = asyncio.all_tasks()
        watch.watch(["wlan0"])
        await reports.get()
        assert asyncio.all_tasks() == tasks
        watch.watch([])
        before = len(course.readings)
        await loop.shutdown_default_executor()  # waits for a reading that had begun
        assert len(course.readings) <= before + 1
        assert reports.empty()

    run(main)


def test_many_watches_share_one_reading() -> None:
    async def main(loop: ShiftedLoop) -> None:
        course = Course(loop, wlan0=[-82])
        ends = [collector() for _ in range(50)]
        watches = [SignalWatch(callback, read=course.read, interval=0.0) for callback, _reports in ends]
        for watch in watches:
            watch.watch(["wlan0"])
        for _callback, reports in ends:
            assert await reports.get() == ("wlan0", True, -82)
        assert len(course.readings) < 10
        late, told = collector()
        newcomer = SignalWatch(late, read=course.read, interval=0.0)
        newcomer.watch(["wlan0"])
        assert await told.get() == ("wlan0", True, -82)
        for watch in [*watches, newcomer]:
            watch.close()

    run(main)


def test_a_station_that_was_gone_is_judged_anew() -> None:
    async def main(loop: ShiftedLoop) -> None:
        callback, reports = collector()
        # With the old average -90 the new access point would have to catch up before the 5 s begin.
        course = Course(loop, wlan0=[-90, -90, -90, None, *[-65.0] * 100])
        watch = SignalWatch(callback, read=course.read, interval=0.0)
        watch.watch(["wlan0"])
        assert (await reports.get())[1] is True
        assert (await reports.get())[1] is False
        assert len(course.readings) <= 12
        watch.close()

    run(main)


def test_without_a_thread_it_reads_later() -> None:
    async def main(loop: ShiftedLoop) -> None:
        callback, reports = collector()
        course = Course(loop, wlan0=[-80.0])
        watch = SignalWatch(callback, read=course.read, interval=0.0)
        in_executor = loop.run_in_executor
        refused: list[Any] = []

        def refuse_first(*arguments: Any) -> Any:
            if len(refused) < 3:
                refused.append(arguments)
                raise RuntimeError("can't start new thread")
            return in_executor(*arguments)

        loop.run_in_executor = refuse_first  # type: ignore[method-assign, assignment] # an event loop out of threads
        watch.watch(["wlan0"])
        assert await reports.get() == ("wlan0", True, -80)
        assert len(refused) == 3
        watch.close()

    run(main)


def test_a_reader_with_a_bug_is_reported_and_not_asked_again() -> None:
    async def main(loop: ShiftedLoop) -> None:
        callback, _reports = collector()
        seen: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        loop.set_exception_handler(lambda _loop, context: seen.put_nowait(context))
        calls: list[str] = []

        def read(interface: str) -> float:
            calls.append(interface)
            raise KeyError(interface)

        watch = SignalWatch(callback, read=read, interval=0.0)
        watch.watch(["wlan0"])
        assert isinstance((await seen.get())["exception"], KeyError)
        await loop.run_in_executor(None, lambda: None)
        assert calls == ["wlan0"]
        watch.close()

    run(main)


def test_a_closed_watch_may_watch_again() -> None:
    async def main(loop: ShiftedLoop) -> None:
        callback, reports = collector()
        course = Course(loop, wlan0=[-82])
        watch = SignalWatch(callback, read=course.read, interval=0.0)
        for _ in range(3):
            watch.watch(["wlan0"])
            assert await reports.get() == ("wlan0", True, -82)
            watch.close()

    run(main)


def test_a_callback_may_close_its_watch_and_others() -> None:
    async def main(loop: ShiftedLoop) -> None:
        course = Course(loop, wlan0=[-82])
        closed = asyncio.Event()
        watches: list[SignalWatch] = []

        def close_all(*_report: object) -> None:
            assert not closed.is_set()
            closed.set()
            for watch in watches:
                watch.close()

        watches += [SignalWatch(close_all, read=course.read, interval=0.0) for _ in range(3)]
        for watch in watches:
            watch.watch(["wlan0"])
        await closed.wait()
        await loop.shutdown_default_executor()

    run(main)
