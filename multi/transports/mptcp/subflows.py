"""Keeps the subflows of one MPTCP connection over several interfaces. Linux only.

Decides when a subflow is made again or given up, from what the kernel says about those there are and what the
interfaces look like. How to ask the path manager is the business of `multi.linux`. Nothing here waits: a check takes
some system calls, and what may take the kernel longer is done in a thread.

The kernel makes subflows when a connection is set up or an endpoint is added, and never replaces one: the endpoint is
taken away and added again then, which concerns all connections of the host and is therefore done sparingly. It also has
both ends send at once on other subflows what was in flight there, which a kernel that was left alone would begin after
seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multi.discovery.resources import in_thread
from multi.linux.mptcp_endpoints import EndpointLease
from multi.linux.mptcp_pm import (
    KERNEL,
    MptcpAddress,
    MptcpPathManager,
    address_of,
    limited,
    path_manager_type,
    why_no_subflows,
)
from multi.transports.mptcp.info import ESTABLISHED, MptcpInfo
from multi.transports.sockets import words
from multi.transports.tcp.info import TcpInfo
from multi.types import Candidate, Source

logger = logging.getLogger("multi.transports")

CHECK_INTERVAL = 0.25  # seconds; an interface that is usable again must have its subflow within one
CHECK_BUSY = 0.05  # seconds, until data has gone through, and while a subflow waits for acknowledgements
STUCK_RETRANSMITS = 2  # unanswered retransmissions in a row: the path is dead, not slow
STUCK_SLACK = 0.1  # seconds beyond a round trip and its variation: a late answer is no reason to interrupt others
ACCEPTED_SUBFLOWS = 2  # besides the first: clients with three interfaces, and the default of Linux
RETRY_FIRST = 0.5  # seconds until a subflow that could not be made or did not last is tried again
MAX_RETRY = 60.0  # renewing an endpoint interrupts other connections
KEPT = 8  # interfaces; of more, those that are gone are forgotten


@dataclass(slots=True)
class _Wanted:
    """An interface that should have a subflow."""

    source: Source
    address: MptcpAddress | None = None
    """Where its subflow was last seen or made."""
    left: MptcpAddress | None = None
    """Where it was before; a subflow may be left there."""
    absent: str = ""
    """Why it cannot have one now."""
    lost: bool = False
    """What it had is gone, or tied to a place that is no more: it is made anew as soon as that is possible."""
    asked_at: float = -math.inf
    delay: float = RETRY_FIRST
    waiting: bool = False
    """Something that left there was not acknowledged yet."""
    acked: int = 0
    """Bytes that were, while it waited."""
    acked_at: float = -math.inf
    """When there was news of that, or nothing waited."""
    stuck: bool = False
    """It has waited for longer than its round trips explain."""


async def lease_subflows(candidate: Candidate) -> tuple[EndpointLease | None, str]:
    """What is needed on this host for the further subflows of a candidate, or why they cannot be made.

    To be called before the socket is made. Cancelling it borrows nothing.
    """
    if reason := why_no_subflows(candidate):
        return None, reason
    lease = None
    try:
        lease = EndpointLease()
        found = [address_of(source, candidate.family) for source in candidate.more_sources]
        await in_thread(lease.use, [place for place in found if isinstance(place, MptcpAddress)])
    except (OSError, asyncio.CancelledError) as error:
        if lease is not None:
            release_subflows(lease)
        if isinstance(error, OSError):
            return None, words(error)
        raise
    return lease, ""


def why_few_accepted() -> str:
    """Why this host will not take all further subflows of its clients; empty = it will."""
    if (kind := path_manager_type()) != KERNEL:
        return f"its MPTCP path manager is {kind!r}, which has to accept them"
    try:
        with MptcpPathManager() as manager:
            return limited(manager, ACCEPTED_SUBFLOWS)
    except OSError:
        return ""  # a kernel without path managers to talk to does as it likes


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
        self._candidate, self._lease, self._reason, self._read = candidate, lease, reason, read
        self._wanted = [_Wanted(source) for source in candidate.sources if source.interface]
        self._borrowing: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._check()

    def use(self, sources: Sequence[Source]) -> None:
        """Have subflows over these too. What can be had over others is kept."""
        names = {"", *(wanted.source.interface for wanted in self._wanted)}
        new = [_Wanted(source, lost=True) for source in sources if source.interface not in names]
        if not new:
            return
        if len(self._wanted) + len(new) > KEPT:
            self._wanted = [wanted for wanted in self._wanted if not wanted.absent]
        self._wanted += new
        if self._lease is None and (self._borrowing is None or self._borrowing.done()):
            first = self._candidate.sources[0]
            further = self._candidate.over(first, *(source for source in sources if source != first))
            self._borrowing = self._loop.create_task(self._borrow(further))
        if self._timer is None:
            self._check()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._borrowing is not None:
            self._borrowing.cancel()
        if self._lease is not None:
            release_subflows(self._lease)
            self._lease = None

    def describe(self, kernel: MptcpInfo) -> str:
        """`eth0, wlan0`, and what is missing with its reason; empty where one is all that is wanted."""
        if len(self._wanted) < 2:
            return ""
        live = {address for address, flow in _flows(kernel) if flow.state == ESTABLISHED}
        why = f": {self._reason}" if self._reason else ""
        here, missing = [], []
        for wanted in self._wanted:
            if wanted.address is not None and wanted.address.address in live:
                here.append(wanted.source.interface)
            else:
                missing.append(wanted.absent or f"none over {wanted.source.interface}{why}")
        return "; ".join([", ".join(here), *missing] if here else missing)

    def _check(self) -> None:
        if len(self._wanted) < 2:
            return
        kernel = self._read()
        if kernel is None:
            self.stop()
            return
        for wanted in self._wanted:
            self._watch(wanted, kernel)
        try:
            for wanted in self._wanted:
                if self._renewing is None or self._renewing.done():
                    self._keep(wanted, kernel)
        except OSError as error:  # a shortage, which tells nothing of the interfaces
            logger.debug("MPTCP subflows not looked at: %s", words(error))
        busy = not kernel.bytes_acked or any(flow.unacked for flow in kernel.subflows)
        self._timer = self._loop.call_later(CHECK_BUSY if busy else CHECK_INTERVAL, self._check)

    def _watch(self, wanted: _Wanted, kernel: MptcpInfo) -> None:
        """Whether its subflow gets on. The kernel finds out by timeouts that it doubles, and repeats piece by piece."""
        now, place = self._loop.time(), wanted.address
        own = [flow for flow in _from(place, kernel) if flow.state == ESTABLISHED] if place is not None else []
        acked = sum(flow.bytes_acked for flow in own)
        if not wanted.waiting or acked != wanted.acked:
            wanted.acked_at = now
        wanted.waiting, wanted.acked = any(flow.unacked for flow in own), acked
        patience = max((flow.rtt + 4 * flow.rtt_variation for flow in own), default=0.0) + STUCK_SLACK
        wanted.stuck = wanted.waiting and now > wanted.acked_at + patience

    def _keep(self, wanted: _Wanted, kernel: MptcpInfo) -> None:
        """See that the interface has a subflow that works, if it can have one."""
        found, before = address_of(wanted.source, self._candidate.family), wanted.address
        if isinstance(found, str):
            wanted.absent = found
        else:
            wanted.absent, wanted.address = "", found
            wanted.lost |= before not in (None, found)
            if before is not None and before.address != found.address:
                wanted.left = before
        lease, place, now = self._lease, wanted.address, self._loop.time()
        if lease is None or place is None:
            return
        if not kernel.bytes_acked:
            wanted.asked_at = now  # what the kernel makes by itself comes after that (RFC 8684 section 3.1)
            return
        own = _from(place, kernel)
        doubtful = {place.address}
        for other in self._wanted:
            doubtful.update(at.address for at in (other.left, other.address if other.stuck else None) if at is not None)
        if not any(_works(flow) for address, flow in _flows(kernel) if address not in doubtful):
            return  # the last one is never given up, and the kernel goes on trying with what there is
        left, wanted.left = wanted.left, None
        if left is not None and _from(left, kernel):
            # Nothing comes back there: have what is in flight sent over the others now.
            logger.info("MPTCP subflow given up: %s has another address than %s", wanted.source.interface, left.address)
            self._renewing = self._loop.create_task(self._renew(lease, left, usable=False))
            return
        if wanted.absent:
            if own and not wanted.lost:
                # It cannot carry anything: have what is in flight there sent over the others now.
                logger.info("MPTCP subflow given up: %s", wanted.absent)
                self._renewing = self._loop.create_task(self._renew(lease, place, usable=False))
            wanted.lost = True
            return
        if wanted.lost:
            wanted.lost, wanted.delay = False, RETRY_FIRST
        elif any(_works(flow) for flow in own) and not wanted.stuck:
            if now >= wanted.asked_at + wanted.delay:
                wanted.delay = RETRY_FIRST
            return
        elif now < wanted.asked_at + wanted.delay:
            return
        logger.info("MPTCP endpoint %s is added anew", place.address)
        self._renewing = self._loop.create_task(self._renew(lease, place, usable=True, stuck=bool(own)))
        wanted.asked_at, wanted.delay = now, min(wanted.delay * 2, MAX_RETRY)

    async def _borrow(self, further: Candidate) -> None:
        self._lease, self._reason = await lease_subflows(further)
        if self._reason:
            logger.warning("%s has no further subflows: %s", self._candidate, self._reason)

    async def _renew(self, lease: EndpointLease, place: MptcpAddress, *, usable: bool, stuck: bool = False) -> None:
        """In a thread: other processes may hold the lock, and the kernel takes some milliseconds."""
        try:
            await in_thread(lease.renew, place, usable=usable, stuck=stuck)
        except OSError as error:
            logger.info("MPTCP endpoint not changed: %s", words(error))


def _flows(kernel: MptcpInfo) -> list[tuple[str, TcpInfo]]:
    return list(zip(kernel.addresses, kernel.subflows, strict=True))


def _from(place: MptcpAddress, kernel: MptcpInfo) -> list[TcpInfo]:
    return [flow for address, flow in _flows(kernel) if address == place.address]


def _works(flow: TcpInfo) -> bool:
    return flow.state == ESTABLISHED and flow.retransmits < STUCK_RETRANSMITS
