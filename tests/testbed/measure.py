"""Small tools that measure what a link really does; the testbed is checked with them.

Each is a plain function to be run on a host with `Host.run_python`, one on the receiving side and one on the sending
side. They say nothing about `multi` itself.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from dataclasses import dataclass

CHUNK = 64 * 1024
DATAGRAM = 1200  # bytes of payload
_NUMBERED = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class FloodResult:
    """Datagrams that came, of those the sender numbered, and the rate of IP bytes between the first and the last."""

    received: int
    mbps: float


def echo_datagrams(port: int, seconds: float, address: str = "::") -> int:
    """Send UDP datagrams back where they came from; return how many."""
    count = 0
    with _datagrams(address, "") as sock:
        sock.bind((address, port))
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            try:
                data, sender = sock.recvfrom(CHUNK)
                sock.sendto(data, sender)
                count += 1
            except TimeoutError:
                break
    return count


def round_trips(
    address: str, port: int, interface: str = "", *, count: int = 50, interval: float = 0.01
) -> list[float]:
    """Round-trip times of small datagrams in seconds, sorted; lost ones are missing."""
    times: list[float] = []
    with _datagrams(address, interface) as sock:
        sock.connect((address, port))
        for number in range(count):
            sent = time.monotonic()
            # Refused: the other side may still be starting.
            with contextlib.suppress(ConnectionRefusedError):
                sock.send(_NUMBERED.pack(number))
                while select.select([sock], [], [], 1.0)[0]:
                    if sock.recv(CHUNK) == _NUMBERED.pack(number):
                        times.append(time.monotonic() - sent)
                        break
            time.sleep(interval)
    return sorted(times)


def flood(address: str, port: int, interface: str, mbps: float, seconds: float) -> int:
    """Send UDP datagrams at a steady rate of IP bytes; return how many."""
    headers = 48 if ":" in address else 28
    interval = (DATAGRAM + headers) * 8 / (mbps * 1e6)
    sent = 0
    filler = bytes(DATAGRAM - _NUMBERED.size)
    with _datagrams(address, interface) as sock:
        sock.connect((address, port))
        start = time.monotonic()
        while (now := time.monotonic() - start) < seconds:
            while sent * interval <= now:
                with contextlib.suppress(ConnectionRefusedError):
                    sock.send(_NUMBERED.pack(sent) + filler)
                sent += 1
            time.sleep(min(interval, 0.0005))
    return sent


def receive_flood(port: int, address: str = "::", silence: float = 0.5) -> FloodResult:
    """Count what `flood` sends until nothing has come for a while."""
    received, size, first, last = 0, 0, 0.0, 0.0
    with _datagrams(address, "") as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind((address, port))
        sock.settimeout(10.0)
        try:
            while True:
                data, sender = sock.recvfrom(CHUNK)
                last = time.monotonic()
                if not received:
                    first = last
                    sock.settimeout(silence)
                else:
                    mapped_or_four = "." in sender[0]
                    size += len(data) + (28 if mapped_or_four else 48)
                received += 1
        except TimeoutError:
            pass
    return FloodResult(received, size * 8 / 1e6 / (last - first) if last > first else 0.0)


def serve_bulk(port: int, *, connections: int = 1, address: str = "::", send_seconds: float = 0.0) -> None:
    """Take TCP connections one after the other and read them to their end, or write to them for some seconds."""
    six = ":" in address
    with socket.create_server((address, port), family=_family(address), backlog=16, dualstack_ipv6=six) as listener:
        listener.settimeout(10.0)
        for _ in range(connections):
            sock, _peer = listener.accept()
            with sock:
                if send_seconds:
                    _write_for(sock, send_seconds)
                else:
                    _read_all(sock, 0.0)


def bulk_rate(address: str, port: int, interface: str, seconds: float, *, download: bool, skip: float = 0.5) -> float:
    """TCP goodput in Mbit/s over one connection, without the first `skip` seconds of a download."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as sock:
        if interface:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        _connect_patiently(sock, (address, port))
        if download:
            return _read_all(sock, skip)
        sent, took = _write_for(sock, seconds)
        return sent * 8 / 1e6 / took


def cpu_seconds(process: int) -> float:
    """Processor time a process of this machine has used so far."""
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def _read_all(sock: socket.socket, skip: float) -> float:
    buffer = bytearray(1 << 18)
    start = time.monotonic()
    counted, first, last = 0, 0.0, 0.0
    while received := sock.recv_into(buffer):
        last = time.monotonic()
        if last - start < skip:
            continue
        if not first:
            first = last
        else:
            counted += received
    return counted * 8 / 1e6 / (last - first) if last > first else 0.0


def _write_for(sock: socket.socket, seconds: float) -> tuple[int, float]:
    data = bytes(CHUNK)
    start = time.monotonic()
    sent = 0
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - start < seconds:
            sent += sock.send(data)
    return sent, time.monotonic() - start


def _connect_patiently(sock: socket.socket, address: tuple[str, int]) -> None:
    """The other side may still be starting."""
    deadline = time.monotonic() + 5.0
    while True:
        try:
            sock.connect(address)
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _datagrams(address: str, interface: str) -> socket.socket:
    sock = socket.socket(_family(address), socket.SOCK_DGRAM)
    if interface:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    return sock


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
