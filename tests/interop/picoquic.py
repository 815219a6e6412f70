"""picoquic, which the wheel `aiopquic` brings along, in this process."""

from __future__ import annotations

import ctypes
import socket
import struct
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from multi.lab.engines.pair import SERVER
from multi.transports.quic.engine import PathClosed, PathOpened
from multi.transports.quic.udp_port import Burst, PeerAddress
from tests.interop.foreign import ForeignEngine

ALPN = b"multi/1"
MAX_DATAGRAM = 1536  # bytes
SECP256R1 = 23  # TLS's number of the curve: with others it needs more of OpenSSL than the wheel has
_DATA, _FIN, _CLOSE, _APPLICATION_CLOSE, _ALMOST_READY, _READY = 0, 1, 5, 6, 9, 10
_STATELESS_RESET = 4
_PATH_AVAILABLE, _PATH_DELETED = 20, 22
_CALLBACK = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_uint8), c_size_t, c_int, c_void_p, c_void_p)

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "create": (
        c_void_p,
        [
            c_uint32,
            *[c_char_p] * 4,
            _CALLBACK,
            *[c_void_p] * 4,
            c_uint64,
            POINTER(c_uint64),
            c_char_p,
            c_void_p,
            c_size_t,
        ],
    ),
    "free": (None, [c_void_p]),
    "set_default_multipath_option": (None, [c_void_p, c_int]),
    "set_null_verifier": (None, [c_void_p]),
    "enable_path_callbacks_default": (None, [c_void_p, c_int]),
    "set_key_exchange": (c_int, [c_void_p, c_int]),
    "create_client_cnx": (c_void_p, [c_void_p, c_void_p, c_uint64, c_uint32, c_char_p, c_char_p, _CALLBACK, c_void_p]),
    "incoming_packet_ex": (
        c_int,
        [c_void_p, c_char_p, c_size_t, c_void_p, c_void_p, c_int, c_ubyte, POINTER(c_void_p), c_uint64],
    ),
    "prepare_next_packet_ex": (
        c_int,
        [
            c_void_p,
            c_uint64,
            c_char_p,
            c_size_t,
            POINTER(c_size_t),
            c_void_p,
            c_void_p,
            POINTER(c_int),
            c_void_p,
            POINTER(c_void_p),
            POINTER(c_size_t),
        ],
    ),
    "get_next_wake_time": (c_uint64, [c_void_p, c_uint64]),
    "add_to_stream": (c_int, [c_void_p, c_uint64, c_char_p, c_size_t, c_int]),
    "probe_new_path_ex": (c_int, [c_void_p, c_void_p, c_void_p, c_int, c_uint64, c_int]),
    "abandon_path": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64]),
    "set_path_status": (c_int, [c_void_p, c_uint64, c_int]),
    "start_key_rotation": (c_int, [c_void_p]),
}


@cache
def library() -> dict[str, Any]:
    """Its functions. Raises ImportError without the wheel."""
    loaded = ctypes.CDLL(str(import_module("aiopquic._binding._transport").__file__))
    found = {}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, f"picoquic_{name}")
        function.restype, function.argtypes = result, arguments
        found[name] = function
    return found


def _packed(host: str, port: int) -> Any:
    """A `sockaddr_storage`."""
    made = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
    return ctypes.create_string_buffer(made, 128)


def _unpacked(buffer: Any) -> tuple[str, int]:
    raw = buffer.raw
    return socket.inet_ntoa(raw[4:8]), struct.unpack("!H", raw[2:4])[0]


