"""Endpoints and limits of the kernel's MPTCP path manager, lent to the connections that need them.

They belong to the host, not to a connection: each is added when the first connection of any process needs it and
taken away when the last one has ended, and a limit that was raised is set back. What an administrator has set up is
used and left alone. Who uses what is written to a file next to a lock, so that several processes can share, and so
that whoever comes next takes away what a process that was killed has left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from multi.discovery.namespace import namespace
from multi.linux.mptcp_pm import MAX_SUBFLOWS, Endpoint, MptcpAddress, MptcpLimits, MptcpPathManager, fits

log = logging.getLogger("multi.linux")

RENEWED_RECENTLY = 1.0  # seconds

_numbers = count(1)
_renewed: dict[tuple[Path, MptcpAddress], float] = {}
_leases: set[EndpointLease] = set()


@dataclass(slots=True)
class _Change:
    """Something this host would not have without us, and who uses it: an endpoint, or a limit that was raised."""

    users: list[str]
    address: str = ""
    """Of an endpoint, with the index of its interface; empty = the limit of subflows."""
    index: int = 0
    before: int = 0
    set: int = 0


_Book = list[_Change]
"""What all processes together have changed on this host."""


def lease_endpoints(places: Sequence[MptcpAddress], subflows: int = 0) -> EndpointLease:
    """See that the kernel makes subflows from these places, and allows `subflows` or as many as there are endpoints.

    Call it before the socket is made: the kernel decides then whether a connection will ever have subflows. Takes a
    few milliseconds where something is to be added. Raises OSError: EPERM where this process may not, and what it
    would rely on is not there.
    """
    lease = EndpointLease()
    try:
        lease.extend(places, subflows)
    except BaseException:
        lease.release()
        raise
    return lease


class EndpointLease:
    """What one connection uses. Belongs to the network namespace it was made in. `release` it in any thread."""

    def __init__(self) -> None:
        self.manager = MptcpPathManager()
        self.permitted = self.manager.permitted()
        """Whether this process may change anything."""
        self._process = os.getpid()
        self._user = f"{_process_name(self._process)}:{next(_numbers)}"
        self._own: set[MptcpAddress] = set()
        self._file = _book_file()
        self._wrote = False
        _leases.add(self)

    def extend(self, places: Sequence[MptcpAddress], subflows: int = 0) -> None:
        """Use these places too. Raises OSError."""
        if not places and not subflows:
            return
        if not self.permitted:
            self._rely_on(places, subflows)
            return
        with _opened(self._file) as book:
            self._wrote = True
            _sweep(self.manager, book)
            for place in places:
                self._use(book, place)
            able = sum(endpoint.makes_subflows for endpoint in self.manager.endpoints())
            self._allow(book, min(max(subflows, able if places else 0), MAX_SUBFLOWS))

    def renew(self, place: MptcpAddress) -> None:
        """Take the endpoint away and add it again: the kernel then makes the subflows from there anew.

        It never does so by itself when a subflow has ended. Subflows of other connections end and begin too, so what
        several connections ask for at once is done once, and an administrator's endpoint is left alone. Raises OSError.
        """
        if place not in self._own:
            self.extend([place])
        if place not in self._own or time.monotonic() < _renewed.get((self._file, place), 0.0) + RENEWED_RECENTLY:
            return
        with _opened(self._file):
            self._remove(place)
            self.manager.add_endpoint(place.address, place.index)
            _renewed[self._file, place] = time.monotonic()

    def suspend(self, place: MptcpAddress) -> None:
        """Take the endpoint away until it is renewed, so that the kernel at once gives up the subflows from there.

        What they had in flight goes over the others then, not only when the kernel finds out. Raises OSError.
        """
        if place not in self._own:
            self.extend([place])
        if place in self._own:
            with _opened(self._file):
                self._remove(place)
                _renewed.pop((self._file, place), None)

    def release(self) -> None:
        """Give everything back; a second time does nothing."""
        if self not in _leases:
            return
        _leases.discard(self)
        try:
            if self._wrote and self._process == os.getpid():
                with _opened(self._file) as book:
                    for change in book:
                        change.users = [user for user in change.users if user != self._user]
                    _sweep(self.manager, book)
        except OSError as error:
            log.warning("MPTCP endpoints could not be taken away again: %s", error)
        finally:
            self.manager.close()

    def _rely_on(self, places: Sequence[MptcpAddress], subflows: int) -> None:
        endpoints = self.manager.endpoints()
        for place in places:
            if not any(fits(endpoint, place) for endpoint in endpoints):
                raise PermissionError(errno.EPERM, f"adding an MPTCP endpoint for {place.address} needs CAP_NET_ADMIN")
        if self.manager.limits().subflows < max(subflows, len(places)):
            raise PermissionError(errno.EPERM, "raising the limit of MPTCP subflows needs CAP_NET_ADMIN")

    def _remove(self, place: MptcpAddress) -> None:
        for endpoint in self.manager.endpoints():
            if fits(endpoint, place):
                _quietly_remove(self.manager, endpoint)

    def _use(self, book: _Book, place: MptcpAddress) -> None:
        known = next((change for change in book if change.address == place.address), None)
        present = [endpoint for endpoint in self.manager.endpoints() if endpoint.address == place.address]
        if known is None and any(fits(endpoint, place) for endpoint in present):
            return  # an administrator's
        if known is None and present:
            # Subflows are not what it is for, or it is tied to another interface: not ours to change.
            raise FileExistsError(errno.EEXIST, f"the MPTCP endpoint {place.address} is there for another purpose")
        if known is not None and known.index != place.index:
            # The interface has vanished and come back with another number: the endpoint would never fit again.
            for endpoint in present:
                _quietly_remove(self.manager, endpoint)
            known.index, present = place.index, []
        if not present:
            self.manager.add_endpoint(place.address, place.index)
            log.info("MPTCP endpoint %s added", place.address)
        if known is None:
            known = _Change([], place.address, place.index)
            book.append(known)
        if self._user not in known.users:
            known.users.append(self._user)
        self._own.add(place)

    def _allow(self, book: _Book, subflows: int) -> None:
        raised = next((change for change in book if not change.address), None)
        before = self.manager.raise_limits(subflows)
        if before is not None:
            log.info("limit of MPTCP subflows raised from %d to %d", before.subflows, subflows)
            if raised is None:
                raised = _Change([], before=before.subflows)
                book.append(raised)
            raised.set = subflows
        if raised is not None and raised.before < subflows and self._user not in raised.users:
            raised.users.append(self._user)  # perhaps of what another one has raised


@atexit.register
def _release_all() -> None:
    for lease in list(_leases):
        lease.release()


def _sweep(manager: MptcpPathManager, book: _Book) -> None:
    """Take away what nobody uses any more; those who were killed use nothing."""
    for change in list(book):
        change.users = [user for user in change.users if _lives(user)]
        if change.users:
            continue
        book.remove(change)
        if change.address:
            for endpoint in manager.endpoints():
                if (endpoint.address, endpoint.index) == (change.address, change.index):
                    _quietly_remove(manager, endpoint)
        elif (now := manager.limits()).subflows == change.set:  # else somebody else has changed it meanwhile
            manager.set_limits(MptcpLimits(change.before, now.add_addr_accepted))


def _quietly_remove(manager: MptcpPathManager, endpoint: Endpoint) -> None:
    try:
        manager.remove_endpoint(endpoint)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # somebody was faster
            raise
    log.info("MPTCP endpoint %s removed", endpoint.address)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Book]:
    """The book, ours alone meanwhile; what was changed in it is written at the end, whatever happens."""
    descriptor = _locked(path)
    try:
        book = _parsed(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        try:
            yield book
        finally:
            if book:
                written = json.dumps([asdict(change) for change in book]).encode()
                os.pwrite(descriptor, written, 0)
                os.ftruncate(descriptor, len(written))
            else:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Who had it before us may have removed the file between our two calls.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == path.stat().st_ino:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _parsed(data: bytes) -> _Book:
    try:
        return [_Change(list(map(str, change.pop("users"))), **change) for change in json.loads(data or b"[]")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        log.warning("the record of MPTCP endpoints was damaged; some may stay behind")
        return []


def _book_file() -> Path:
    """One for each network namespace and boot, in a directory nobody else can enter. Raises OSError."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        directory = Path("/run/multi")
    elif runtime and os.access(runtime, os.W_OK):
        directory = Path(runtime) / "multi"
    else:
        directory = Path(tempfile.gettempdir()) / f"multi-{os.geteuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, f"{directory} is not a directory only this user can write to")
    _, space = namespace()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return directory / f"mptcp-{boot}-{space}.json"


def _process_name(process: int) -> str:
    """`id:start`: the number alone is given to another process later. Empty start if there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else f"{process}:{fields[19].decode()}"
    except (OSError, IndexError):
        return ""


def _lives(user: str) -> bool:
    process, _, _rest = user.partition(":")
    return process.isdigit() and _process_name(int(process)) == user.rpartition(":")[0]
