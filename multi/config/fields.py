"""Types of single configuration values: ports, names, hosts, interfaces, transports, schedulers.

Each type refuses what can never be right. Whether an interface, host or file exists is found out later,
by those who use it: a configuration can be checked on another machine than the one it is for.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from multi.config.findings import one_of, refusal, shown
from multi.types import Family

__all__ = [
    "BUILTIN_SCHEDULERS",
    "BUILTIN_TRANSPORTS",
    "KINDS",
    "KeyFileName",
    "Bytes",
    "Count",
    "EnvironmentName",
    "FileName",
    "Host",
    "InterfaceChoice",
    "InterfaceName",
    "KeyName",
    "Pin",
    "Port",
    "SchedulerName",
    "Seconds",
    "Section",
    "Text",
    "TransportName",
    "address_family",
]

BUILTIN_TRANSPORTS = ("tcp", "quic", "mptcp")
BUILTIN_SCHEDULERS = (
    "adaptive",
    "RR",
    "WRR",
    "lowest_latency",
    "LL",
    "top_latency",
    "top_throughput",
    "BLEST",
    "ECF",
    "redundant",
    "cost",
)
KINDS = ("eth", "wifi", "cellular")
"""Kinds of interface an entry may ask for; `any` is all of them."""

DAY = 86_400.0  # seconds; the longest time-out that makes sense for one connection
GIBIBYTE = 1 << 30

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_KEY_ENTRY = re.compile(r":[0-9a-fA-F]{16}|^\s*[0-9a-fA-F]{32,}\s*$")  # `id:key` as in a file of keys, or a key alone
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_DOTTED_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+){3}")


class Section(BaseModel):
    """Base of every part of a configuration: no unknown keys, no conversions, no changes after loading."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def address_family(text: str) -> Family | None:
    """Family of a literal IP address (a zone such as `%eth0` is allowed), None when `text` is none."""
    try:
        return Family.IPV4 if ipaddress.ip_address(text).version == 4 else Family.IPV6
    except ValueError:
        return None


def _text(value: str) -> str:
    if not value.isprintable():
        raise refusal(f"found {shown(value)}; allowed: text without control characters")
    return value


def _pin(value: str) -> str:
    """RFC 7469 section 2.1.1, in its canonical spelling, so that pins can be compared as text."""
    kind, _, encoded = value.partition("/")
    try:
        digest = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if kind != "sha256" or len(digest) != 32 or base64.b64encode(digest).decode() != encoded:
        raise refusal(
            f'found {shown(value)}; allowed: "sha256/" and the Base64 of 32 bytes, as `multi cert` shows them'
        )
    return value


def _no_secret(value: object) -> object:
    """Whatever was put here by mistake may be the key itself: no message repeats it."""
    if not isinstance(value, str) or _KEY_ENTRY.search(value):
        raise refusal("found something else (not shown, it may be a key); allowed: a name of at most 4096 characters")
    return value


def _environment_name(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise refusal(
            "found something else (not shown, it may be a key); allowed: the name of an environment variable, "
            "of letters, digits and _"
        )
    return value


def _wire_text(limit: int) -> AfterValidator:
    """Text that goes into the handshake, where it has so many bytes at most."""

    def check(value: str) -> str:
        size = len(value.encode())
        if size > limit:
            raise refusal(f"found {shown(value)}, {size} bytes in UTF-8; allowed: at most {limit}")
        return value

    return AfterValidator(check)


def _host(value: str) -> str:
    if address_family(value):
        return value
    if "/" in value or any(character.isspace() for character in value):
        allowed = "a host name or IP address, no URL"
    elif value.startswith("[") or re.fullmatch(r"[^:]+:[0-9]+", value):
        allowed = "a host name or IP address alone, without brackets; the port belongs in remote_port or port"
    elif ":" in value or _DOTTED_NUMBERS.fullmatch(value):
        allowed = "a host name or a valid IP address"
    else:
        return value
    raise refusal(f"found {shown(value)}; allowed: {allowed}")


def _interface(value: str) -> str:
    if address_family(value):
        address = ipaddress.ip_address(value)
        if address.is_unspecified or address.is_multicast:
            raise refusal(f'found {shown(value)}; allowed: an address of this machine, or "any"')
    elif ":" in value or _DOTTED_NUMBERS.fullmatch(value):
        raise refusal(f"found {shown(value)}; allowed: a valid IP address, an interface name or a kind")
    elif "/" in value:
        raise refusal(f"found {shown(value)}; allowed: an IP address without prefix length, or an interface name")
    return value


def _transport(value: str) -> str:
    if value in BUILTIN_TRANSPORTS:
        return value
    from multi.transports.base import (
        transport_names,
    )  # only configs with further transports pay for the import

    names = transport_names()
    if value in names:
        return value
    raise refusal(one_of(value, dict.fromkeys((*BUILTIN_TRANSPORTS, *names))))


def _scheduler(value: str) -> str:
    if value in BUILTIN_SCHEDULERS or _CLASS_PATH.fullmatch(value):
        return value
    from multi.schedulers import scheduler_names  # only configs with further schedulers pay for the import

    names = scheduler_names()
    if value in names:
        return value
    known = dict.fromkeys((*BUILTIN_SCHEDULERS, *names))
    raise refusal(one_of(value, known, further=', a registered name or "package.module:Class"'))


Port = Annotated[int, Field(ge=1, le=65_535)]
Seconds = Annotated[float, Field(ge=0.1, le=DAY)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Bytes = Annotated[int, Field(ge=65_536, le=GIBIBYTE)]  # windows start at 64 KiB: no bound may be smaller
Text = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_text)]
FileName = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_text)]
Host = Annotated[Text, AfterValidator(_host)]
InterfaceName = Annotated[Text, Field(examples=["wlan0"]), AfterValidator(_interface)]
InterfaceChoice = Annotated[Text, Field(examples=[*KINDS, "any", "wlan0", "192.0.2.1"]), AfterValidator(_interface)]
TransportName = Annotated[Text, Field(examples=list(BUILTIN_TRANSPORTS)), AfterValidator(_transport)]
SchedulerName = Annotated[Text, _wire_text(255), Field(examples=list(BUILTIN_SCHEDULERS)), AfterValidator(_scheduler)]
Pin = Annotated[Text, AfterValidator(_pin)]
KeyFileName = Annotated[FileName, BeforeValidator(_no_secret)]
EnvironmentName = Annotated[str, BeforeValidator(_no_secret), AfterValidator(_environment_name)]
KeyName = Annotated[Text, _wire_text(64)]  # `multi.protocol.handshake.MAX_PSK_ID`
