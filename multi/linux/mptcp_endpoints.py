"""Endpoints of the kernel's MPTCP path manager, lent to the connections that need them.

They belong to the host, not to a connection: what was added is recorded in a file that all processes of this user
share, and taken away when the last connection that uses any of it has ended. What an administrator has set up is used
and left alone. Who uses something holds a lock that the system drops when a process is killed: so whoever comes next
finds that nobody uses what the record names, and takes it away. With an endpoint the kernel ends all subflows from
there, those of other programs too: where one may have no other it stays, and is left to whoever comes next as well.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ValidationError

from multi.discovery.namespace import namespace
from multi.linux.mptcp_pm import Endpoint, MptcpAddress, MptcpPathManager
from multi.linux.mptcp_sockets import MptcpSockets

logger = logging.getLogger("multi.linux")

RENEWED_RECENTLY = 1.0  # seconds


class _Added(BaseModel):
    """What this host would not have without us."""

    endpoints: dict[str, tuple[int, float]] = {}
    """Address -> index of its interface, and when it was last added (the monotonic clock, one for all processes)."""


class EndpointLease:
    """What one connection uses. Belongs to the network namespace it was made in; its methods may run in any thread.

    They take a few milliseconds where something is added or taken away, or another process is about to. They raise
    OSError: EPERM where this process may not, and what it would rely on is not there.
    """

    def __init__(self) -> None:
        directory = _directory()
        self._record = directory / "added"
        with contextlib.ExitStack() as undo:
            self._kernel = undo.enter_context(MptcpPathManager())
            self._sockets = undo.enter_context(MptcpSockets())
            self._users = undo.enter_context(_opened(directory / "users"))
            self._opened = undo.pop_all()
        _leases.add(self)

    def use(self, places: Iterable[MptcpAddress]) -> None:
        """See that the kernel makes subflows from these places.

        To be called before the socket is made: the kernel decides then whether a connection will ever have subflows.
        """
        with self._added() as added:
            if self not in _leases:
                return
            if _alone(self._users):
                self._take_away(added)
            fcntl.flock(self._users, fcntl.LOCK_SH)
            for place in places:
                self._use(added, place)

    def renew(self, place: MptcpAddress, *, usable: bool, stuck: bool = False) -> None:
        """Take the endpoint away, and add it again if a subflow can leave from there.

        `stuck`: one is there that has to end, as where it is not `usable`.

        The kernel gives up the subflows from there then, and what they had in flight goes over the others; it never
        makes one anew by itself. Other connections' subflows end and begin too, so what several connections ask for at
        once is done once, and an administrator's endpoint is left alone.
        """
        with self._added() as added:
            index, when = added.endpoints.get(place.address, (0, 0.0))
            recently = index == place.index and time.monotonic() < when + RENEWED_RECENTLY
            if self not in _leases or (usable and recently):
                return
            if stuck or not usable:
                self._use(added, place)  # the first subflow of a connection needs none, and ends with one all the same
            if place.address in added.endpoints:
                self._remove(added, place.address)
            if usable:
                self._use(added, place)

    def release(self) -> None:
        """Give everything back; a second time does nothing."""
        if self not in _leases:
            return
        _leases.discard(self)
        try:
            with self._added() as added:
                if _alone(self._users):
                    self._take_away(added)
        except OSError as error:
            logger.warning("MPTCP endpoints could not be taken away again: %s", error)
        finally:
            self._opened.close()

    def _use(self, added: _Added, place: MptcpAddress) -> None:
        """See that the kernel makes subflows from there."""
        if added.endpoints.get(place.address, (place.index,))[0] != place.index:
            # The interface has vanished and come back with another number: the endpoint would never fit again.
            self._remove(added, place.address)
        present = self._present(place.address)
        if any(endpoint.fits(place) for endpoint in present):
            return
        if present:
            # Subflows are not what it is for, or it is tied to another interface: not ours to change.
            raise FileExistsError(errno.EEXIST, f"the MPTCP endpoint {place.address} is there for another purpose")
        self._kernel.add_endpoint(place.address, place.index)
        added.endpoints[place.address] = place.index, time.monotonic()
        logger.info("MPTCP endpoint %s added", place.address)

    def _remove(self, added: _Added, address: str) -> None:
        """Nothing that is not ours."""
        for endpoint in self._present(address):
            if endpoint.index == added.endpoints[address][0]:
                self._kernel.remove_endpoint(endpoint)
                logger.info("MPTCP endpoint %s removed", address)
        del added.endpoints[address]

    def _present(self, address: str) -> list[Endpoint]:
        return [endpoint for endpoint in self._kernel.endpoints() if endpoint.address == address]

    def _take_away(self, added: _Added) -> None:
        """All but what connections of other programs may hang on: without a subflow they would stand still for ever."""
        with contextlib.suppress(PermissionError):  # left by a process that was allowed more
            for address in list(added.endpoints):
                if self._sockets.begun_at(address):
                    logger.warning(
                        "MPTCP endpoint %s is left: a connection that began there would end with it", address
                    )
                else:
                    self._remove(added, address)

    @contextlib.contextmanager
    def _added(self) -> Iterator[_Added]:
        """The record, ours alone meanwhile; what was changed in it is written at the end, whatever happens."""
        with _opened(self._record) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                added = _Added.model_validate_json(file.read() or "{}")
            except (ValidationError, UnicodeDecodeError):
                logger.warning("the record of MPTCP endpoints was damaged; some may stay behind")
                added = _Added()
            try:
                yield added
            finally:
                file.seek(0)
                file.write(added.model_dump_json())
                file.truncate()


_leases: set[EndpointLease] = set()
os.register_at_fork(after_in_child=_leases.clear)  # they are the parent's


@atexit.register
def _release_all() -> None:
    for lease in list(_leases):
        lease.release()


def _alone(users: IO[str]) -> bool:
    """Whether nobody else holds the lock of those who use something; ours is dropped."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path) -> IO[str]:
    return open(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o600))


def _directory() -> Path:
    """One for each network namespace, which nobody else can enter; with the next boot it is gone. Raises OSError."""
    parent = Path("/run" if os.access("/run", os.W_OK) else "/dev/shm")
    directory = parent / f"multi-mptcp-{os.geteuid()}-{namespace()[1]}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, f"{directory} is not a directory only this user can write to")
    return directory
