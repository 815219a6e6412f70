"""Keeps the subflows of one MPTCP connection over several interfaces. Linux only.

Decides when a subflow is made, made again or given up, from what the kernel says about those there are and what the
interfaces look like. How to ask the path manager is the business of `multi.linux.mptcp_pm`. Nothing here waits: a
check takes some system calls, and what may take the kernel longer is done in a thread.

Under a userspace path manager subflows are made one by one and a stuck one is replaced by a fresh one, because the
kernel backs off for up to two minutes and MPTCP sockets do not have TCP's means against that. The kernel's path
manager makes subflows when a connection is set up or an endpoint is added, and never replaces one: there the
endpoint is taken away and added again, which concerns all connections of the host and is therefore done sparingly.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from multi.discovery.resources import in_thread, start_in_thread
from multi.linux.mptcp_endpoints import EndpointLease, lease_endpoints
from multi.linux.mptcp_pm import (
    USERSPACE,
    MptcpAddress,
    SubflowName,
    address_of,
    path_manager_type,
    why_no_subflows,
)
from multi.transports.mptcp.info import ESTABLISHED, SYN_SENT, MptcpInfo, subflow_names
from multi.transports.sockets import words
from multi.transports.tcp.info import TcpInfo
from multi.types import Candidate, Source

logger = logging.getLogger("multi.transports")

CHECK_FIRST = 0.005  # seconds; a connection that was just opened is established within a round trip or so
CHECK_INTERVAL = 0.25  # seconds; an interface that is usable again must have its subflow within one
CHECK_DOUBTFUL = 0.05  # seconds, while a subflow has repeated something in vain
STUCK_RETRANSMITS = 2  # unanswered retransmissions in a row: the path is dead, not slow
SYN_PATIENCE = 3.0  # seconds for a subflow to be answered before another attempt
ACCEPTED_SUBFLOWS = 2  # besides the first: clients with three interfaces, and the default of Linux
RETRY_FIRST = 0.5  # seconds until a subflow that could not be made or did not last is tried again
MAX_RETRY = 2.0
MAX_RENEW = 60.0  # of endpoints, whose renewal interrupts other connections

Flows = dict[SubflowName, TcpInfo]


@dataclass(slots=True)
class _Wanted:
    """An interface that should have a subflow."""

    source: Source
    address: MptcpAddress | None = None
    """Where its subflow was last seen or made."""
    absent: str = ""
    """Why it cannot have one now."""
    stale: frozenset[SubflowName] = frozenset()
    """Subflows to be given up as soon as another one works."""
    asked_at: float = -math.inf
    delay: float = RETRY_FIRST


async def lease_subflows(candidate: Candidate) -> tuple[EndpointLease | None, str]:
    """What is needed on this host for the further subflows of a candidate, or why they cannot be made.

    To be called before the socket is made. Cancelling it borrows nothing.
    """
    work = asyncio.ensure_future(in_thread(_lease, candidate))
    try:
        return await asyncio.shield(work)
    except OSError as error:
        return None, words(error)
    except asyncio.CancelledError:
        work.add_done_callback(_release_unwanted)
        raise


def _lease(candidate: Candidate) -> tuple[EndpointLease | None, str]:
    reason = why_no_subflows(candidate)
    if reason:
        return None, reason
    places: list[MptcpAddress] = []
    if path_manager_type() != USERSPACE:
        found = [address_of(source, candidate.family) for source in candidate.more_sources]
        places = [place for place in found if isinstance(place, MptcpAddress)]
    return lease_endpoints(places, len(places)), ""


def lease_acceptance() -> tuple[EndpointLease | None, str]:
    """See that this host accepts the further subflows of its clients, or why it will not take all of them."""
    manager = path_manager_type()
    lease: EndpointLease | None = None
    try:
        if manager == USERSPACE:
            lease = lease_endpoints(())
            lease.manager.accept_subflows()
        else:
            lease = lease_endpoints((), ACCEPTED_SUBFLOWS)
    except OSError as error:
        if lease is not None:
            lease.release()
        if error.errno in (errno.EPERM, errno.EACCES):
            what = "hearing the userspace path manager's events" if manager == USERSPACE else "raising the limit"
            return None, f"{what} needs CAP_NET_ADMIN"
        if error.errno == errno.ENOENT:  # a kernel without path managers to talk to; it does as it likes
            return None, ""
        return None, words(error)
    return lease, ""


def _release_unwanted(work: asyncio.Future[tuple[EndpointLease | None, str]]) -> None:
    if not work.cancelled() and work.exception() is None and (lease := work.result()[0]) is not None:
        release_subflows(lease)


def release_subflows(lease: EndpointLease) -> None:
    """Give back without making the event loop wait."""
    try:
        asyncio.get_running_loop().run_in_executor(None, lease.release)
    except RuntimeError:  # the loop is ending
        lease.release()


class _Userspace:
    """Subflows of one connection under a userspace path manager: each is asked for, and may be closed, by itself."""

    max_delay = MAX_RETRY

    def __init__(self, lease: EndpointLease, candidate: Candidate, first: MptcpAddress | None) -> None:
        self._kernel, self._candidate = lease.manager, candidate
        self._numbers = cycle(range(1, 256))
        self._ids = {first.address: 0} if first is not None else {}
        """Address -> what the peer knows it by: 0 is the first subflow's (RFC 8684 section 3.2)."""

    def make(self, address: MptcpAddress, own: Flows, others: bool, token: int) -> bool:
        """False: it is too early, because the peer has not acknowledged anything yet."""
        if others:
            self._withdraw(address, token)
        # The connection must keep one that is established, if only to be found again by.
        self.drop([name for name, flow in own.items() if others or flow.state != ESTABLISHED], token)
        if not self._ids.get(address.address):
            self._ids[address.address] = next(self._numbers)
        id, remote = self._ids[address.address], (self._candidate.remote_address, self._candidate.remote_port)
        try:
            self._kernel.create_subflow(token, address, id, *remote)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                return False
            logger.info("MPTCP subflow from %s not made: %s", address.address, words(error))
        else:
            logger.info("MPTCP subflow from %s asked for", address.address)
        return True

    def give_up(self, address: MptcpAddress, own: Flows, token: int) -> None:
        self._withdraw(address, token)
        self.drop(own, token)

    def drop(self, names: Iterable[SubflowName], token: int) -> None:
        for name in names:
            try:
                self._kernel.destroy_subflow(token, name)
            except OSError as error:
                logger.debug("MPTCP subflow from %s not closed: %s", name.local, words(error))

    def _withdraw(self, address: MptcpAddress, token: int) -> None:
        """The peer forgets what it has from this address; what comes next has another number."""
        id = self._ids.pop(address.address, None)
        if id is None:
            return
        try:
            self._kernel.withdraw_address(token, id)
        except OSError as error:
            logger.debug("MPTCP address %s not withdrawn: %s", address.address, words(error))


