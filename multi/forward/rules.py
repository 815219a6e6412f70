"""What clients may reach through a server: nothing but what a rule allows, judged on the very address that is dialled.

A rule is `HOST:PORTS`. PORTS is a port, a range (`8000-8010`) or `*`; HOST is one of

    *                        every public address
    example.com              what this name leads to, if that is a public address
    *.example.com            the same for all names under it
    localhost                this machine's loopback addresses, whatever name led there
    10.1.0.0/16, 10.1.2.3    these addresses, whatever name led there; IPv6 in brackets: [2001:db8::/32]:443

Names are what whoever runs their DNS makes of them, so no name leads to an address that is not public: loopback,
private, link-local and so on are reached only where a rule names them by address (or by `localhost`), that is by a
network that lies wholly within such a range. `0.0.0.0/0` names none of them. The same holds for this machine's own
public addresses, behind whose firewall a client would be, and for the metadata services of clouds.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from multi.discovery.resources import read_bounded
from multi.errors import ConfigError, closest, printable
from multi.forward.protocol import parse_port

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

T = TypeVar("T")

LISTEN = "listen="
UNPRIVILEGED = range(1024, 65536)  # ports that need no privilege
MAX_FILE = 1 << 20  # bytes; a device or log file has no end
_LABELS = re.compile(r"(?!-)[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_NUMERIC_LABEL = re.compile(r"(\d+|0x[0-9a-f]*)")

# Ranges that are not the public internet, and what they are. The smallest one that holds an address counts. IANA's
# special-purpose address registries (RFC 6890), and what translates to IPv4 addresses that could be any of them.
_SPECIAL: tuple[tuple[IpNetwork, str], ...] = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by carriers"),
        ("100.100.100.200/32", "a metadata service"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a metadata service"),
        ("169.254.0.0/16", "link-local"),
        ("169.254.169.254/32", "a metadata service"),
        ("169.254.170.2/32", "a metadata service"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.0.192/32", "a metadata service"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/8", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("100::/8", "reserved"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "for documentation"),
        ("5f00::/16", "reserved"),
        ("fc00::/7", "private"),
        ("fd00:ec2::254/128", "a metadata service"),
        ("fd20:ce::254/128", "a metadata service"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@dataclass(frozen=True, slots=True)
class _Rule:
    ports: range
    networks: tuple[IpNetwork, ...] = ()
    name: str = ""
    """Lower case, `*` or with a leading `*.`; empty when networks say what it is about."""

    def names_host(self, host: str) -> bool:
        if self.name.startswith("*."):
            return host.endswith(self.name[1:]) and "%" not in host  # 2001:db8::1%.example.org is an address
        return self.name in ("*", host)


@dataclass(frozen=True, slots=True)
class Permissions:
    """What one client may do."""

    allow: tuple[_Rule, ...] = ()
    listen: tuple[range, ...] = ()

    def reasons_against(self, host: str, port: int, address: str, *, own: bool) -> str:
        """Why `host`, which has led to `address`, may not be reached at `port`; empty when it may.

        `own` says that the address is one of this machine's.
        """
        ip = ipaddress.ip_address(address.partition("%")[0])
        range_, what = special_range(ip)
        if own and not what:
            range_, what = ipaddress.ip_network(ip), "an address of this machine"
        wanted = canonical(host)
        for rule in self.allow:
            if port not in rule.ports:
                continue
            if any(ip in network and (not what or _within(network, range_)) for network in rule.networks):
                return _hidden(ip)
            if rule.name and not what and rule.names_host(wanted):
                return ""
        return f"{address} is {what}, and no rule names it" if what else "no rule allows it"

    def could_reach(self, port: int) -> bool:
        """A rule allows this port at all; asked before a name is looked up for a client."""
        return any(port in rule.ports for rule in self.allow)

    def may_listen(self, port: int) -> bool:
        """Port 0, whichever is free, goes with `*`."""
        return any(port in ports or (not port and ports == UNPRIVILEGED) for ports in self.listen)


def canonical(host: str) -> str:
    return host.lower().removesuffix(".")


def is_ambiguous(host: str) -> bool:
    """A host that resolvers take for an IPv4 address although it is not written as one: `2130706433`, `0177.1`."""
    try:
        ipaddress.ip_address(host)
        return False
    except ValueError:
        return bool(_NUMERIC_LABEL.fullmatch(canonical(host).rpartition(".")[2]))


def special_range(address: IpAddress) -> tuple[IpNetwork, str]:
    """The smallest range of addresses that are not public it lies in, and what that is; empty for a public one."""
    found = [(network, what) for network, what in _SPECIAL if address in network]
    return max(found, key=lambda item: item[0].prefixlen, default=(ipaddress.ip_network(address), ""))


def _within(network: IpNetwork, range_: IpNetwork) -> bool:
    return network.network_address in range_ and network.prefixlen >= range_.prefixlen


def _hidden(ip: IpAddress) -> str:
    """What speaks against an IPv6 address that is another spelling of an IPv4 address, which rules have not judged."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return ""
    inner = ip.ipv4_mapped or (ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None)
    what = special_range(inner)[1] if inner is not None else ""
    return f"{ip} stands for {inner}, which is {what}" if what else ""


