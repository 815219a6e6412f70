"""From host, port and options, or a `multi://` URL, to the same `Config` that a file gives.

An option is a key of `multi_config`, `ssl_config`, `auth` or `listen` (`scheduler=`, `ca=`, `psk_id=`), a key of the
top level (`limits=`), `interfaces` or `transports`. What is not said has the default it has in a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import BaseModel

from multi.config.errors import shown
from multi.config.model import Auth, ConfigModel, Listen, MultiConfig, SslConfig
from multi.errors import ConfigError, closest
from multi.transports import transport_names
from multi.transports.base import transport_type
from multi.types import host_and_port

SCHEME = "multi://"
DEFAULT_PORT = 7788
DEFAULT_TRANSPORT = "tcp"
SECTIONS: dict[str, type[BaseModel]] = {"multi_config": MultiConfig, "ssl_config": SslConfig, "auth": Auth}
OTHER_NAMES = {"psk": "psk_file"}
LISTS = ("interfaces", "transports", "pin")
OF_ASYNCIO = {
    "ssl": "ca=, pin=, cert= and key=",
    "server_hostname": "server_name=",
    "local_addr": "interfaces= with the address",
    "ssl_handshake_timeout": "open_timeout=",
    "happy_eyeballs_delay": "connect=",
    "family": "listen or connection_priority in a configuration",
    "reuse_port": "workers=",
    **dict.fromkeys(("sock", "proto", "flags", "interleave", "all_errors"), ""),
    **dict.fromkeys(("reuse_address", "keep_alive", "ssl_shutdown_timeout"), ""),
}
"""Options of asyncio's calls and what takes their place. None, which is given for most of them when there is nothing to
say, is no mistake.
"""
UNPROVED = (
    "%s: sealed against listeners, but nobody proves who the server is; pass ca= or pin= of its certificate "
    "(a server makes one with identity=True), or psk= with a file of `multi psk`"
)

logger = logging.getLogger("multi.config")
_warned = False


def url_mapping(url: str) -> dict[str, Any]:
    """The client's configuration that `multi://host:7788?ca=ca.pem&interfaces=wifi,cellular` means."""
    return client_mapping(*_parts(url))


def pinned_url(host: str, port: int, pin: str, transports: Sequence[str]) -> str:
    """The URL with which clients reach a server that listens for these, and know it by its key."""
    taken = {other for name in transports for other in (name, *transport_type(name).also_accepts)}
    over = "" if DEFAULT_TRANSPORT in taken else f"&transports={transports[0]}"
    return f"{SCHEME}{host_and_port(host, port)}?pin={quote(pin, safe='/')}{over}"


def _parts(url: str) -> tuple[str, int, dict[str, Any]]:
    """Host, port and options of `multi://host:7788?ca=ca.pem&interfaces=wifi,cellular`."""
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as error:
        raise ConfigError(f"found {shown(url)}; allowed: multi://HOST:PORT?OPTION=VALUE ({error})") from None
    if not split.hostname or split.path not in ("", "/") or split.username is not None or split.fragment:
        raise ConfigError(f"found {shown(url)}; allowed: multi://HOST:PORT?OPTION=VALUE")
    options: dict[str, Any] = {}
    for name, text in parse_qsl(split.query, keep_blank_values=True):
        if name in options:
            raise ConfigError(f"found {name} twice in the URL; allowed: once")
        options[name] = text.split(",") if name in LISTS else float(text) if _is_time(name, text) else text
    if "pin" in options:
        options["pin"] = [pin.replace(" ", "+") for pin in options["pin"]]  # written as it is in Base64
    return split.hostname, DEFAULT_PORT if port is None else port, options


def _is_time(name: str, text: str) -> bool:
    return name.endswith("_timeout") and text.replace(".", "", 1).isdecimal()


def client_mapping(host: str, port: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a client that says no more than this. Raises ConfigError for an unknown option."""
    interfaces = _names(options.get("interfaces", "any"))
    transports = _names(options.get("transports", DEFAULT_TRANSPORT))
    config = _sorted(options)
    ssl = config.get("ssl_config", {})
    proved = ssl.keys() & {"ca", "pin", "cert"}
    for name in transports:
        if not proved and name in transport_names() and transport_type(name).needs_certificate:
            raise ConfigError(f"found {name} without ca= or pin=; allowed: with one of them", "transports")
    if isinstance(ssl.get("pin"), str):
        ssl["pin"] = [ssl["pin"]]
    if "pin" in ssl and not ssl.keys() & {"ca", "verify"}:
        ssl["verify"] = False  # the pin names the very key, whoever has signed it
    if not proved and "auth" not in config:
        _warn(f"{host} port {port}")
    entries = [[transport, "any", interface] for interface in interfaces for transport in transports]
    return {"connection_priority": entries, "remote_host": host, "remote_port": port, **config}


def server_mapping(host: str | None, port: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a server; with `identity` it has a key and a certificate of its own, which are kept."""
    options = dict(options)
    identity = options.pop("identity", False)
    config = _sorted(options, "listen")
    if identity:
        from multi.transports.identity import server_identity

        cert, key = server_identity()
        config.setdefault("ssl_config", {}).update(cert=str(cert), key=str(key))
    listen = {"host": host or "::", "port": port, **config.pop("listen", {})}
    if "transports" in options:
        listen["transports"] = _names(options["transports"])
    return {"listen": listen, **config}


def _names(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split(",")
    return list(value) if isinstance(value, Iterable) else [str(value)]


def _sorted(options: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Options under the sections that they belong to."""
    sections: dict[str, type[BaseModel]] = {**SECTIONS, **({"listen": Listen} if more else {})}
    known = {key: section for section, model in sections.items() for key in model.model_fields}
    apart = ("interfaces", "transports")[bool(more) :]
    config: dict[str, Any] = {}
    for option, value in options.items():
        name = OTHER_NAMES.get(option, option)
        if name in apart or (value is None and name in OF_ASYNCIO):
            continue
        if name in known:
            config.setdefault(known[name], {})[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
        elif name in ConfigModel.model_fields or name.endswith("_config"):
            config[name] = value
        else:
            raise _unknown(option, {*known, *OTHER_NAMES, *apart})
    return config


def _unknown(option: str, known: set[str]) -> ConfigError:
    if option in OF_ASYNCIO:
        instead = OF_ASYNCIO[option] or "nothing"
        return ConfigError(f"found {option}=, which is asyncio's; in its place there is {instead} here")
    guess = closest(option, sorted(known))
    asked = f"; did you mean {guess}=?" if guess else ""
    return ConfigError(f"found {option}=, no option; allowed: {', '.join(sorted(known))}{asked}")


def _warn(where: str) -> None:
    """Once for a program: what is true of one such session is true of all."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(UNPROVED, where)
