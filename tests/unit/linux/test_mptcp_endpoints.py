"""Endpoints of the host: lent to who needs them, shared, and put back whatever happens."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multi.linux import mptcp_endpoints
from multi.linux.mptcp_endpoints import EndpointLease
from multi.linux.mptcp_pm import FLAG_SUBFLOW, Endpoint, MptcpAddress
from tests.unit.linux.fake_mptcp import ETH, WLAN, Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MPTCP path managers exist on Linux only")

NOTHING: dict[str, object] = {"endpoints": {}}


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(mptcp_endpoints, "time", clock)
    return clock


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mptcp_endpoints, "_directory", lambda: tmp_path)
    return tmp_path / "added"


def lease(places: list[MptcpAddress]) -> EndpointLease:
    made = EndpointLease()
    try:
        made.use(places)
    except OSError:
        made.release()
        raise
    return made


def addresses(kernel: Kernel) -> list[str]:
    return [endpoint.address for endpoint in kernel.present]


def test_what_was_added_goes_with_the_last_who_uses_it(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel().install(monkeypatch)
    first, second = lease([WLAN]), lease([WLAN])
    assert addresses(kernel) == ["10.0.2.2"]
    first.release()
    first.release()
    assert addresses(kernel) == ["10.0.2.2"]
    second.release()
    assert addresses(kernel) == []
    assert json.loads(record.read_text()) == NOTHING


def test_what_another_process_uses_stays(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel().install(monkeypatch)
    lent = lease([WLAN])
    with (record.parent / "users").open() as another:
        fcntl.flock(another, fcntl.LOCK_SH)
        lent.release()
        assert addresses(kernel) == ["10.0.2.2"]
        following = lease([ETH])
        assert addresses(kernel) == ["10.0.2.2", "10.0.1.2"]
    following.release()
    assert addresses(kernel) == []


def test_the_next_one_takes_away_what_a_killed_process_left(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(Endpoint("10.0.2.2", 3, 1, FLAG_SUBFLOW)).install(monkeypatch)
    record.write_text(json.dumps({"endpoints": {"10.0.2.2": [3, 5.0]}}))
    lent = lease([ETH])
    assert addresses(kernel) == ["10.0.1.2"]
    assert kernel.removed == ["10.0.2.2"]
    lent.release()
    assert addresses(kernel) == []


def test_what_another_program_may_have_its_only_subflow_by_is_left_to_the_next_one(
    record: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel().install(monkeypatch)
    first = lease([ETH, WLAN])
    kernel.begun = {"10.0.2.2"}
    first.release()
    assert addresses(kernel) == ["10.0.2.2"]
    assert "MPTCP endpoint 10.0.2.2 is left" in caplog.text
    second = lease([ETH])
    assert addresses(kernel) == ["10.0.2.2", "10.0.1.2"]
    kernel.begun.clear()
    second.release()
    assert addresses(kernel) == []
    assert json.loads(record.read_text()) == NOTHING


def test_a_forked_child_gives_nothing_back_that_its_parent_uses(tmp_path: Path) -> None:
    """A kernel of its own for each process: the child would take the endpoint away and write so."""
    program = """
import os, sys
from pathlib import Path
from multi.linux import mptcp_endpoints
from tests.unit.linux.fake_mptcp import WLAN, Kernel
kernel = Kernel()
mptcp_endpoints.MptcpPathManager = lambda: kernel
mptcp_endpoints._directory = lambda: Path(sys.argv[1])
lease = mptcp_endpoints.EndpointLease()
lease.use([WLAN])
if not os.fork():
    sys.exit()
os.wait()
print(Path(sys.argv[1], "added").read_text())
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert list(json.loads(done.stdout)["endpoints"]) == ["10.0.2.2"]
    assert json.loads((tmp_path / "added").read_text()) == NOTHING