class Picoquic(ForeignEngine):
    """A picoquic context with one connection."""

    def __init__(self, certificates: Path, *, is_client: bool) -> None:
        super().__init__(is_client=is_client)
        self._call = library()
        self._clock = c_uint64(1)
        self._callback = _CALLBACK(self._called)  # who passes it on must keep it
        self._connection: Any = None
        self._ready = False
        self._paths = 0
        chain = None if is_client else str(certificates / "server-cert.pem").encode()
        key = None if is_client else str(certificates / "server-key.pem").encode()
        clock = byref(self._clock)
        self._context = self._call["create"](
            8, chain, key, None, ALPN, self._callback, None, None, None, None, 1, clock, None, None, 0
        )
        assert self._context, "picoquic makes no context"
        self._call["set_default_multipath_option"](self._context, 1)
        self._call["set_null_verifier"](self._context)
        self._call["enable_path_callbacks_default"](self._context, 1)
        if is_client:
            assert self._call["set_key_exchange"](self._context, SECP256R1) == 0

    def close(self) -> None:
        self._call["free"](self._context)

    def _at(self, now: float) -> int:
        self._clock.value = max(self._clock.value, int(now * 1e6) + 1)
        return self._clock.value

    def _called(
        self, connection: Any, number: int, data: Any, size: int, event: int, _context: Any, _stream: Any
    ) -> int:
        self._connection = connection
        match event:
            case _ if event in (_DATA, _FIN):
                self.data(number, ctypes.string_at(data, size) if size else b"", event == _FIN)
            case _ if event in (_ALMOST_READY, _READY) and not self._ready:
                self._ready = True
                self.connected()
            case _ if event == _PATH_AVAILABLE:
                self.events.append(PathOpened(number, PeerAddress(("", 0))))
            case _ if event == _PATH_DELETED:
                self.events.append(PathClosed(number, 0, False))
            case _ if event in (_CLOSE, _APPLICATION_CLOSE, _STATELESS_RESET):
                self.events.append(RuntimeError("picoquic has lost the connection"))
        return 0

    def connect(self, address: PeerAddress, now: float) -> None:
        at = self._at(now)
        server = ctypes.cast(_packed(*SERVER), c_void_p)
        self._connection = self._call["create_client_cnx"](
            self._context, server, at, 0, b"localhost", ALPN, self._callback, None
        )
        assert self._connection, "picoquic makes no connection"

    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        path, port = self.number_and_port(address)
        other = _packed(f"10.{path}.0.1", port or 1000)
        source, target = (_packed(*SERVER), other) if self.is_client else (other, _packed(*SERVER))
        pointers = [ctypes.cast(each, c_void_p) for each in (source, target)]
        self._call["incoming_packet_ex"](
            self._context, bytes(data), len(data), *pointers, 0, 0, byref(c_void_p()), self._at(now)
        )

    def handle_timer(self, now: float) -> None:
        """It does what is due when it is asked for datagrams."""

    def next_timer(self) -> float | None:
        at: int = self._call["get_next_wake_time"](self._context, self._clock.value)
        return None if at > self._clock.value + 60_000_000 else max(at, self._clock.value + 1) / 1e6

    def write(self, stream: int, data: bytes, end: bool = False) -> None:
        assert self._call["add_to_stream"](self._connection, stream, bytes(data), len(data), int(end)) == 0

    def unsent(self) -> int:
        return 0  # it keeps what it is given and does not say how much that is

    def bursts(self, now: float) -> list[Burst]:
        made: list[Burst] = []
        at = self._at(now)
        while True:
            data, size = ctypes.create_string_buffer(MAX_DATAGRAM), c_size_t()
            target, source = ctypes.create_string_buffer(128), ctypes.create_string_buffer(128)
            connection_id, connection = ctypes.create_string_buffer(64), c_void_p()
            pointers = [ctypes.cast(each, c_void_p) for each in (target, source)]
            failed = self._call["prepare_next_packet_ex"](
                self._context,
                at,
                data,
                MAX_DATAGRAM,
                byref(size),
                *pointers,
                byref(c_int()),
                ctypes.cast(connection_id, c_void_p),
                byref(connection),
                None,
            )
            if failed or not size.value:
                return made
            host, port = _unpacked(source if self.is_client else target)
            path = int(host.split(".")[1]) if host.startswith("10.") else 0
            made.append(self.burst(data.raw[: size.value], path, port))

    def open_path(self, address: PeerAddress, now: float, backup: bool = False) -> int | None:
        path = self.number_and_port(address)[0]
        ends = [ctypes.cast(_packed(*end), c_void_p) for end in (SERVER, (f"10.{path}.0.1", 1000))]
        if not self._ready or self._call["probe_new_path_ex"](self._connection, *ends, 0, self._at(now), 0):
            return None
        self._paths += 1
        return self._paths

    def abandon_path(self, path: int, code: int, now: float) -> None:
        assert self._call["abandon_path"](self._connection, path, code, self._at(now)) == 0

    def set_backup(self, path: int, backup: bool) -> None:
        assert self._call["set_path_status"](self._connection, path, int(backup)) == 0

    def update_keys(self) -> None:
        assert self._call["start_key_rotation"](self._connection) == 0
