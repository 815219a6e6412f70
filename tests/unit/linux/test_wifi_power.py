"""Power saving of WiFi, against a kernel on the other end of a socket pair."""

from __future__ import annotations

import errno
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from multi.linux.wifi_power import PowerSaving
from tests.unit.linux.fake_nl80211 import FAMILY, GET_POWER_SAVE, SET_POWER_SAVE, FakeKernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nl80211 is Linux only")

INTERFACE = "lo"  # exists everywhere; the kernel of these tests calls it WiFi
INDEX = socket.if_nametoindex(INTERFACE) if sys.platform == "linux" else 0


def wifi(*, saving: bool = True) -> tuple[FakeKernel, Callable[[], PowerSaving]]:
    """With what makes sessions there."""
    kernel = FakeKernel(saving={INDEX: saving})
    return kernel, lambda: PowerSaving(kernel.open)


@pytest.mark.skipif(sys.byteorder != "little", reason="the bytes are written down in little-endian order")
def test_requests_are_these_bytes() -> None:
    kernel, session = wifi()
    assert session().hold(INTERFACE, False) == ""
    index = struct.pack("<I", INDEX).hex()
    assert kernel.requests == [
        bytes.fromhex(text)
        for text in (
            # header: length, type, flags, number, port; generic header; attributes
            "20000000 1000 0500 01000000 00000000 03010000 0c000200 6e6c383032313100",
            f"1c000000 1c00 0500 02000000 00000000 3e000000 08000300 {index}",
            f"24000000 1c00 0500 03000000 00000000 3d000000 08000300 {index} 08005d00 00000000",
        )
    ]


def test_requests_are_what_pyroute2_would_send() -> None:
    nl80211 = pytest.importorskip("pyroute2.netlink.nl80211")
    kernel, session = wifi(saving=False)
    assert session().hold(INTERFACE, True) == ""
    other = nl80211.nl80211cmd()
    other["cmd"], other["version"] = SET_POWER_SAVE, 0
    other["attrs"] = [("NL80211_ATTR_IFINDEX", INDEX), ("NL80211_ATTR_PS_STATE", struct.pack("=I", 1))]
    other["header"] |= {"type": FAMILY, "flags": 5, "sequence_number": 3, "pid": 0}
    other.encode()
    assert kernel.requests[-1] == bytes(other.data)


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_the_state_found_comes_back(found: bool, wanted: bool) -> None:
    kernel, session = wifi(saving=found)
    saving = session()
    assert saving.hold(INTERFACE, wanted) == ""
    assert kernel.saving[INDEX] is wanted
    saving.release_all()
    assert kernel.saving[INDEX] is found
    assert (SET_POWER_SAVE in kernel.commands()) is (found != wanted)


def test_the_last_of_several_sessions_puts_back() -> None:
    kernel, session = wifi()
    first, second = session(), session()
    assert [first.hold(INTERFACE, False), second.hold(INTERFACE, False), second.hold(INTERFACE, False)] == [""] * 3
    second.release_all()
    second.release_all()
    assert kernel.saving[INDEX] is False
    first.release_all()
    assert kernel.saving[INDEX] is True


def test_it_is_off_while_one_session_wants_it_off() -> None:
    kernel, session = wifi(saving=False)
    thrifty, hasty = session(), session()
    assert thrifty.hold(INTERFACE, True) == ""
    assert kernel.saving[INDEX] is True
    assert hasty.hold(INTERFACE, False) == ""
    assert kernel.saving[INDEX] is False
    hasty.release_all()
    assert kernel.saving[INDEX] is True
    thrifty.release_all()
    assert kernel.saving[INDEX] is False


def test_holding_again_repeats_what_a_network_manager_has_undone() -> None:
    kernel, session = wifi()
    saving = session()
    saving.hold(INTERFACE, False)
    kernel.saving[INDEX] = True
    assert saving.hold(INTERFACE, False) == ""
    assert kernel.saving[INDEX] is False


def test_what_somebody_else_has_chosen_since_is_left() -> None:
    kernel, session = wifi(saving=False)
    saving = session()
    saving.hold(INTERFACE, True)
    kernel.saving[INDEX] = False
    kernel.requests.clear()
    saving.release_all()
    assert kernel.commands() == [GET_POWER_SAVE]