class _KernelEndpoints:
    """The same under the kernel's path manager, by endpoints, which concern all connections of the host.

    Changed in a thread: other processes may hold the lock, and the kernel takes some milliseconds.
    """

    max_delay = MAX_RENEW

    def __init__(self, lease: EndpointLease, in_thread: Callable[[Callable[[], None]], None]) -> None:
        self._lease, self._in_thread = lease, in_thread

    def make(self, address: MptcpAddress, own: Flows, others: bool, token: int) -> bool:
        if others:  # else the kernel goes on trying with what there is
            logger.info("MPTCP endpoint %s is added anew", address.address)
            self._in_thread(partial(self._lease.renew, address))
        return True

    def give_up(self, address: MptcpAddress, own: Flows, token: int) -> None:
        self._in_thread(partial(self._lease.suspend, address))

    def drop(self, names: Iterable[SubflowName], token: int) -> None:
        """The kernel closes none for us."""


class SubflowManager:
    """One per connection; made when it is connected. `stop` gives back what was borrowed from the host."""

    def __init__(
        self,
        candidate: Candidate,
        lease: EndpointLease | None,
        reason: str,
        read: Callable[[], MptcpInfo | None],
    ) -> None:
        """`reason`: why there can be no further subflows. `read` says how the connection is; None: not MPTCP."""
        self._loop = asyncio.get_running_loop()
        self._family, self._lease, self._reason, self._read = candidate.family, lease, reason, read
        self._changes: _Userspace | _KernelEndpoints | None = None
        """How subflows are changed; None where this process may change nothing."""
        first = Source(candidate.interface, candidate.local_address, candidate.kind)
        self._wanted = [_Wanted(source) for source in (first, *candidate.more_sources) if source.interface]
        self._interfaces: dict[str, str] = {}  # by address
        self._ready = self._stopped = False
        self._changing = 0
        self._interval = CHECK_FIRST
        for wanted in self._wanted:
            try:
                self._look(wanted)
            except OSError as error:
                wanted.absent = f"{wanted.source.interface}: {words(error)}"
        if lease is not None and lease.permitted:
            if path_manager_type() == USERSPACE:
                self._changes = _Userspace(lease, candidate, self._wanted[0].address if first.interface else None)
            else:
                self._changes = _KernelEndpoints(lease, self._in_thread)
        self._timer = self._loop.call_later(CHECK_FIRST, self._on_timer)

    def stop(self) -> None:
        self._stopped = True
        self._timer.cancel()
        lease = self._lease
        if lease is not None and not self._changing:
            self._lease = None
            release_subflows(lease)

    def describe(self, kernel: MptcpInfo) -> str:
        """`eth0, wlan0`, and what is missing with its reason."""
        flows = _flows(kernel).items()
        live = {self._interfaces.get(name.local, name.local) for name, flow in flows if flow.state == ESTABLISHED}
        here = [wanted.source.interface for wanted in self._wanted if wanted.source.interface in live]
        said = [", ".join([*here, *sorted(live.difference(here))])] if live else []
        why = f": {self._reason}" if self._reason else ""
        missing = [wanted for wanted in self._wanted if wanted.source.interface not in live]
        return "; ".join([*said, *(one.absent or f"none over {one.source.interface}{why}" for one in missing)])

    def _on_timer(self) -> None:
        kernel = self._read()
        if self._stopped:
            return
        if kernel is None:
            self.stop()
            return
        now = self._loop.time()
        if self._ready:
            doubtful = any(flow.retransmits for flow in kernel.subflows)
            self._interval = CHECK_DOUBTFUL if doubtful else CHECK_INTERVAL
        elif kernel.acknowledged:
            self._ready, self._interval = True, CHECK_FIRST
            if isinstance(self._changes, _KernelEndpoints):
                # The kernel makes those whose endpoints were there before the connection by itself: give it time.
                for wanted in self._wanted:
                    wanted.asked_at = now
        else:
            self._interval = min(self._interval * 1.5, CHECK_INTERVAL)
        if self._ready and not self._changing:
            try:
                for wanted in self._wanted:
                    self._keep(wanted, kernel, now)
            except OSError as error:  # a shortage, which tells nothing of the interfaces
                logger.debug("MPTCP subflows not looked at: %s", words(error))
        self._timer = self._loop.call_later(self._interval, self._on_timer)

    def _look(self, wanted: _Wanted) -> bool:
        """Whether a subflow can leave from the interface now, and if so, whether from another place than before."""
        found, before, absent = address_of(wanted.source, self._family), wanted.address, wanted.absent
        if isinstance(found, str):
            wanted.absent = found
            return False
        wanted.absent, wanted.address = "", found
        self._interfaces[found.address] = wanted.source.interface
        return bool(absent) or before not in (None, found)

    def _keep(self, wanted: _Wanted, kernel: MptcpInfo, now: float) -> None:
        """See that the interface has a subflow that works, if it can have one."""
        absent, moved, changes = wanted.absent, self._look(wanted), self._changes
        flows, address = _flows(kernel), wanted.address
        if changes is None or address is None:
            return
        own = {name: flow for name, flow in flows.items() if name.local == address.address}
        others = any(_works(flow) for name, flow in flows.items() if name not in own)
        if wanted.absent:
            if not absent and own and others:
                # It cannot carry anything: have what is in flight there sent over the others now.
                logger.info("MPTCP subflow given up: %s", wanted.absent)
                changes.give_up(address, own, kernel.token)
            return
        if moved:
            # Whatever was there before has backed off, or is tied to an interface that is no more.
            wanted.stale, wanted.asked_at, wanted.delay = frozenset(own), -math.inf, RETRY_FIRST
        fresh = {name: flow for name, flow in own.items() if name not in wanted.stale}
        working = [name for name, flow in fresh.items() if _works(flow)]
        if working:
            changes.drop([name for name in own if name not in working], kernel.token)
            wanted.stale, wanted.delay = frozenset(), RETRY_FIRST
            return
        asking = any(flow.state == SYN_SENT for flow in fresh.values())
        if now < wanted.asked_at + max(wanted.delay, SYN_PATIENCE if asking else 0.0):
            return
        if not changes.make(address, own, others, kernel.token):
            self._interval = CHECK_FIRST  # the acknowledgement is on its way
            return
        wanted.asked_at, wanted.delay = now, min(wanted.delay * 2, changes.max_delay)
        wanted.stale = frozenset(own) if isinstance(changes, _Userspace) else frozenset()

    def _in_thread(self, change: Callable[[], None]) -> None:
        try:
            changing = start_in_thread(self._loop, change)
        except OSError as error:  # there is no thread to be had; the next check asks again
            logger.info("MPTCP endpoint not changed: %s", words(error))
            return
        self._changing += 1
        changing.add_done_callback(self._changed)

    def _changed(self, done: asyncio.Future[None]) -> None:
        self._changing -= 1
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.info("MPTCP endpoint not changed: %s", error)
        if self._stopped:
            self.stop()


def _flows(kernel: MptcpInfo) -> Flows:
    return dict(zip(subflow_names(kernel.names), kernel.subflows, strict=False))


def _works(flow: TcpInfo) -> bool:
    return flow.state == ESTABLISHED and flow.retransmits < STUCK_RETRANSMITS
