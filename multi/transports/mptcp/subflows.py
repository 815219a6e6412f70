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
    sources_of,
    why_no_subflows,
)
from multi.transports.mptcp.info import ESTABLISHED, SYN_SENT, MptcpInfo, subflow_names
from multi.transports.sockets import words
from multi.transports.tcp.info import TcpInfo
from multi.types import Candidate, Source

__all__ = ["SubflowManager", "lease_acceptance", "lease_subflows", "release_subflows"]

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


@dataclass(slots=True)
class _Wanted:
    """An interface that should have a subflow."""

    source: Source
    place: MptcpAddress | None = None
    """Where its subflow was last seen or made."""
    absent: str = ""
    """Why it cannot have one now."""
    stale: frozenset[SubflowName] = frozenset()
    """Subflows to be given up as soon as another one works."""
    try_at: float = 0.0
    delay: float = RETRY_FIRST
    asked_at: float = 0.0


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
        found = [address_of(source, candidate.family) for source in sources_of(candidate)]
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
        self._candidate = candidate
        self._lease = lease
        self._reason = reason
        self._read = read
        self._by_request = path_manager_type() == USERSPACE
        first = Source(candidate.interface, candidate.local_address, candidate.kind)
        self._wanted = [_Wanted(source) for source in (first, *sources_of(candidate)) if source.interface]
        self._names: dict[str, str] = {}  # address -> interface
        self._ids: dict[str, int] = {}  # address -> what the peer knows it by
        self._numbers = cycle(range(1, 256))
        self._ready = False
        self._changing = 0
        self._stopped = False
        self._interval = CHECK_FIRST
        for wanted in self._wanted:
            try:
                place = address_of(wanted.source, candidate.family)
            except OSError as error:
                place = f"{wanted.source.interface}: {words(error)}"
            if isinstance(place, MptcpAddress):
                wanted.place = place
                self._names[place.address] = wanted.source.interface
            else:
                wanted.absent = place
        if first.interface and self._wanted[0].place is not None:
            self._ids[self._wanted[0].place.address] = 0  # what the first subflow has (RFC 8684 section 3.2)
        self._timer = self._loop.call_later(CHECK_FIRST, self._on_timer)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._timer.cancel()
        if not self._changing:
            self._give_back()

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            release_subflows(lease)

    def describe(self, kernel: MptcpInfo) -> str:
        """`eth0, wlan0`, and what is missing with its reason."""
        live = {self._names.get(name.local, name.local) for name, flow in _flows(kernel) if flow.state == ESTABLISHED}
        here = [wanted.source.interface for wanted in self._wanted if wanted.source.interface in live]
        missing = [wanted for wanted in self._wanted if wanted.source.interface not in live]
        words = [", ".join([*here, *sorted(live.difference(here))])] if live else []
        for wanted in missing:
            words.append(
                wanted.absent or f"none over {wanted.source.interface}" + (self._reason and ": " + self._reason)
            )
        return "; ".join(words)

    def _on_timer(self) -> None:
        kernel = self._read()
        if self._stopped:
            return
        if kernel is None:
            self.stop()
            return
        if self._ready:
            doubtful = any(flow.retransmits for flow in kernel.subflows)
            self._interval = CHECK_DOUBTFUL if doubtful else CHECK_INTERVAL
        elif kernel.acknowledged:
            self._ready, self._interval = True, CHECK_FIRST
        else:
            self._interval = min(self._interval * 1.5, CHECK_INTERVAL)
        if self._ready and not self._changing:
            try:
                self._check(kernel, self._loop.time())
            except OSError as error:  # a shortage, which tells nothing of the interfaces
                logger.debug("MPTCP subflows not looked at: %s", words(error))
        self._timer = self._loop.call_later(self._interval, self._on_timer)

    def _check(self, kernel: MptcpInfo, now: float) -> None:
        flows = _flows(kernel)
        for wanted in self._wanted:
            place = address_of(wanted.source, self._candidate.family)
            if isinstance(place, str):
                if not wanted.absent:
                    logger.info("MPTCP subflow given up: %s", place)
                    self._give_up(wanted.place, flows, kernel)
                wanted.absent = place
                continue
            own = {name: flow for name, flow in flows if name.local == place.address}
            others = any(_works(flow) for name, flow in flows if name not in own)
            if wanted.absent or (wanted.place is not None and wanted.place != place):
                # Whatever was there before has backed off, or is tied to an interface that is no more.
                wanted.stale = frozenset(own)
                wanted.try_at, wanted.delay = now, RETRY_FIRST
            wanted.absent, wanted.place = "", place
            self._names[place.address] = wanted.source.interface
            working = [name for name, flow in own.items() if _works(flow) and name not in wanted.stale]
            if working:
                self._drop([name for name in own if name not in working], kernel)
                wanted.stale, wanted.delay = frozenset(), RETRY_FIRST
                continue
            fresh = any(flow.state == SYN_SENT for name, flow in own.items() if name not in wanted.stale)
            if fresh and not wanted.asked_at:
                wanted.asked_at = now  # the kernel has
            if now >= (max(wanted.try_at, wanted.asked_at + SYN_PATIENCE) if fresh else wanted.try_at):
                self._make(wanted, place, own, others, kernel, now)

    def _give_up(self, place: MptcpAddress | None, flows: list[tuple[SubflowName, TcpInfo]], kernel: MptcpInfo) -> None:
        """The interface cannot carry anything: have what is in flight there sent over the others now."""
        lease = self._lease
        if lease is None or not lease.permitted or place is None:
            return
        own = [name for name, _flow in flows if name.local == place.address]
        if not own or not any(_works(flow) for name, flow in flows if name not in own):
            return
        if self._by_request:
            self._withdraw(lease, place, kernel)
            self._drop(own, kernel)
        else:
            self._in_thread(lease.suspend, place)

    def _make(
        self,
        wanted: _Wanted,
        place: MptcpAddress,
        own: dict[SubflowName, TcpInfo],
        others: bool,
        kernel: MptcpInfo,
        now: float,
    ) -> None:
        """Have a subflow made from a place that has none that works; `others`: some other subflow works."""
        lease = self._lease
        if lease is None or not lease.permitted:
            return
        if not self._by_request:
            self._renew(lease, wanted, place, own, others, now)
            return
        wanted.try_at, wanted.asked_at = now + wanted.delay, now
        wanted.delay = min(wanted.delay * 2, MAX_RETRY)
        if others:
            self._withdraw(lease, place, kernel)
        # The connection must keep one that is established, if only to be found again by.
        self._drop([name for name, flow in own.items() if others or flow.state != ESTABLISHED], kernel)
        wanted.stale = frozenset(own)
        self._create(lease, wanted, place, kernel)

    def _withdraw(self, lease: EndpointLease, place: MptcpAddress, kernel: MptcpInfo) -> None:
        """The peer forgets what it has from this place; what comes next has another number."""
        id = self._ids.pop(place.address, None)
        if id is None:
            return
        try:
            lease.manager.withdraw_address(kernel.token, id)
        except OSError as error:
            logger.debug("MPTCP address %s not withdrawn: %s", place.address, words(error))

    def _create(self, lease: EndpointLease, wanted: _Wanted, place: MptcpAddress, kernel: MptcpInfo) -> None:
        candidate, name = self._candidate, wanted.source.interface
        id = self._ids.get(place.address, 0)
        if not id:
            id = self._ids[place.address] = next(self._numbers)
        try:
            lease.manager.create_subflow(kernel.token, place, id, candidate.remote_address, candidate.remote_port)
        except OSError as error:
            if error.errno == errno.ENOTCONN:  # the acknowledgement is on its way
                wanted.try_at, self._ready, self._interval = 0.0, False, CHECK_FIRST
                return
            logger.info("MPTCP subflow over %s not made: %s", name, words(error))
        else:
            logger.info("MPTCP subflow over %s asked for", name)

    def _drop(self, names: Iterable[SubflowName], kernel: MptcpInfo) -> None:
        if not self._by_request or self._lease is None:
            return
        for name in names:
            try:
                self._lease.manager.destroy_subflow(kernel.token, name)
            except OSError as error:
                logger.debug("MPTCP subflow from %s not closed: %s", name.local, words(error))

    def _renew(
        self,
        lease: EndpointLease,
        wanted: _Wanted,
        place: MptcpAddress,
        own: dict[SubflowName, TcpInfo],
        others: bool,
        now: float,
    ) -> None:
        if not wanted.asked_at and not own:
            # The kernel makes those whose endpoints were there before the connection by itself: give it time.
            wanted.asked_at, wanted.try_at = now, now + RETRY_FIRST
            return
        wanted.try_at, wanted.asked_at = now + wanted.delay, now
        wanted.delay = min(wanted.delay * 2, MAX_RENEW)
        if not others:
            return  # the kernel goes on trying with what there is
        wanted.stale = frozenset()
        logger.info("MPTCP endpoint of %s is added anew", wanted.source.interface)
        self._in_thread(lease.renew, place)

    def _in_thread(self, change: Callable[[MptcpAddress], None], place: MptcpAddress) -> None:
        # Other processes may hold the lock, and the kernel takes some milliseconds.
        try:
            changing = start_in_thread(self._loop, partial(change, place))
        except OSError as error:  # there is no thread to be had; the next check asks again
            logger.info("MPTCP endpoint not changed: %s", words(error))
            return
        self._changing += 1
        changing.add_done_callback(self._changed)

    def _changed(self, done: asyncio.Future[None]) -> None:
        self._changing -= 1
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.info("MPTCP endpoint not changed: %s", error)
        if self._stopped and not self._changing:
            self._give_back()


def _flows(kernel: MptcpInfo) -> list[tuple[SubflowName, TcpInfo]]:
    return list(zip(subflow_names(kernel.names), kernel.subflows, strict=False))


def _works(flow: TcpInfo) -> bool:
    return flow.state == ESTABLISHED and flow.retransmits < STUCK_RETRANSMITS