@pytest.mark.parametrize(
    ("interface", "kernel", "reason"),
    [
        ("lo", FakeKernel(loaded=False), "this kernel has no nl80211: no WiFi driver is loaded"),
        ("lo", FakeKernel(), "lo is not a WiFi interface"),
        (
            "lo",
            FakeKernel({INDEX: True}, refusals={GET_POWER_SAVE: errno.EINVAL}),
            "lo is not a WiFi interface",
        ),
        ("no-such-thing", FakeKernel(), "there is no interface no-such-thing"),
        (
            "lo",
            FakeKernel({INDEX: True}, refusals={SET_POWER_SAVE: errno.EPERM}),
            "not permitted to change the power saving of lo (needs CAP_NET_ADMIN)",
        ),
        (
            "lo",
            FakeKernel({INDEX: True}, refusals={SET_POWER_SAVE: errno.EOPNOTSUPP}),
            "the driver of lo cannot change its power saving",
        ),
        (
            "lo",
            FakeKernel({INDEX: True}, refusals={SET_POWER_SAVE: errno.EIO}),
            "the driver of lo refuses: Input/output error",
        ),
    ],
)
def test_the_reason_why_not_is_exact(interface: str, kernel: FakeKernel, reason: str) -> None:
    saving = PowerSaving(kernel.open)
    assert saving.hold(interface, False) == reason
    kernel.requests.clear()
    saving.release_all()
    assert kernel.requests == []


def test_no_permission_is_needed_for_what_is_so_already() -> None:
    kernel = FakeKernel({INDEX: False}, refusals={SET_POWER_SAVE: errno.EPERM})
    assert PowerSaving(kernel.open).hold(INTERFACE, False) == ""


def test_a_refused_session_changes_nothing_for_the_others() -> None:
    kernel, session = wifi(saving=False)
    thrifty, hasty = session(), session()
    thrifty.hold(INTERFACE, True)
    kernel.refusals[SET_POWER_SAVE] = errno.EBUSY
    assert hasty.hold(INTERFACE, False) == "the driver of lo refuses: Device or resource busy"
    kernel.refusals.clear()
    assert thrifty.hold(INTERFACE, True) == ""
    assert kernel.saving[INDEX] is True


def test_a_silent_driver_is_given_up_within_a_second() -> None:
    kernel, session = wifi()
    kernel.silent = True
    before = time.monotonic()
    assert session().hold(INTERFACE, False) == "the driver of lo did not answer within 1 s"
    assert 0.9 < time.monotonic() - before < 5.0


def test_sessions_in_several_threads_end_where_they_began() -> None:
    kernel, session = wifi()

    def use() -> None:
        for _ in range(20):
            saving = session()
            assert saving.hold(INTERFACE, False) == ""
            assert kernel.saving[INDEX] is False
            saving.release_all()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernel.saving[INDEX] is True
    assert kernel.commands().count(SET_POWER_SAVE) % 2 == 0


def test_this_machine_gives_an_answer() -> None:
    reason = PowerSaving().hold(INTERFACE, False)
    assert "nl80211" in reason or reason == "lo is not a WiFi interface"


PROGRAM = """
import atexit, os, sys
from tests.unit.linux.fake_nl80211 import FakeKernel
kernel = FakeKernel({{1: True}})
parent = os.getpid()
# What is registered first runs last.
if {forks}:
    atexit.register(lambda: print("at exit", kernel.saving[1], os.getpid() == parent, flush=True))
else:
    atexit.register(lambda: print("at exit", kernel.saving[1]))
from multi.linux.wifi_power import PowerSaving
saving = PowerSaving(kernel.open)
saving.hold("lo", False)
if {forks}:
    sent = len(kernel.requests)
    child = os.fork()
    if not child:
        sys.exit()
    os.waitpid(child, 0)
    print("after the child", len(kernel.requests) - sent, flush=True)
else:
    print("held", kernel.saving[1])
"""


def run(*, forks: bool) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(forks=forks)], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(INDEX != 1, reason="the program takes the loopback interface for number 1")
def test_what_was_not_released_is_put_back_when_the_program_ends() -> None:
    assert run(forks=False) == ["held False", "at exit True"]


@pytest.mark.skipif(INDEX != 1, reason="the program takes the loopback interface for number 1")
def test_a_forked_child_does_not_put_back_what_its_parent_holds() -> None:
    assert run(forks=True) == ["at exit False False", "after the child 0", "at exit True True"]
