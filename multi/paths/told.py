"""Where a server may send its client: it could have been led astray, or want to use its clients against others. Pure.

What a server tells is tried with a dial and believed when it has proved itself there; this decides what is worth that
dial. How often an address is dialled is decided by the manager.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, ip_address

MOST_TOLD = 4  # addresses of a server that count besides those its name has
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
