"""Where a server may send its client: it could have been led astray, or want to use its clients against others. Pure.

What a server tells is tried with a dial and believed when it has proved itself there; this decides what is worth that
dial, and how often it is made until then.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, ip_address
from math import inf

from multi.types import Address, Candidate

MAX_TOLD = 4  # addresses of a server that count besides those its name has
TOLD_APART = 1.0  # seconds between dials of one of them, MAX_TOLD at most of all: a server shall aim at nobody
PROVED_KEPT = 64  # addresses at which a server has proved itself
THIS_NETWORK = IPv4Network("0.0.0.0/8")  # RFC 6890: reaches this machine, if anything


def may_be_told(literal: str, opened_to: str) -> bool:
    """Whether a session that was opened to the address `opened_to` may follow its server to `literal`.

    Who is reached in one network has nothing to say about services of another: loopback only from loopback, private
    addresses only from private ones, link-local ones never.
    """
    address, from_where = ip_address(literal), ip_address(opened_to)
    if isinstance(address, IPv6Address):
        # IPv4 in other clothes: a translator or tunnel of this machine may lead anywhere.
        if address.ipv4_mapped is not None or (address.sixtofour and not address.sixtofour.is_global):
            return False
    elif address in THIS_NETWORK:
        return False
    if address.is_loopback:
        return from_where.is_loopback
    if address.is_unspecified or address.is_multicast or address.is_link_local or address.is_reserved:
        return False  # reserved is also ::/8, where IPv4 is embedded, and the broadcast address
    return address.is_global or not (from_where.is_global or from_where.is_loopback)


class ToldAddresses:
    """Those of one session: where its server has proved itself, and until when others are not dialled again."""

    def __init__(self) -> None:
        self._proved: dict[Address, None] = {}
        """The oldest first."""
        self._held_until: dict[str, float] = {}
        """By address, the soonest first."""

    def doubtful(self, candidate: Candidate) -> bool:
        """It was told, and nobody has proved to be the server there."""
        return candidate.told and (candidate.remote_address, candidate.remote_port) not in self._proved

    def free_at(self, candidate: Candidate) -> float:
        """From when on it may be dialled. A server that tells others all the time gets no more dials than for four."""
        if not self.doubtful(candidate):
            return -inf
        latest = list(self._held_until.values())[-MAX_TOLD:]
        of_all = latest[0] if len(latest) == MAX_TOLD else -inf
        return max(of_all, self._held_until.get(candidate.remote_address, -inf))

    def dialled(self, candidate: Candidate, now: float) -> None:
        if self.doubtful(candidate):
            self._held_until = {address: until for address, until in self._held_until.items() if until > now}
            self._held_until[candidate.remote_address] = now + TOLD_APART

    def proved(self, candidate: Candidate) -> None:
        """The server is there."""
        self._proved[candidate.remote_address, candidate.remote_port] = None
        if len(self._proved) > PROVED_KEPT:
            del self._proved[next(iter(self._proved))]
