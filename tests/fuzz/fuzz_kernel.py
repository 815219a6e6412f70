"""What the kernel tells: it does not lie, but newer ones say more, and nothing it says may end a program."""

from __future__ import annotations

import errno
import socket
import struct
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from multi.discovery import monitor, netlink, snapshot
from multi.linux import genetlink, nl80211, policy_routes, wifi_signal
from multi.linux.genetlink import GenericNetlink
from multi.linux.nl80211 import Nl80211
from multi.transports.mptcp import info as mptcp_info
from multi.transports.mptcp.info import MptcpInfo, parse_address, read_mptcp_info
from multi.transports.tcp import info as tcp_info
from multi.transports.tcp.info import read_tcp_info
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check, may_raise

RTM_TYPES = (2, 3, 16, 17, 20, 21, 24, 25, 28, 32, 99)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, sequence: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body + bytes(-len(body) % 4)


class Kernel:
    """The other end of a netlink socket: answers whatever is asked with what was made up."""

    def __init__(self, choices: Choices, answers: Any) -> None:
        self._choices = choices
        self._answers = answers
        self._sequence = 0
        self._left = 24

    def send(self, data: bytes) -> int:
        self._sequence = struct.unpack_from("=I", data, 8)[0]
        return len(data)

    sendto = send

    def recv(self, _size: int) -> bytes:
        self._left -= 1
        if self._left < 0 or not self._choices.left:
            raise TimeoutError(errno.ETIMEDOUT, "the kernel does not answer")
        return self._choices.damaged(self._answers(self._choices, self._sequence))

    def settimeout(self, _seconds: float) -> None: ...
    def setsockopt(self, *_arguments: object) -> None: ...
    def bind(self, _address: object) -> None: ...
    def close(self) -> None: ...


def _sockets(kernel: Kernel) -> Any:
    """A module `socket` whose netlink sockets lead to `kernel`."""
    names = {name: getattr(socket, name) for name in dir(socket) if name.isupper() or name.startswith("inet_")}
    return SimpleNamespace(**names, socket=lambda *_arguments: kernel)


# --- rtnetlink  ---


def _attributes(choices: Choices, kinds: tuple[int, ...]) -> bytes:
    parts = []
    for _ in range(choices.below(6)):
        value = choices.take(choices.pick((0, 1, 4, 4, 6, 16, 16, 2, 20)))
        if choices.chance(5):
            value = attribute(choices.below(8), value)
        parts.append(choices.damaged(attribute(choices.pick((*kinds, choices.byte())), value)))
    return b"".join(parts)


def _told(choices: Choices, sequence: int = 0) -> bytes:
    """A datagram of messages about links, addresses and routes, or the end of an answer."""
    parts = []
    for _ in range(1 + choices.below(3)):
        kind = choices.pick(RTM_TYPES)
        if kind in (2, 3):
            body = struct.pack("=i", choices.pick((0, 0, -1, -2, -95, -(1 << 31), (1 << 31) - 1)))
        elif kind in (16, 17):
            body = struct.pack("=BxHiII", choices.pick((0, 0, 0, 7)), 1, choices.below(4), choices.below(4), 0)
            body += attribute(3, choices.pick((b"eth0\0", b"wlan0\0", b"", b"\xff\xfe\0", b"x" * 20)))
            body += _attributes(choices, (1, 3, 16, 18, 33, 48))
        elif kind in (20, 21):
            body = struct.pack(
                "=BBBBI", choices.pick((2, 10, 0)), choices.pick((24, 64, 0, 255)), 0, 0, choices.below(4)
            )
            body += attribute(choices.pick((1, 2)), choices.take(choices.pick((4, 16))))
            body += attribute(8, choices.take(4)) + _attributes(choices, (1, 2, 6, 8))
        elif kind == 28:
            body = struct.pack("=BxxxiHBB", choices.pick((2, 10)), choices.below(4), choices.pick((2, 0x20)), 0, 1)
            body += attribute(1, choices.take(4)) + attribute(2, choices.take(6)) + _attributes(choices, (1, 2))
        else:
            body = struct.pack("=BBBBBBBBI", choices.pick((2, 10)), choices.pick((0, 24)), 0, 0, 254, 3, 0, 1, 0)
            body += _attributes(choices, (1, 4, 5, 6, 9, 15, 18, 21))
        parts.append(
            message(kind, choices.pick((sequence, sequence, 0)), choices.damaged(body), choices.pick((0, 2, 0x10)))
        )
    return b"".join(parts)


