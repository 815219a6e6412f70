"""The relay's ends of the interfaces: a TAP device, or a packet socket on the far end of a veth pair.

Both give and take Ethernet frames behind a virtio-net header, in which the kernel passes on unfinished checksums and
TCP segments that have not been cut yet. A frame read from one can be written to the other as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from dataclasses import dataclass

from multi.errors import words_of
from multi.lab.testbed.namespaces import inside
from multi.lab.testbed.netlink import HostNetlink

# include/uapi/linux/if_tun.h
TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
TUNSETVNETHDRSZ = 0x400454D8
TUNSETCARRIER = 0x400454E2
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_TCP, TUN_F_UDP = 0x1 | 0x2 | 0x4, 0x20 | 0x40  # TUN_F_CSUM and TUN_F_TSO4, 6; TUN_F_USO4, 6
TUN = "/dev/net/tun"

# include/uapi/linux/if_packet.h, if_ether.h
SOL_PACKET = 263
PACKET_VNET_HDR, PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING = 15, 20, 23
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33

VNET_HEADER = 10
ETHERNET_HEADER = 14
GSO_UDP_L4 = 5
READ_SIZE = 1 << 16
RECEIVE_BUFFER = 16 << 20  # bytes; the relay may be off the processor for a while and must not lose packets by that

_OFFLOAD = struct.Struct("=BBHHHH")  # virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset


def wire_size(frame: bytes) -> tuple[int, int]:
    """Bytes and number of the IP packets that this frame is, once the kernel has cut it."""
    kind = frame[1]
    if not kind:
        return len(frame) - VNET_HEADER - ETHERNET_HEADER, 1
    _flags, _kind, _length, payload_each, transport, _offset = _OFFLOAD.unpack_from(frame)
    headers = transport + (8 if kind == GSO_UDP_L4 else (frame[VNET_HEADER + transport + 12] >> 4) * 4)
    payload = len(frame) - VNET_HEADER - headers
    packets = max(1, -(-payload // max(1, payload_each)))
    return payload + packets * (headers - ETHERNET_HEADER), packets


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace and a way to change what is in it."""

    descriptor: int
    netlink: HostNetlink
    congestion: str = ""
    """Congestion control to be set on routes; empty where the namespace as a whole has it."""


def tap_allowed() -> str:
    """Empty if TAP devices can be opened, else the reason."""
    try:
        os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{TUN}: {words_of(error)}"
    return ""


class TapDevice:
    """The interface goes away with the descriptor, which is read from and written to, a frame at a time, unblocked."""

    def __init__(self, host: Namespace, name: str) -> None:
        with inside(host.descriptor):
            self.descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
                fcntl.ioctl(self.descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
                fcntl.ioctl(self.descriptor, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER))
                # Segments are handed over before the kernel cuts them: those of TCP, and of UDP from Linux 6.2 on.
                fcntl.ioctl(self.descriptor, TUNSETOFFLOAD, TUN_F_TCP)
                with contextlib.suppress(OSError):
                    fcntl.ioctl(self.descriptor, TUNSETOFFLOAD, TUN_F_TCP | TUN_F_UDP)
                self.index = socket.if_nametoindex(name)
            except OSError:
                os.close(self.descriptor)
                raise

    def carrier(self, on: bool) -> None:
        fcntl.ioctl(self.descriptor, TUNSETCARRIER, struct.pack("i", on))

    def close(self) -> None:
        os.close(self.descriptor)


class VethDevice:
    """A pair of which the far end is in the relay's namespace."""

    def __init__(self, host: Namespace, relay: Namespace, name: str, far_name: str) -> None:
        self._host, self._relay = host, relay
        host.netlink.create_veth(name, far_name, relay.descriptor)
        with inside(host.descriptor):
            self.index = socket.if_nametoindex(name)
        self._far_index = socket.if_nametoindex(far_name)
        # Without a protocol it hears nothing until it is bound: nothing of other interfaces.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.descriptor = self._socket.fileno()
        try:
            for option in (PACKET_VNET_HDR, PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING):
                self._socket.setsockopt(SOL_PACKET, option, 1)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            except PermissionError:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            self._socket.setblocking(False)
            self._socket.bind((far_name, ETH_P_ALL))
            relay.netlink.set_up(self._far_index, True)
        except OSError:
            self.close()
            raise

    def carrier(self, on: bool) -> None:
        self._relay.netlink.set_up(self._far_index, on)

    def close(self) -> None:
        self._socket.close()
        # Its namespace may have gone before.
        with contextlib.suppress(OSError):
            self._host.netlink.delete_link(self.index)


Device = TapDevice | VethDevice
