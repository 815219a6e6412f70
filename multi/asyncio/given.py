"""Sockets that are bound before a server starts, by systemd or by a program, and the listeners they are for."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Sequence

from multi.transports.sockets import format_address

logger = logging.getLogger("multi.server")

FAMILIES = (socket.AF_INET, socket.AF_INET6)


class GivenSockets:
    """They belong to the server from now on. `ports` are those of its configuration, the main one first."""

    def __init__(self, sockets: Iterable[socket.socket], ports: Sequence[int]) -> None:
        self._left = list(sockets)
        self._ports = ports

    def take(self, kind: socket.SocketKind, port: int) -> socket.socket | None:
        """The one for a listener of this kind on `port`, or None.

        Whoever gives a single socket of a kind means the main port, whatever it is bound to.
        """
        of_kind = {sock: sock.getsockname()[1] for sock in self._left if sock.type == kind and sock.family in FAMILIES}
        found = next((sock for sock, bound in of_kind.items() if bound == port), None)
        if found is None and port == self._ports[0]:
            others = [sock for sock, bound in of_kind.items() if bound not in self._ports]
            found = others[0] if len(others) == 1 else None
        if found is not None:
            self._left.remove(found)
            found.setblocking(False)
        return found

    def close(self) -> None:
        """What no listener has taken is of no use."""
        for sock in self._left:
            if sock.family in FAMILIES:
                kind = "TCP" if sock.type == socket.SOCK_STREAM else "UDP"
                what = f"{kind} {format_address(sock.getsockname()[:2])}"
            else:
                what = f"{sock.family.name} {sock.getsockname()!r}"
            logger.warning("a socket that was given to the server is not used: %s", what)
            sock.close()
        self._left.clear()
