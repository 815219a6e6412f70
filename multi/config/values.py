"""The values that keys of a configuration may have, each type with what it refuses.

A function that refuses a value raises ValueError with what is allowed instead; `multi.config.errors` makes the message
of it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from multi.config.errors import not_one_of, secret
from multi.schedulers import scheduler_names
from multi.transports import transport_names
from multi.transports.settings import DAY, Range
from multi.types import ROUTE_LENGTH, Role

KINDS = ("eth", "wifi", "cellular")
"""Kinds of interface an entry may ask for; `any` is all of them."""
OTHER_KIND_NAMES = {"ethernet": "eth", "wi-fi": "wifi", "lte": "cellular", "4g": "cellular", "5g": "cellular"}
"""What people type for a kind."""
MAX_WORKERS = 256  # the last byte of a route is theirs


_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_KEY_ENTRY = re.compile(r":[0-9a-fA-F]{16}|^\s*[0-9a-fA-F]{32,}\s*$")  # `id:key` as in a file of keys, or a key alone
_ROUTE = re.compile(r"(?!(00)+$)([0-9a-fA-F]{2}){1,8}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_PIN = re.compile(r"sha256/[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=")  # one spelling each: they are compared as text
_DOTTED_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+){3}")


def literal_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A literal IP address (a zone such as `%eth0` is allowed), None when `text` is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("text without control characters")
    return value


def _at_most_bytes(limit: int) -> AfterValidator:
    """Text that goes into the handshake, where it has so many bytes at most."""

    def check(value: str) -> str:
        if len(value.encode()) > limit:
            raise ValueError(f"at most {limit} bytes in UTF-8")
        return value

    return AfterValidator(check)


def _host(value: str) -> str:
    if literal_address(value) is None and (re.search(r"[\s/:\[]", value) or _DOTTED_NUMBERS.fullmatch(value)):
        raise ValueError("a host name or a valid IP address, without brackets and port; no URL")
    return value


def _interface(value: str) -> str:
    address = literal_address(value)
    if address is not None:
        if address.is_unspecified or address.is_multicast:
            raise ValueError('an address of this machine, or "any"')
    elif re.search("[:/]", value) or _DOTTED_NUMBERS.fullmatch(value):
        raise ValueError("an interface name, a kind, or a valid IP address without prefix length")
    return value


def _kind(value: str) -> str:
    return OTHER_KIND_NAMES.get(value.casefold(), value)


def _announced(value: str) -> str:
    address = literal_address(value)
    if address is None or address.is_unspecified or address.is_multicast or address.is_link_local:
        raise ValueError("an IP address that clients elsewhere can reach")
    return value


def _route(value: str) -> str:
    if value != "auto" and not _ROUTE.fullmatch(value):
        raise ValueError(f'"auto", or 2 to {2 * ROUTE_LENGTH} hexadecimal digits, two for each byte, not all 0')
    return value.lower()


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise ValueError("an IP address or a network such as 192.0.2.0/24") from None


def _transport(value: object) -> object:
    if value not in transport_names():
        raise not_one_of(transport_names())
    return value


def _scheduler(value: str) -> str:
    names = scheduler_names(aliases=True)
    if value not in names and not _CLASS_PATH.fullmatch(value):
        raise not_one_of(names, further=' or "package.module:Class"')
    return value


def _role(value: object) -> Role:
    if isinstance(value, str) and value in ROLES:
        return ROLES[value]
    if isinstance(value, Role):
        return value
    raise not_one_of(ROLES)


def _workers(value: object) -> object:
    if value is None or value == "auto" or (type(value) is int and 0 < value <= MAX_WORKERS):
        return value
    raise ValueError(f'a whole number from 1 to {MAX_WORKERS} or "auto"')


def _pin(value: str) -> str:
    """RFC 7469 section 2.1.1."""
    if not _PIN.fullmatch(value):
        raise ValueError('"sha256/" and the Base64 of 32 bytes, as `multi cert` shows them')
    return value


def _no_key(value: object) -> object:
    """Whatever was put here by mistake may be the key itself: no message repeats it."""
    if not isinstance(value, str) or _KEY_ENTRY.search(value):
        raise secret("a name of at most 4096 characters")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise secret("the name of an environment variable, of letters, digits and _")
    return value


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


ROLES = {
    "active": Role.ACTIVE,
    "primary": Role.ACTIVE,
    "secondary": Role.SECONDARY,
    "backup": Role.BACKUP,
    "never": Role.NEVER,
}

Port = Annotated[int, Range(1, 65_535)]
Seconds = Annotated[float, Range(0.1, DAY)]
Count = Annotated[int, Range(1, 1_000_000)]
Bytes = Annotated[int, Range(65_536, 1 << 30)]  # windows start at 64 KiB: no bound may be smaller
Text = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_printable)]
FileName = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_printable)]
HostName = Annotated[Text, AfterValidator(_host)]
InterfaceName = Annotated[Text, Field(examples=["wlan0"]), AfterValidator(_interface)]
InterfaceNames = Annotated[tuple[InterfaceName, ...], Field(strict=False, max_length=64)]
Label = Annotated[str, Field(max_length=64), AfterValidator(_printable)]
InterfaceChoice = Annotated[
    Text, Field(examples=[*KINDS, "any", "wlan0", "192.0.2.1"]), AfterValidator(_interface), AfterValidator(_kind)
]
InterfaceChoices = Annotated[
    tuple[InterfaceChoice, ...], Field(strict=False, min_length=1, max_length=16), BeforeValidator(_as_tuple)
]
AnnouncedHost = Annotated[Text, AfterValidator(_announced)]
NetworkList = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], Field(strict=False, max_length=256)]
RouteName = Annotated[Text, AfterValidator(_route)]
TransportName = Annotated[Text, BeforeValidator(_transport)]
SchedulerName = Annotated[Text, _at_most_bytes(255), AfterValidator(_scheduler)]
Pin = Annotated[Text, AfterValidator(_pin)]
KeyFileName = Annotated[FileName, BeforeValidator(_no_key)]
VariableName = Annotated[str, BeforeValidator(_no_key), AfterValidator(_variable)]
KeyName = Annotated[Text, _at_most_bytes(64)]  # `multi.protocol.handshake.MAX_PSK_ID`
RoleName = Annotated[
    Role,
    BeforeValidator(_role),
    PlainSerializer(lambda role: role.name.lower(), return_type=str),
    WithJsonSchema({"type": "string", "enum": list(ROLES)}),
]
WorkerCount = Annotated[
    int | Literal["auto"],
    BeforeValidator(_workers),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_WORKERS}, {"const": "auto"}]}),
]
