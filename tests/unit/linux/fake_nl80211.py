"""A kernel with WiFi for tests: answers nl80211 requests on the other end of a socket pair."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from dataclasses import dataclass, field

FAMILY = 0x1C
GETFAMILY = 3
GET_STATION, NEW_STATION, SET_POWER_SAVE, GET_POWER_SAVE = 17, 19, 61, 62
ERROR, DONE = 2, 3


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


@dataclass
class FakeKernel:
    """One WiFi interface for every index in `saving`."""

    saving: dict[int, bool] = field(default_factory=dict)
    stations: list[bytes] = field(default_factory=list)
    """The content of STA_INFO of each."""
    loaded: bool = True
    refusals: dict[int, int] = field(default_factory=dict)
    """Command -> error number."""
    silent: bool = False
    requests: list[bytes] = field(default_factory=list)

    def open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threading.Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return ours

    def commands(self) -> list[int]:
        """Commands to nl80211 so far."""
        return [request[16] for request in self.requests if request[4:6] == struct.pack("=H", FAMILY)]

    def _serve(self, end: socket.socket) -> None:
        # Who gave up waiting leaves answers unread, which resets the connection.
        with end, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while request := end.recv(1 << 16):
                self.requests.append(request)
                if not self.silent:
                    for answer in self._answers(request):
                        end.send(answer)

    def _answers(self, request: bytes) -> list[bytes]:
        _length, kind, flags, sequence, _port = struct.unpack_from("=IHHII", request)
        command = request[16]

        def message(kind: int, body: bytes) -> bytes:
            return struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 4711) + body

        def error(code: int) -> bytes:
            return message(ERROR, struct.pack("=i", -code) + request[:16])

        def object_of(command: int, attributes: bytes) -> bytes:
            return message(FAMILY, struct.pack("=BBH", command, 1, 0) + attributes)

        # What others were told long ago must not be taken for an answer.
        late = struct.pack("=IHHII", 20, ERROR, 0, sequence + 1000, 0) + struct.pack("=i", -errno.EIO)
        if kind == 16:
            if not self.loaded:
                return [late + error(errno.ENOENT)]
            body = attribute(2, b"nl80211\0") + attribute(1, struct.pack("=H", FAMILY))
            return [message(16, struct.pack("=BBH", 1, 2, 0) + body), error(0)]
        (index,) = struct.unpack_from("=I", request, 24)
        if command in self.refusals:
            return [error(self.refusals[command])]
        if index not in self.saving:
            return [error(errno.ENODEV)]
        if command == GET_POWER_SAVE:
            return [object_of(command, attribute(93, struct.pack("=I", self.saving[index]))), error(0)]
        if command == SET_POWER_SAVE:
            self.saving[index] = struct.unpack_from("=I", request, 32) == (1,)
            return [error(0)]
        assert command == GET_STATION
        assert flags & 0x300 == 0x300
        head = attribute(3, struct.pack("=I", index)) + attribute(6, bytes(6))
        found = [object_of(NEW_STATION, head + attribute(0x8000 | 21, one)) for one in self.stations]
        return [b"".join(found)] * bool(found) + [message(DONE, bytes(4))]
