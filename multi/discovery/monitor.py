"""Hears when the networks of this machine change, and tells everybody who wants to know.

On Linux the kernel announces changes over netlink, and an idle machine costs nothing. What it announces is not read: it
is a reason to read all links and addresses, which takes a fraction of a millisecond, and to compare them with what
there was. So nothing is missed when announcements are lost. Elsewhere, or where netlink is refused, all is read every
two seconds. What is lost for certain is told at once, in the same turn of the event loop; everything else a moment
later, so that a burst gives one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from multi.discovery import portable
from multi.discovery.namespace import NamespaceId, namespace_if_told
from multi.discovery.netlink import Announcements, NetlinkSocket
from multi.discovery.snapshot import LINK_GROUPS, ROUTE_GROUPS, Snapshot, snapshot

logger = logging.getLogger("multi.discovery")

SETTLE = 0.050  # seconds after a change; what follows until then belongs to the same burst
PAUSE = 0.200  # seconds between two calls about changes; whoever is called reads all interfaces
LOOK_SHARE = 10  # a pause of so many times its processor time follows a look: thousands of links must not fill the loop
CARRIER_PAUSE = 1.1  # seconds after telling of a carrier in which the kernel may keep the next change to itself
CARRIER_INTERVAL = 0.050  # seconds between two looks in that time
POLL_INTERVAL = 2.0  # seconds; reading the interfaces takes milliseconds


@dataclass(frozen=True, slots=True)
class Loss:
    """Something connections may use is gone, for certain."""

    interface: str
    address: str
    """Literal; empty = the whole interface."""
    reason: str


Callback = Callable[[tuple[Loss, ...]], None]
Unsubscribe = Callable[[], None]
Read = Callable[[], Snapshot]


class NetworkMonitor:
    """Tells of changes in one network namespace, on one event loop; use `monitor()` to share it.

    It listens while it has subscribers. `netlink`: False calls `read` every `poll_interval` seconds instead.
    """

    def __init__(
        self, *, netlink: bool = True, poll_interval: float = POLL_INTERVAL, read: Read = portable.read
    ) -> None:
        self._netlink = netlink
        self._poll_interval = poll_interval
        self._poll = self._read = read
        self._subscribers: dict[object, Callback] = {}
        self._loop = asyncio.get_running_loop()
        self._sockets = contextlib.ExitStack()
        self._links: Announcements | None = None
        self._routes: Announcements | None = None
        """Apart, so that a storm of routes costs no announcement of a link."""
        self._known: Snapshot | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._look_from = self._carrier_until = float("-inf")
        self._tell_timer: asyncio.TimerHandle | None = None
        self._told_at = float("-inf")

    def subscribe(self, callback: Callback) -> Unsubscribe:
        """Call `callback(losses)` on this event loop whenever the interfaces should be read anew.

        `losses` is empty when nothing was lost for certain. Changes from here on are told; the returned function ends
        that, also from within a callback.
        """
        token = object()
        if not self._subscribers:
            self._start()
        self._subscribers[token] = callback

        def unsubscribe() -> None:
            if self._subscribers.pop(token, None) is not None and not self._subscribers:
                self._stop()

        return unsubscribe

    def _start(self) -> None:
        self._read = self._poll
        if self._netlink:
            try:
                kernel = self._sockets.enter_context(contextlib.closing(NetlinkSocket()))
                links = self._sockets.enter_context(contextlib.closing(Announcements(*LINK_GROUPS)))
                routes = self._sockets.enter_context(contextlib.closing(Announcements(*ROUTE_GROUPS)))
            except OSError as error:
                self._sockets.close()
                logger.warning("cannot hear of network changes (%s), looking every %g s", error, self._poll_interval)
            else:
                self._read = partial(snapshot, kernel, with_routes=False)
                self._links, self._routes = links, routes
                self._loop.add_reader(links, self._links_announced)
                self._loop.add_reader(routes, self._routes_announced)
        self._look()

    def _stop(self) -> None:
        for timer in (self._look_timer, self._tell_timer):
            if timer is not None:
                timer.cancel()
        self._look_timer = self._tell_timer = None
        for announced in (self._links, self._routes):
            if announced is not None and not self._loop.is_closed():
                self._loop.remove_reader(announced)
        self._links = self._routes = self._known = None
        self._sockets.close()

    def __del__(self) -> None:
        # The loop was closed with subscribers left: as long as it runs, its reader keeps the monitor.
        self._sockets.close()

    def _links_announced(self) -> None:
        assert self._links is not None
        self._links.drain()
        self._look_at(self._look_from)

    def _routes_announced(self) -> None:
        """Nothing is read before this has been told, so a storm costs no more than a few calls a second."""
        assert self._routes is not None
        self._loop.remove_reader(self._routes)
        self._change()

    def _look_at(self, when: float) -> None:
        """Look then, or before if that is to happen anyway."""
        if self._look_timer is not None:
            when = min(when, self._look_timer.when())
            self._look_timer.cancel()
            self._look_timer = None
        if when <= self._loop.time():
            self._look()
        else:
            self._look_timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Read what there is, and tell what of it is new."""
        self._look_timer = None
        begun, lost = time.thread_time(), tuple[Loss, ...]()
        wait = self._poll_interval if self._links is None else math.inf
        try:
            found = self._read()
        except OSError as error:
            logger.warning("cannot read the interfaces: %s", error)
            wait = self._poll_interval
        else:
            if found.torn:
                wait = PAUSE
            else:
                lost = self._compare(found)
        now = self._loop.time()
        self._look_from = now + LOOK_SHARE * (time.thread_time() - begun)
        if now < self._carrier_until:
            wait = min(wait, CARRIER_INTERVAL)
        if wait < math.inf:
            self._look_timer = self._loop.call_at(max(now + wait, self._look_from), self._look)
        if lost:
            self._tell(lost)

    def _compare(self, found: Snapshot) -> tuple[Loss, ...]:
        """What is lost; anything else that is new is told when it has settled."""
        before, self._known = self._known, found
        if before is None:
            if self._subscribers:  # who could not be told what there was when they came
                self._change()
            return ()
        if {link.index for link in before.links if link.carrier} != {
            link.index for link in found.links if link.carrier
        }:
            self._carrier_until = self._loop.time() + CARRIER_PAUSE
        lost = losses(before, found)
        # Who hears of a loss reads everything anew.
        same = (before.links, before.addresses, before.routes) == (found.links, found.addresses, found.routes)
        if not same and not lost:
            self._change()
        return lost

    def _change(self) -> None:
        if self._tell_timer is None:
            when = max(self._loop.time() + SETTLE, self._told_at + PAUSE)
            self._tell_timer = self._loop.call_at(when, self._settled)

    def _settled(self) -> None:
        self._tell_timer = None
        self._told_at = self._loop.time()
        if self._routes is not None:
            self._routes.drain()  # before the subscribers look, so that nothing falls in between
            self._loop.add_reader(self._routes, self._routes_announced)
        self._tell(())

    def _tell(self, lost: tuple[Loss, ...]) -> None:
        for loss in lost:
            logger.info("%s: %s", loss.interface, loss.reason)
        for token, callback in list(self._subscribers.items()):
            if token not in self._subscribers:
                continue  # an earlier one has ended this subscription
            try:
                callback(lost)
            except Exception:
                logger.exception("a subscriber to network changes failed")


