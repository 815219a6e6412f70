"""What was read of the networks before counts until the system tells of a change."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest

from multi.discovery import snapshot as module
from multi.discovery.netlink import TAKEN_AT_ONCE, NetlinkSocket
from multi.discovery.snapshot import Snapshot, SnapshotCache, snapshots
from multi.lab.testbed import Testbed, load_profile
from multi.lab.testbed.netlink import HostNetlink
from multi.lab.testbed.pytest_plugin import started

OTHER_TABLE = 4711


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with started(load_profile("wifi_and_5g")) as running:
        if running.rootless:
            pytest.skip("NO TESTBED HERE: a thread cannot enter a host without root")
        yield running


@pytest.fixture
def recent(testbed: Testbed) -> Iterator[SnapshotCache]:
    """On the client, which this test is in."""
    with testbed.client.entered():
        yield snapshots
        snapshots.close()


def addresses(snapshot: Snapshot) -> set[str]:
    return {record.address.address for record in snapshot.addresses}


def settled(recent: SnapshotCache) -> None:
    """What was announced is taken in, piece by piece."""
    for _ in range(100):
        recent.read(anew=False)
        if recent.known() is not None:
            return
    raise AssertionError("changes without an end")


def test_it_is_not_read_again_while_nothing_changes(recent: SnapshotCache) -> None:
    assert recent.known() is None
    first = recent.read(anew=False)
    assert recent.known() is first
    assert recent.read(anew=False) is first
    assert recent.read(anew=True) is not first


@pytest.mark.parametrize("what", ["address", "carrier"])
def test_a_change_makes_it_unknown(testbed: Testbed, recent: SnapshotCache, what: str) -> None:
    wifi = testbed.links["wifi"]
    before = recent.read(anew=False)
    if what == "address":
        wifi.remove_address(4)
    else:
        wifi.carrier(False)
    try:
        deadline = time.monotonic() + 10  # the kernel tells of a carrier within a second
        while recent.known() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        after = recent.read(anew=False)
    finally:
        wifi.restore_address(4)
        wifi.carrier(True)
    assert after != before
    if what == "address":
        assert len(addresses(after)) == len(addresses(before)) - 1


def test_a_route_and_a_storm_of_them_are_changes(testbed: Testbed, recent: SnapshotCache) -> None:
    with contextlib.closing(HostNetlink()) as kernel:
        index = next(link.index for link in recent.read(anew=False).links if link.facts.name == "wlan0")
        for count in (1, 20 * TAKEN_AT_ONCE):
            settled(recent)
            for number in range(count):
                destination = f"100.64.{number >> 8}.{number & 255}/32"
                kernel.add_route(index, destination, table=OTHER_TABLE)
                kernel.delete_route(index, destination, table=OTHER_TABLE)
            assert recent.known() is None
    settled(recent)


def test_another_namespace_is_another_matter(testbed: Testbed, recent: SnapshotCache) -> None:
    client = recent.read(anew=False)
    with testbed.server.entered():
        assert recent.known() is None
        server = recent.read(anew=False)
        assert addresses(server) != addresses(client)
    assert recent.known() is None
    assert addresses(recent.read(anew=False)) == addresses(client)


def test_a_child_process_does_not_take_what_its_parent_has_to_hear(recent: SnapshotCache) -> None:
    first = recent.read(anew=False)
    child = os.fork()
    if not child:
        os._exit(recent.known() is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert recent.known() is first


def test_whoever_cannot_wait_is_not_kept_waiting_by_a_reader(
    recent: SnapshotCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    real = module.snapshot

    def slow(kernel: NetlinkSocket) -> Snapshot:
        reading.set()
        assert go_on.wait(10)
        return real(kernel)

    recent.read(anew=False)
    monkeypatch.setattr(module, "snapshot", slow)
    reader = threading.Thread(target=recent.read, kwargs={"anew": True})
    reader.start()
    assert reading.wait(10)
    assert recent.known() is None
    go_on.set()
    reader.join(10)
    assert recent.known() is not None