@dataclass(frozen=True, slots=True)
class Rules:
    """Permissions of everybody, and of clients whose key or certificate has its own, which replace them."""

    everybody: Permissions
    keys: Mapping[str, Permissions]
    """By `psk:NAME` or `cert:NAME`."""

    def of(self, identities: Iterable[str]) -> Permissions:
        """What a client may do that has proved these identities; the first one with permissions of its own counts."""
        return next((self.keys[name] for name in identities if name in self.keys), self.everybody)


def parse_rules(text: str) -> Rules:
    """Rules as they are given to `--forward-to`: `RULE,RULE,...` with `listen=PORTS` among them, or a file's name.

    Raises ConfigError.
    """
    if ":" in text or text.startswith(LISTEN):
        parts = [part.strip() for part in text.split(",")]
        listen = [part.removeprefix(LISTEN) for part in parts if part.startswith(LISTEN)]
        allow = [part for part in parts if not part.startswith(LISTEN)]
        return Rules(_permissions({"allow": allow, "listen": listen}, "--forward-to"), {})
    try:
        content = read_bounded(Path(text), MAX_FILE)
    except OSError as error:
        words = f"cannot read it: {error.strerror}; without a file: HOST:PORTS,..."
        raise ConfigError(words, printable(text)) from None
    try:
        return rules_of(json.loads(content), text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"not JSON ({error})", text) from None


def rules_of(content: object, where: str) -> Rules:
    """Rules from the JSON of a file. Raises ConfigError."""
    found = _object(content, ("allow", "listen", "keys"), where)
    keys = found.pop("keys", {})
    if not isinstance(keys, dict):
        raise ConfigError("allowed: an object", f"{where}: keys")
    for name in keys:
        if name.partition(":")[0] not in ("psk", "cert") or not name.partition(":")[2]:
            raise ConfigError(f"found {name!r}; allowed: psk:NAME or cert:NAME", f"{where}: keys")
    own = {name: _permissions(value, f"{where}: keys[{name!r}]") for name, value in keys.items()}
    return Rules(_permissions(found, where), own)


def _object(content: object, allowed: tuple[str, ...], where: str) -> dict[str, object]:
    if not isinstance(content, dict):
        raise ConfigError(f"allowed: an object with {', '.join(allowed)}", where)
    for key in content:
        if key not in allowed:
            guess = closest(key, allowed)
            hint = f"; did you mean {guess!r}?" if guess else f"; allowed: {', '.join(allowed)}"
            raise ConfigError(f"unknown key {printable(key)!r}{hint}", where)
    return dict(content)


def _permissions(content: object, where: str) -> Permissions:
    found = _object(content, ("allow", "listen"), where)
    return Permissions(_list(found, "allow", _rule, where), _list(found, "listen", _listen_ports, where))


def _list(content: Mapping[str, object], key: str, parse: Callable[[str], T], where: str) -> tuple[T, ...]:
    items = content.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ConfigError("allowed: a list of texts", f"{where}: {key}")
    parsed = []
    for item in items:
        try:
            parsed.append(parse(item))
        except ValueError as error:
            raise ConfigError(f"{printable(item)!r}: {error}", f"{where}: {key}") from None
    return tuple(parsed)


def _rule(text: str) -> _Rule:
    host, colon, ports = text.rpartition(":")
    if not colon or not host:
        raise ValueError("not HOST:PORTS")
    allowed = _ports(ports)
    if host == "*":
        return _Rule(allowed, name="*")
    if host.lower() == "localhost":
        return _Rule(allowed, _LOOPBACK)
    bracketed = host.startswith("[") and host.endswith("]")
    inner = host[1:-1] if bracketed else host
    if bracketed or "/" in inner or ":" in inner or _NUMERIC_LABEL.fullmatch(inner.lower().rpartition(".")[2]):
        network = ipaddress.ip_network(inner)
        if (network.version == 6) != bracketed:
            raise ValueError("an IPv6 address or network stands in brackets, nothing else does")
        return _Rule(allowed, (network,))
    name = canonical(host)
    if not _LABELS.fullmatch(name.removeprefix("*.")):
        raise ValueError("no host name, address or network")
    return _Rule(allowed, name=name)


def _ports(text: str) -> range:
    if text == "*":
        return range(1, 65536)
    first, dash, last = text.partition("-")
    low = parse_port(first, 1)
    high = parse_port(last, 1) if dash else low
    if high < low:
        raise ValueError(f"the range {text} is empty")
    return range(low, high + 1)


def _listen_ports(text: str) -> range:
    """Ports to listen on for clients. A range does not reach from privileged ports to others by mistake."""
    if text == "*":
        return UNPRIVILEGED
    ports = _ports(text)
    if ports[0] < UNPRIVILEGED[0] <= ports[-1]:
        raise ValueError(f"ports below {UNPRIVILEGED[0]} need a grant of their own")
    return ports
