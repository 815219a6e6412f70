"""Connecting to what a client asked for: names are looked up here, every address is judged, and that one is dialled.

Decides which addresses are tried, in which order and when (RFC 8305), and what a failure is called.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest

from multi.asyncio.dns import Lookup, Names
from multi.asyncio.lookups import Share
from multi.discovery.resources import is_exhaustion
from multi.errors import words_of
from multi.forward.protocol import Code, ForwardRefused, HostPort
from multi.forward.relay import StreamPair, pair_of
from multi.forward.rules import Permissions, is_ambiguous

ATTEMPT_DELAY = 0.250  # seconds until the next address is tried beside the last, RFC 8305 section 8
DIAL_TIMEOUT = 10.0  # seconds to look a name up and to connect; what answers later is of no use to a waiting person
MAX_ADDRESSES = 16  # of one name that are tried

_CODES = {
    errno.ECONNREFUSED: Code.REFUSED,
    errno.ECONNRESET: Code.REFUSED,
    errno.ETIMEDOUT: Code.TIMED_OUT,
    errno.ENETUNREACH: Code.UNREACHABLE,
    errno.EHOSTUNREACH: Code.UNREACHABLE,
    errno.ENETDOWN: Code.UNREACHABLE,
    errno.EADDRNOTAVAIL: Code.UNREACHABLE,
    errno.EAFNOSUPPORT: Code.UNREACHABLE,
    errno.EACCES: Code.UNREACHABLE,
}


def refusal_of(error: OSError, what: str) -> ForwardRefused:
    """A failed system call in the words of the protocol."""
    code = Code.BUSY if is_exhaustion(error) else _CODES.get(error.errno or 0, Code.FAILED)
    return ForwardRefused(code, f"{what}: {said_by_system(error)}")


def said_by_system(error: OSError) -> str:
    """What the system says of it; asyncio puts a text of its own in the place of that."""
    if isinstance(error, socket.gaierror) or not error.errno:  # numbers of the resolver's, or none
        return words_of(error)
    return os.strerror(error.errno).lower()


async def dial(
    target: HostPort, permissions: Permissions | None, *, lookup: Lookup | None = None, share: Share | None = None
) -> socket.socket:
    """Return a connected, non-blocking socket to `target`, as far as `permissions` allow it; None allows everything.

    `lookup` asks the system's resolver unless it is given, in threads of `share`. Raises ForwardRefused.
    """
    _check(target, permissions)
    race = _Race(target, permissions, lookup, share)
    return await race.in_time(race.run())


async def open_target(
    target: HostPort, permissions: Permissions | None, *, lookup: Lookup | None = None, share: Share | None = None
) -> tuple[StreamPair, HostPort]:
    """The connection that `dial` makes, as reader and writer, and the address it leads to. Raises ForwardRefused."""
    sock = await dial(target, permissions, lookup=lookup, share=share)
    try:
        address = HostPort(*sock.getpeername()[:2])
        return await pair_of(sock), address
    except OSError:  # nobody can be asked any more whom it was connected to
        sock.close()
        raise refusal_of(ConnectionResetError(errno.ECONNRESET, "reset"), str(target)) from None
    except BaseException:
        sock.close()
        raise


async def dial_udp(
    target: HostPort, permissions: Permissions | None, *, lookup: Lookup | None = None, share: Share | None = None
) -> socket.socket:
    """Return a non-blocking UDP socket that sends to `target` and hears of nobody else, judged as by `dial`.

    The first address that is allowed and has a route is taken. Raises ForwardRefused.
    """
    _check(target, permissions)
    race = _Race(target, permissions, lookup, share)
    return await race.in_time(race.first_udp())


def _check(target: HostPort, permissions: Permissions | None) -> None:
    """What can be said before a name is looked up. Raises ForwardRefused."""
    if permissions is None:
        return
    if is_ambiguous(target.host):
        raise ForwardRefused(Code.BAD_REQUEST, f"{target.host} is neither a name nor an address as one writes it")
    if not permissions.could_reach(target.port):
        raise ForwardRefused(Code.NOT_ALLOWED, f"{target} is not allowed: no rule allows its port")


class _Race:
    """One target's addresses, tried one beside the other until one of them answers."""

    def __init__(
        self, target: HostPort, permissions: Permissions | None, lookup: Lookup | None, share: Share | None
    ) -> None:
        self._target = target
        self._permissions = permissions
        self._news = asyncio.Event()
        self._names = Names(self._news.set, lookup=lookup, share=share)
        self._judged: set[str] = set()
        self._waiting: list[str] = []
        self._attempts: set[asyncio.Task[socket.socket]] = set()
        self._failure: ForwardRefused | None = None

    async def in_time(self, answer: Coroutine[None, None, socket.socket]) -> socket.socket:
        """What `run` or `first_udp` gives; all else is ended and closed."""
        try:
            async with asyncio.timeout(DIAL_TIMEOUT):
                return await answer
        except TimeoutError:
            raise ForwardRefused(Code.TIMED_OUT, f"{self._target}: no answer within {DIAL_TIMEOUT:g} s") from None
        finally:
            await self.stop()

    async def run(self) -> socket.socket:
        host = self._target.host
        await self._names.resolve([(host, "any")])
        while True:
            self._judge(self._names.addresses.get(host, []))
            if self._waiting:
                self._start(self._waiting.pop(0))
            elif not self._attempts and not self._names.pending:
                raise self._failure or ForwardRefused(
                    Code.NOT_FOUND, self._names.errors.get(host, f"{host}: no address")
                )
            if (winner := await self._wait()) is not None:
                return winner

    async def first_udp(self) -> socket.socket:
        host = self._target.host
        await self._names.resolve([(host, "any")])
        self._judge(self._names.addresses.get(host, []))
        for address in self._waiting:
            try:
                return _udp_socket(HostPort(address, self._target.port))
            except ForwardRefused as error:
                self._failure = error
        raise self._failure or ForwardRefused(Code.NOT_FOUND, self._names.errors.get(host, f"{host}: no address"))

    async def _wait(self) -> socket.socket | None:
        """Wait for an attempt's end, for more addresses or for the time to try another; return what has connected."""
        self._news.clear()
        news = asyncio.ensure_future(self._news.wait())
        try:
            timeout = ATTEMPT_DELAY if self._waiting else None
            done, _ = await asyncio.wait({news, *self._attempts}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        for attempt in self._attempts & done:
            self._attempts.discard(attempt)
            try:
                return attempt.result()
            except ForwardRefused as error:
                self._failure = error
        return None

    def _judge(self, addresses: list[str]) -> None:
        """Take in the addresses that are allowed and new, one of each family in turn."""
        six = [address for address in addresses if ":" in address]
        four = [address for address in addresses if ":" not in address]
        for address in (address for pair in zip_longest(six, four) for address in pair if address):
            if address in self._judged or len(self._judged) == MAX_ADDRESSES:
                continue
            self._judged.add(address)
            if not (why_not := self._objection(address)):
                self._waiting.append(address)
            elif self._failure is None:
                self._failure = ForwardRefused(Code.NOT_ALLOWED, f"{self._target} is not allowed: {why_not}")

    def _objection(self, address: str) -> str:
        """Why this address may not be reached; empty when it may."""
        if self._permissions is None:
            return ""
        own = is_own_address(address)
        return self._permissions.reasons_against(self._target.host, self._target.port, address, own=own)

    def _start(self, address: str) -> None:
        self._attempts.add(asyncio.create_task(_connect(HostPort(address, self._target.port))))

    async def stop(self) -> None:
        """Give up what is still being tried."""
        self._names.close()
        for attempt in self._attempts:
            attempt.cancel()
        for outcome in await asyncio.gather(*self._attempts, return_exceptions=True):
            if isinstance(outcome, socket.socket):
                outcome.close()


async def _connect(address: HostPort) -> socket.socket:
    with _socket_to(address, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, _sockaddr(address))
    return sock


def _udp_socket(address: HostPort) -> socket.socket:
    with _socket_to(address, socket.SOCK_DGRAM) as sock:
        sock.connect(_sockaddr(address))
    return sock


@contextmanager
def _socket_to(address: HostPort, kind: socket.SocketKind) -> Iterator[socket.socket]:
    """It is closed where it cannot be connected, and ForwardRefused raised."""
    try:
        with ExitStack() as unless_connected:
            sock = unless_connected.enter_context(socket.socket(_family(address.host), kind))
            sock.setblocking(False)
            yield sock
            unless_connected.pop_all()
    except OSError as error:
        raise refusal_of(error, str(address)) from None


def is_own_address(address: str) -> bool:
    """An address of this machine: what is sent there comes from there, and is never seen by a firewall outside."""
    with suppress(OSError), socket.socket(_family(address), socket.SOCK_DGRAM) as sock:
        sock.connect(_sockaddr(HostPort(address, 9)))  # sends nothing
        return bool(sock.getsockname()[0] == address.partition("%")[0])
    return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _sockaddr(address: HostPort) -> tuple[object, ...]:
    host, _, scope = address.host.partition("%")
    if ":" not in host:
        return (host, address.port)
    return (host, address.port, 0, socket.if_nametoindex(scope) if scope and not scope.isdigit() else int(scope or 0))
