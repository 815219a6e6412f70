"""IPv4 packets as an attacker in the path takes them apart and makes his own, with checksums that kernels accept."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

from multi.lab.testbed.devices import ETHERNET_HEADER, VNET_HEADER

TCP, UDP = 6, 17
FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10

_IP = struct.Struct("!BBHHHBBH4s4s")
_TCP = struct.Struct("!HHIIBBHHH")
_UDP = struct.Struct("!HHHH")
_PSEUDO = struct.Struct("!4s4sBBH")


@dataclass(frozen=True, slots=True)
class Packet:
    """One TCP segment or UDP datagram in IPv4, and the Ethernet header it came behind."""

    ethernet: bytes
    source: str
    destination: str
    protocol: int
    source_port: int
    destination_port: int
    payload: bytes
    sequence: int = 0
    acknowledged: int = 0
    flags: int = 0
    window: int = 0
    options: bytes = b""

    def frame(self) -> bytes:
        """As the relay carries it: nothing left to do for the kernel."""
        addresses = socket.inet_aton(self.source), socket.inet_aton(self.destination)
        if self.protocol == TCP:
            offset = (_TCP.size + len(self.options)) // 4 << 4
            window, ports = self.window, (self.source_port, self.destination_port)
            head = _TCP.pack(*ports, self.sequence, self.acknowledged, offset, self.flags, window, 0, 0) + self.options
            at = 16
        else:
            head = _UDP.pack(self.source_port, self.destination_port, _UDP.size + len(self.payload), 0)
            at = 6
        transport = bytearray(head + self.payload)
        pseudo = _PSEUDO.pack(*addresses, 0, self.protocol, len(transport))
        transport[at : at + 2] = checksum(pseudo + transport) or b"\xff\xff"
        ip = bytearray(_IP.pack(0x45, 0, _IP.size + len(transport), 0, 0x4000, 64, self.protocol, 0, *addresses))
        ip[10:12] = checksum(ip)
        return bytes(VNET_HEADER) + self.ethernet + ip + transport

    def back(self, flags: int = 0, payload: bytes = b"") -> Packet:
        """One that claims to come from the other end in answer to this one."""
        return replace(
            self,
            ethernet=self.ethernet[6:12] + self.ethernet[:6] + self.ethernet[12:],
            source=self.destination,
            destination=self.source,
            source_port=self.destination_port,
            destination_port=self.source_port,
            sequence=self.acknowledged,
            acknowledged=(self.sequence + len(self.payload)) & 0xFFFFFFFF,
            flags=flags,
            options=b"",
            payload=payload,
        )


def checksum(data: bytes | bytearray) -> bytes:
    """RFC 1071; sums may be made in any byte order."""
    total = sum(memoryview(bytes(data) + b"\0" * (len(data) % 2)).cast("H"))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "little" if struct.pack("=H", 1) == b"\1\0" else "big")


def packets(frame: bytes) -> list[Packet]:
    """The packets a frame stands for once the kernel has cut it; none if it is neither TCP nor UDP in IPv4."""
    start = VNET_HEADER + ETHERNET_HEADER
    if frame[start - 2 : start] != b"\x08\0" or frame[start + 9] not in (TCP, UDP):
        return []
    length, protocol = int.from_bytes(frame[start + 2 : start + 4], "big"), frame[start + 9]
    source, destination = (socket.inet_ntoa(frame[start + n : start + n + 4]) for n in (12, 16))
    transport = frame[start + (frame[start] & 15) * 4 : start + length]
    ethernet, piece = frame[VNET_HEADER:start], int.from_bytes(frame[4:6], "little") if frame[1] else len(frame)
    if protocol == UDP:
        ports = struct.unpack_from("!HH", transport)
        made = Packet(ethernet, source, destination, protocol, ports[0], ports[1], transport[8:])
    else:
        from_port, to_port, sequence, acknowledged, offset, flags, window, _, _ = _TCP.unpack_from(transport)
        head = (offset >> 4) * 4
        options, payload = transport[_TCP.size : head], transport[head:]
        made = Packet(
            *(ethernet, source, destination, protocol, from_port, to_port, payload),
            *(sequence, acknowledged, flags, window, options),
        )
    return list(_cut(made, piece))


def _cut(whole: Packet, piece: int) -> Iterable[Packet]:
    if len(whole.payload) <= piece:
        yield whole
        return
    for start in range(0, len(whole.payload), piece):
        last = start + piece >= len(whole.payload)
        yield replace(
            whole,
            payload=whole.payload[start : start + piece],
            sequence=(whole.sequence + start) & 0xFFFFFFFF,
            flags=whole.flags if last else whole.flags & ~(FIN | PSH),
        )