def test_what_an_administrator_has_set_up_is_used_and_left_alone(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Endpoint("10.0.2.2", 0, 1, FLAG_SUBFLOW)
    kernel = Kernel(theirs).install(monkeypatch)
    lent = lease([WLAN])
    lent.renew(WLAN, usable=True)
    lent.renew(WLAN, usable=False)
    lent.release()
    assert kernel.present == [theirs]
    assert kernel.removed == []


def test_an_endpoint_for_another_purpose_is_not_touched(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Endpoint("10.0.2.2", 3, 1, 1)
    kernel = Kernel(theirs).install(monkeypatch)
    with pytest.raises(FileExistsError, match="for another purpose"):
        lease([ETH, WLAN])
    assert kernel.present == [theirs]
    assert json.loads(record.read_text()) == NOTHING


def test_without_privilege_only_what_is_there_can_be_used(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(Endpoint("10.0.2.2", 3, 1, FLAG_SUBFLOW), privileged=False).install(monkeypatch)
    lease([WLAN]).release()
    with pytest.raises(PermissionError):
        lease([ETH])
    assert len(kernel.present) == 1
    assert json.loads(record.read_text()) == NOTHING


def test_what_a_process_left_that_was_allowed_more_is_no_obstacle(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(Endpoint("10.0.2.2", 3, 1, FLAG_SUBFLOW), privileged=False).install(monkeypatch)
    left = {"endpoints": {"10.0.2.2": [3, 5.0]}}
    record.write_text(json.dumps(left))
    lease([WLAN]).release()
    assert len(kernel.present) == 1
    assert json.loads(record.read_text()) == left


@pytest.mark.parametrize("content", [b"{", b"[]", b"[{}]", b'{"endpoints": 3}', b"3", b"\xff\xfe"])
def test_a_damaged_record_stops_nobody(record: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel().install(monkeypatch)
    record.write_bytes(content)
    lease([WLAN]).release()
    assert kernel.present == []
    assert json.loads(record.read_text()) == NOTHING


def test_what_several_connections_want_renewed_at_once_is_renewed_once(
    record: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel().install(monkeypatch)
    first, second = lease([WLAN]), lease([WLAN])
    clock.now += 5
    first.renew(WLAN, usable=True)
    second.renew(WLAN, usable=True)
    assert kernel.removed == ["10.0.2.2"]
    clock.now += 5
    second.renew(WLAN, usable=True)
    assert kernel.removed == ["10.0.2.2"] * 2
    assert addresses(kernel) == ["10.0.2.2"]
    for lent in (first, second):
        lent.release()


def test_a_first_subflow_that_needs_no_endpoint_ends_with_one(
    record: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel().install(monkeypatch)
    lent = lease([WLAN])
    lent.renew(ETH, usable=True)
    assert kernel.removed == []
    lent.renew(ETH, usable=False)
    clock.now += 5
    kernel.removed.clear()
    lent.renew(ETH, usable=True, stuck=True)
    assert kernel.removed == ["10.0.1.2"]
    assert addresses(kernel) == ["10.0.2.2", "10.0.1.2"]
    lent.release()
    assert addresses(kernel) == []


def test_what_was_given_up_is_renewed_at_once(record: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel().install(monkeypatch)
    lent = lease([WLAN])
    lent.renew(WLAN, usable=False)
    assert addresses(kernel) == []
    lent.renew(WLAN, usable=True)
    assert addresses(kernel) == ["10.0.2.2"]
    lent.release()
    lent.renew(WLAN, usable=False)
    lent.renew(WLAN, usable=True)
    assert addresses(kernel) == []


def test_an_interface_with_a_new_number_gets_a_new_endpoint(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel().install(monkeypatch)
    lent = lease([WLAN])
    lent.renew(MptcpAddress(9, WLAN.address), usable=True)
    assert [(endpoint.address, endpoint.index) for endpoint in kernel.present] == [(WLAN.address, 9)]
    lent.release()
    assert kernel.present == []


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel().install(monkeypatch)
    monkeypatch.setattr(mptcp_endpoints, "Path", lambda _name: tmp_path)
    lease([WLAN]).release()
    (directory,) = tmp_path.iterdir()
    directory.chmod(0o777)
    with pytest.raises(PermissionError, match="only this user"):
        lease([WLAN])
    assert os.listdir(directory)