def run_rtnetlink(data: bytes) -> None:
    """Snapshots, losses and routing tables from what a kernel answers."""
    choices = Choices(data)
    what = choices.below(3)
    kernel = Kernel(choices, _told)
    with patch.object(netlink, "socket", _sockets(kernel)), may_raise(OSError):
        if what == 0:
            with netlink.NetlinkSocket() as reader:
                before = snapshot.snapshot(reader)
                after = snapshot.snapshot(reader)
                held = len(before.links) + len(before.addresses)
                check(len(monitor.losses(before, after)) <= held, "more losses than there was")
        else:
            reader = netlink.NetlinkSocket()
            if what == 1:
                policy_routes.read_tables(reader)
            else:
                snapshot.lookup(reader, "192.0.2.1", "192.0.2.2")


# --- generic netlink  ---


def _generic(choices: Choices, sequence: int) -> bytes:
    parts = []
    for _ in range(1 + choices.below(3)):
        kind = choices.pick((16, 16, 28, 28, 2, 3))
        if kind in (2, 3):
            code = choices.pick((0, 0, -2, -95, -(1 << 31), (1 << 31) - 1, 5))
            parts.append(message(kind, sequence, choices.damaged(struct.pack("=i", code))))
            continue
        station = _attributes(choices, (7, 13, 17, 29, 30))
        body = b"\1\1\0\0" + attribute(1, b"\x1c\0") + attribute(21, station) + attribute(93, choices.take(4))
        body += _attributes(choices, (1, 2, 7, 21, 93))
        parts.append(message(kind, choices.pick((sequence, sequence, 0)), choices.damaged(body)))
    return b"".join(parts)


def run_generic(data: bytes) -> None:
    choices = Choices(data)
    what = choices.below(3)
    kernel: Any = Kernel(choices, _generic)
    with may_raise(OSError):
        if what == 0:
            with patch.object(netlink, "socket", _sockets(kernel)), GenericNetlink("nl80211") as asked:
                for answer in asked.request(1, dump=True):
                    netlink.attributes(answer)
        elif what == 1:
            Nl80211(lambda: kernel).stations(1)
        elif what == 2:
            Nl80211(lambda: kernel).power_saving(1)
        else:
            with patch.object(socket, "if_nametoindex", lambda _name: 1):
                dbm = wifi_signal.read_signal("wlan0", lambda: kernel)
            check(dbm is None or -128 <= dbm < 0, "a signal that cannot be")


def run_attributes(data: bytes) -> None:
    netlink.attributes(data)
    netlink.attributes(data, min(8, len(data)))
    for _kind, _flags, _sequence, raw in netlink.messages(data):
        check(raw in data, "a message that was not said")


# --- facts of sockets  ---


class _Options:
    """A socket that gives its options from the input."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def getsockopt(self, _level: int, option: int, size: int) -> bytes:
        if self._choices.chance(8):
            raise OSError(errno.EOPNOTSUPP, "not supported")
        told = self._choices.take(self._choices.pick((size, size, size, 0, 31, 32, 79, 80, 81, self._choices.byte())))
        return told if self._choices.chance(4) else told.ljust(size, b"\0")


def run_socket_info(data: bytes) -> None:
    choices = Choices(data)
    sock: Any = _Options(choices)
    read_tcp_info(sock)
    count = choices.below(9)
    full: Any = None
    if choices.chance(2):
        infos = [choices.take(232).ljust(232, b"\0") for _ in range(count)]
        addresses = tuple(parse_address(_address(choices)) for _ in range(count))
        full = (choices.take(96), tuple(map(tcp_info.parse_tcp_info, infos)), addresses)
    with patch.object(mptcp_info, "_read_full", lambda _sock: full):
        found = read_mptcp_info(sock)
    if isinstance(found, MptcpInfo):
        check(found.bytes_acked >= 0 and found.unacked >= 0 and found.subflow_count >= 0, "a count below zero")
        check(len(found.addresses) == len(found.subflows), "subflows without addresses")


def _address(choices: Choices) -> bytes:
    if choices.chance(2):
        return (choices.pick((b"\2\0", b"\n\0", b"\0\0")) + choices.take(30)).ljust(32, b"\0")
    return choices.pick((b"\2\0", b"\n\0", b"\xff\xff")) + bytes(16) + b"\xff\xff" + choices.take(4).ljust(12, b"\0")


def _random_looking() -> list[bytes]:
    return [bytes((n * i * i + i) % 256 for i in range(160)) for n in range(1, 16)]


def _datagrams() -> list[bytes]:
    return list(map(_told, map(Choices, _random_looking())))


TARGETS = (
    Target(
        "netlink-questions",
        run_rtnetlink,
        _random_looking,
        (netlink, snapshot, monitor, policy_routes),
        short=120,
        weight=2,
        longest=800,
        memory_base=4 << 20,
        memory_factor=256,
    ),
    Target(
        "netlink-generic",
        run_generic,
        _random_looking,
        (genetlink, nl80211, wifi_signal),
        short=300,
        longest=600,
    ),
    Target("netlink-attributes", run_attributes, _datagrams, (netlink,), short=300, longest=600),
    Target("socket-info", run_socket_info, _random_looking, (mptcp_info, tcp_info), short=200, longest=3000),
)
