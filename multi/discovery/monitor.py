"""Hears when the networks of this machine change, and tells everybody who wants to know.

What is lost for certain is told at once, in the same turn of the event loop; everything else when it has settled, so
that a burst gives one call. On Linux the kernel says so over netlink and an idle machine costs nothing; elsewhere, or
where netlink is refused, the interfaces are read every two seconds. What a message means is decided in
`multi.discovery.link_state`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable

from multi.discovery import netlink
from multi.discovery.interfaces import interfaces
from multi.discovery.link_state import LinkEvents, LinkState, Loss, compare
from multi.discovery.namespace import namespace_if_told
from multi.discovery.netlink import message, open_netlink
from multi.discovery.resources import start_in_thread
from multi.types import Interface

__all__ = ["Loss", "NetworkMonitor", "monitor"]

log = logging.getLogger("multi.discovery")

QUIET = 0.050  # seconds without a message after which a burst of changes is over
PATIENCE = 0.200  # seconds after the first change of a burst that does not end
PER_SECOND = 5  # calls about changes; reading all interfaces takes milliseconds
STORM = 200  # messages about routes since the last call; more of them would tell nothing new
CARRIER_PAUSE = 1.1  # seconds after telling of a carrier in which the kernel may keep the next change to itself
CARRIER_INTERVAL = 0.050  # seconds between two looks in that time; a look takes a fraction of a millisecond
RESYNC_PAUSE = 0.200  # seconds between two readings of everything while messages get lost
POLL_INTERVAL = 2.0  # seconds; reading the interfaces takes milliseconds
RECEIVE_BUFFER = 4 << 20  # bytes; what the kernel may keep while the event loop is busy
DATAGRAM = 1 << 16  # bytes; the kernel fills 32 KiB at once
DATAGRAMS_AT_ONCE = 256  # then others on the event loop get their turn

ROUTE_GROUPS = (netlink.RTNLGRP_IPV4_ROUTE, netlink.RTNLGRP_IPV6_ROUTE)
GROUPS = (netlink.RTNLGRP_LINK, netlink.RTNLGRP_IPV4_IFADDR, netlink.RTNLGRP_IPV6_IFADDR, *ROUTE_GROUPS)
SO_RCVBUFFORCE, SO_MEMINFO = 33, 55  # include/uapi/asm-generic/socket.h
SK_MEMINFO = struct.Struct("=9I")  # the last one: SK_MEMINFO_DROPS, messages that found the buffer full
# struct ifinfomsg and IFLA_EXT_MASK: RTEXT_FILTER_SKIP_STATS; struct ifaddrmsg
LINK_REQUEST = bytes(16) + struct.pack("=HHI", 8, 29, 8)
ADDRESS_REQUEST = bytes(8)

Callback = Callable[[tuple[Loss, ...]], None]
Unsubscribe = Callable[[], None]
Read = Callable[[], tuple[Interface, ...]]


class NetworkMonitor:
    """Tells of changes in one network namespace, on one event loop; use `monitor()` to share it.

    It listens while it has subscribers. `netlink`: False reads the interfaces every `poll_interval` seconds instead,
    with `read`. `receive_buffer`: bytes the kernel is asked to keep. When they are not enough, everything is read
    anew and what was lost meanwhile is told.
    """

    def __init__(
        self,
        *,
        netlink: bool = True,
        receive_buffer: int = RECEIVE_BUFFER,
        poll_interval: float = POLL_INTERVAL,
        read: Read = interfaces,
    ) -> None:
        self._netlink = netlink
        self._receive_buffer = receive_buffer
        self._poll_interval = poll_interval
        self._read = read
        self._subscribers: dict[object, Callback] = {}
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None
        self._events: _Events | None = None
        self._poller: _Poller | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._learn_timer: asyncio.TimerHandle | None = None
        self._carrier_timer: asyncio.TimerHandle | None = None
        self._carrier_until = 0.0
        self._first = 0.0
        self._due = 0.0
        self._told: deque[float] = deque(maxlen=PER_SECOND)

    def subscribe(self, callback: Callback, *, learn_after: float = 0.0) -> Unsubscribe:
        """Call `callback(losses)` on the running event loop whenever the interfaces should be read anew.

        `losses` is empty when nothing was lost for certain. Changes from here on are told; the returned function ends
        that, also from within a callback. What is lost can be told only once it is known what there was; reading that
        is put off by `learn_after` seconds, unless it is known already, for those who have something urgent to do.
        """
        token = object()
        if not self._subscribers:
            self._start(learn_after)
        elif not learn_after and self._learn_timer is not None:
            self._learn()
        self._subscribers[token] = callback

        def unsubscribe() -> None:
            if self._subscribers.pop(token, None) is not None and not self._subscribers:
                self._stop()

        return unsubscribe

    def _start(self, learn_after: float) -> None:
        loop = asyncio.get_running_loop()
        # A strong reference would keep a closed loop, and the socket with it, alive.
        self._loop = weakref.ref(loop)
        if self._netlink:
            try:
                self._events = _Events(self._receive_buffer)
                if not learn_after:
                    self._events.learn()
            except OSError as error:
                if self._events is not None:
                    self._events.close()
                    self._events = None
                log.warning("cannot hear of network changes (%s), looking every %g s", error, self._poll_interval)
            else:
                loop.add_reader(self._events.descriptor, self._readable)
                if learn_after:
                    self._learn_timer = loop.call_later(learn_after, self._learn)
                if self._events.overflowed:
                    self._changed(loop)
                return
        self._poller = _Poller(loop, self, self._read, self._poll_interval)

    def _learn(self) -> None:
        """Read what there is, late. Whatever was told before that is a change."""
        timer, self._learn_timer = self._learn_timer, None
        events, loop = self._events, self._loop()
        if timer is None or events is None or loop is None:
            return
        timer.cancel()
        heard = LinkEvents()
        with contextlib.suppress(OSError):  # the reader meets it again, and deals with it
            events.read(heard)
            events.learn()
        if heard.changed or heard.losses or events.overflowed:
            self._changed(loop)

    def _stop(self) -> None:
        loop = self._loop()
        for timer in (self._timer, self._carrier_timer, self._learn_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._carrier_timer = self._learn_timer = None
        if self._events is not None:
            if loop is not None and not loop.is_closed():
                loop.remove_reader(self._events.descriptor)
            self._events.close()
            self._events = None
        if self._poller is not None:
            self._poller.stop()
            self._poller = None

    def __del__(self) -> None:
        # The loop was closed with subscribers left: as long as it runs, its reader keeps the monitor.
        if self._events is not None:
            self._events.close()
        if self._poller is not None:
            self._poller.stop()

    def _readable(self) -> None:
        events, loop = self._events, self._loop()
        if events is None or loop is None:
            return
        heard = LinkEvents()
        try:
            events.read(heard)
            self._resync_if_due(events, heard, loop.time())
        except OSError as error:
            log.warning("no longer hearing of network changes (%s), looking every %g s", error, self._poll_interval)
            self._stop()
            self._poller = _Poller(loop, self, self._read, self._poll_interval)
            heard.changed = True
        if heard.carrier and self._events is not None:
            self._carrier_until = loop.time() + CARRIER_PAUSE
            if self._carrier_timer is None:
                self._carrier_timer = loop.call_later(CARRIER_INTERVAL, self._look_for_carriers)
        self._report(heard, events, loop)

    def _look_for_carriers(self) -> None:
        """The kernel tells of carriers once a second at most, so one lost soon after it came is asked for."""
        events, loop = self._events, self._loop()
        self._carrier_timer = None
        if events is None or loop is None:
            return
        heard = LinkEvents()
        with contextlib.suppress(OSError):  # the reader meets it again, and deals with it
            events.resync(heard)
        if loop.time() < self._carrier_until:
            self._carrier_timer = loop.call_later(CARRIER_INTERVAL, self._look_for_carriers)
        self._report(heard, events, loop)

    def _report(self, heard: LinkEvents, events: _Events, loop: asyncio.AbstractEventLoop) -> None:
        if heard.changed or events.overflowed:
            self._changed(loop)
        if heard.losses:
            self._tell(heard.collapsed())

    def _resync_if_due(self, events: _Events, heard: LinkEvents, now: float) -> None:
        """Read everything anew after messages were lost; again and again while they are, but not all the time."""
        if events.overflowed and now >= events.resynced + RESYNC_PAUSE:
            log.debug("messages about the network were lost: reading everything anew")
            events.resynced = now
            events.resync(heard)
            heard.changed = True

    def _changed(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if self._timer is None:
            self._first = now
        self._due = self._first + PATIENCE
        if self._events is None or not self._events.deaf_to_routes:  # else it is quiet because nobody listens
            self._due = min(now + QUIET, self._due)
        if len(self._told) == PER_SECOND:
            self._due = max(self._due, self._told[0] + 1.0)
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._settled)

    def _settled(self) -> None:
        loop = self._loop()
        self._timer = None
        if loop is None:
            return
        if loop.time() < self._due - 0.001:
            # Messages came meanwhile: moving the timer for each of them would cost more than this.
            self._timer = loop.call_at(self._due, self._settled)
            return
        self._told.append(loop.time())
        heard = LinkEvents()
        if self._events is not None:
            with contextlib.suppress(OSError):  # the reader meets it again, and deals with it
                self._resync_if_due(self._events, heard, loop.time())
            if self._events.overflowed:
                self._changed(loop)
            else:
                # Before the subscribers look, so that nothing falls in between; not sooner, because the routes may
                # be what fills the buffer.
                self._events.listen_to_routes()
        self._tell(heard.collapsed())

    def _tell(self, losses: tuple[Loss, ...]) -> None:
        for loss in losses:
            log.info("%s: %s", loss.interface, loss.reason)
        for token, callback in list(self._subscribers.items()):
            if token not in self._subscribers:
                continue  # an earlier one has ended this subscription
            try:
                callback(losses)
            except Exception:
                log.exception("a subscriber to network changes failed")


class _Events:
    """The netlink socket. All but the reading of a full answer never waits. Raises OSError."""

    def __init__(self, receive_buffer: int) -> None:
        self.overflowed = False
        """Messages were lost and not yet made up for."""
        self.resynced = float("-inf")
        """When everything was last read because of that."""
        self.deaf_to_routes = False
        """There were so many that they are not listened to."""
        self._known = LinkState()
        self._buffer = memoryview(bytearray(DATAGRAM))
        self._sequence = 0
        self._routes = 0
        self._counts_drops = False
        self._dropped = 0
        self._socket = open_netlink(netlink.NETLINK_ROUTE)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            with contextlib.suppress(OSError):  # needs a privilege; else the system's limit holds
                self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, receive_buffer)
            with contextlib.suppress(OSError, struct.error):
                # An error on the socket would make libuv, and uvloop with it, stop listening for good.
                self._dropped = self._drops()
                self._socket.setsockopt(netlink.SOL_NETLINK, netlink.NETLINK_NO_ENOBUFS, 1)
                self._counts_drops = True
            self._membership(netlink.NETLINK_ADD_MEMBERSHIP, GROUPS)
        except OSError:
            self._socket.close()
            raise

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def learn(self) -> None:
        """Read for the first time what there is: that is no news."""
        self.resync(LinkEvents())

    def read(self, heard: LinkEvents) -> None:
        """Take in what has come."""
        for _datagram in range(DATAGRAMS_AT_ONCE):
            if not self._receive(heard):
                break
        self._look_for_drops()
        self._routes += heard.routes
        # Messages that were lost were most likely about routes: while they come, the rest would be lost as well.
        if (self._routes > STORM or self.overflowed) and not self.deaf_to_routes:
            self._membership(netlink.NETLINK_DROP_MEMBERSHIP, ROUTE_GROUPS)
            self.deaf_to_routes = True
            heard.changed = True  # so that they are heard again

    def listen_to_routes(self) -> None:
        """Hear the routes again, if there were too many."""
        self._routes = 0
        if self.deaf_to_routes:
            self._membership(netlink.NETLINK_ADD_MEMBERSHIP, ROUTE_GROUPS)
            self.deaf_to_routes = False

    def resync(self, heard: LinkEvents) -> None:
        """Learn all links and addresses. If this does not succeed, `overflowed` stays, or becomes, true."""
        for _attempt in range(netlink.DUMP_ATTEMPTS):
            heard.interrupted = False
            self._look_for_drops()  # what was lost until now the answers will tell
            self.overflowed = False
            self._known.begin_dump()
            answered = self._ask(netlink.RTM_GETLINK, LINK_REQUEST, heard)
            answered = answered and self._ask(netlink.RTM_GETADDR, ADDRESS_REQUEST, heard)
            self._look_for_drops()
            if answered and not (self.overflowed or heard.interrupted):
                self._known.end_dump(heard)
                return
        self.overflowed = True

    def _ask(self, kind: int, body: bytes, heard: LinkEvents) -> bool:
        """Ask on the same socket, so that answers and events come in the order in which things happened.

        The kernel prepares the next part of an answer whenever one is read, so this does not wait either.
        """
        self._sequence += 1
        self._socket.send(message(kind, netlink.NLM_F_REQUEST | netlink.NLM_F_DUMP, self._sequence, body))
        while self._receive(heard):
            for answer in heard.answers:
                if answer.sequence == self._sequence:
                    return answer.complete
        return False

    def _receive(self, heard: LinkEvents) -> bool:
        """One datagram, if there is one."""
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self.overflowed = True
            return True
        self._known.hear(self._buffer[:size], heard)
        return True

    def _look_for_drops(self) -> None:
        if self._counts_drops and self._dropped != (drops := self._drops()):
            self._dropped = drops
            self.overflowed = True

    def _drops(self) -> int:
        told = self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, SK_MEMINFO.size)
        return int(SK_MEMINFO.unpack(told)[-1])

    def _membership(self, change: int, groups: tuple[int, ...]) -> None:
        for group in groups:
            self._socket.setsockopt(netlink.SOL_NETLINK, change, group)


class _Poller:
    """Reads the interfaces again and again, in threads, and keeps neither its owner nor a closed event loop alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: NetworkMonitor, read: Read, interval: float) -> None:
        self._loop, self._owner = weakref.ref(loop), weakref.ref(owner)
        self._read, self._interval = read, interval
        self._stopped = False
        self._known: tuple[Interface, ...] | None = None
        try:
            self._known = read()
        except OSError as error:
            log.warning("cannot read the interfaces: %s", error)
        loop.call_later(interval, self._look)

    def stop(self) -> None:
        self._stopped = True

    def _look(self) -> None:
        loop = self._loop()
        if self._stopped or loop is None:
            return
        try:
            start_in_thread(loop, self._read).add_done_callback(self._looked)
        except OSError as error:  # there is no thread to be had
            log.warning("cannot look for network changes: %s", error)
            loop.call_later(self._interval, self._look)

    def _looked(self, reading: asyncio.Future[tuple[Interface, ...]]) -> None:
        loop, owner = self._loop(), self._owner()
        if self._stopped or loop is None or owner is None or reading.cancelled():
            return
        loop.call_later(self._interval, self._look)
        if (error := reading.exception()) is not None:
            log.warning("cannot read the interfaces: %s", error)
            return
        known, self._known = self._known, reading.result()
        if self._known != known:
            owner._tell(compare(known, self._known) if known is not None else ())


_monitors: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[tuple[int, int], NetworkMonitor]
] = weakref.WeakKeyDictionary()


def monitor() -> NetworkMonitor:
    """The one that everybody shares on the running event loop, in the network namespace of this thread."""
    spaces = _monitors.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    key = namespace_if_told()
    shared = spaces.get(key)
    if shared is None:
        shared = spaces[key] = NetworkMonitor()
    return shared