def losses(before: Snapshot, after: Snapshot) -> tuple[Loss, ...]:
    """What was lost between two readings: for a whole interface once, without its addresses."""
    lost: list[Loss] = []
    links = {link.index: link for link in after.links}
    connected: dict[int, str] = {}
    for was in before.links:
        name, link = was.facts.name, links.get(was.index)
        if link is None:
            lost.append(Loss(name, "", "the interface was removed"))
        elif (was.connected and not link.connected) or was.carrier_downs != link.carrier_downs:
            lost.append(Loss(name, "", "carrier lost" if link.up else "the interface went down"))
        elif was.connected:
            connected[was.index] = name
    there = {(record.index, record.address.address) for record in after.addresses}
    same = {(record.index, record.address.address, record.address.prefix_length): record for record in after.addresses}
    for held in before.addresses:
        literal, name = held.address.address, connected.get(held.index, "")
        if not name or not (held.address.usable or held.address.reason == "deprecated"):
            continue
        now = same.get((held.index, literal, held.address.prefix_length))
        if (held.index, literal) not in there or (now is not None and now.created != held.created):
            lost.append(Loss(name, literal, f"the address {literal} was removed"))
        elif now is not None and now.address.reason == "duplicate":
            lost.append(Loss(name, literal, f"the address {literal} is a duplicate"))
    return tuple(dict.fromkeys(lost))


_monitors: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[NamespaceId, NetworkMonitor]
] = weakref.WeakKeyDictionary()


def monitor() -> NetworkMonitor:
    """The one that everybody shares on the running event loop, in the network namespace of this thread."""
    spaces = _monitors.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    key = namespace_if_told()
    shared = spaces.get(key)
    if shared is None:
        shared = spaces[key] = NetworkMonitor()
    return shared
