"""Checks across the sections of a configuration: what contradicts itself, and what is doubtful.

A contradiction can never work and is an error. A doubt is something said that has no effect, or that will
work only under conditions nobody can check here; it becomes a warning, because silence would hide a
mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from multi.config.fields import KINDS, address_family
from multi.config.findings import Finding, KeyPath, closest, shown
from multi.config.sections import InterfaceKinds
from multi.errors import ConfigError

if TYPE_CHECKING:
    from multi.config.entry import Entry
    from multi.config.models import Config

__all__ = ["contradictions", "warnings_of", "entry_contradictions"]

CLIENT_KEYS = (
    "remote_host",
    "remote_port",
    "session_id",
    "wifi_config",
    "interfaces",
    "manage_routes",
)
CLIENT_MULTI_KEYS = ("connect", "wait", "open_timeout")
CLIENT_SSL_KEYS = ("ca", "verify", "server_name")
SERVER_LIMITS = (
    "max_sessions",
    "max_sessions_per_source",
    "max_unauthenticated",
    "max_unauthenticated_per_source",
    "max_memory",
    "max_connections_per_session",
    "max_joins_per_second",
    "max_join_burst",
    "max_pending_joins",
    "max_detached_sessions",
    "segment_timeout",
)
MISSPELT = 0.8  # similarity from which an interface name is taken for a misspelt kind ("celular", "wfi")


def contradictions(config: Config) -> list[Finding]:
    """Everything that can never work, in the order of the file format."""
    if config.listen is not None and config.connection_priority:
        message = 'found together with "connection_priority"; allowed: one of them, for a server or a client'
        return [Finding(("listen",), message)]
    if config.listen is None and not config.connection_priority:
        message = 'found neither "connection_priority" nor "listen"; allowed: one of them, for a client or a server'
        return [Finding((), message)]
    of_side = _server_contradictions if config.is_server else _client_contradictions
    return [
        *of_side(config),
        *_quic_contradictions(config),
        *_auth_contradictions(config),
        *_interface_contradictions(config),
        *_scheduler_contradictions(config),
    ]


def warnings_of(config: Config) -> list[Finding]:
    """Everything that has no effect or may not work."""
    return list(_server_doubts(config) if config.is_server else _client_doubts(config))


def _client_contradictions(config: Config) -> Iterator[Finding]:
    if config.remote_host is None and any(entry.remote_host is None for entry in config.connection_priority):
        yield Finding(("remote_host",), "missing; allowed: a host name or IP address, here or in every entry")
    for position, entry in enumerate(config.connection_priority):
        yield from _misspelt_kinds(config, entry, ("connection_priority", position))
    ssl = config.ssl_config
    if ssl is not None and ssl.key is not None and ssl.cert is None:
        yield Finding(("ssl_config", "cert"), "missing; allowed: the PEM file with the certificate that key belongs to")


def entry_contradictions(config: Config, entry: Entry) -> list[Finding]:
    """What can never work of an entry that is wanted besides those of the configuration."""
    findings = list(_misspelt_kinds(config, entry, ()))
    if config.remote_host is None and entry.remote_host is None:
        findings.append(Finding(("remote_host",), "missing; allowed: a host name or IP address"))
    return findings


def _misspelt_kinds(config: Config, entry: Entry, place: KeyPath) -> Iterator[Finding]:
    known = config.kind_by_interface()
    for name in entry.interfaces:
        kind = "" if name in known else _meant_kind(name)
        if kind:
            yield Finding(
                (*place, "interface"),
                f'found {shown(name)}; allowed: "eth", "wifi", "cellular", "any", an interface name or a '
                f'local IP address; did you mean "{kind}"? (if an interface has this name, list it under '
                f'"interfaces")',
            )


def _server_contradictions(config: Config) -> Iterator[Finding]:
    ssl, listen = config.ssl_config, config.listen
    if ssl is not None:
        for key in ("cert", "key"):
            if getattr(ssl, key) is None:
                yield Finding(
                    ("ssl_config", key),
                    "missing; allowed: the name of a PEM file, a server needs cert and key",
                )
        if ssl.pin and ssl.client_ca is None:
            yield Finding(
                ("ssl_config", "client_ca"), "missing; allowed: a PEM file, pin is about clients' certificates"
            )
        if config.quic_config.engine == "qh3" and ssl.client_ca and listen is not None and "quic" in listen.transports:
            yield Finding(
                ("quic_config", "engine"),
                'found "qh3" together with ssl_config.client_ca; allowed: "aioquic", qh3 cannot ask for certificates',
            )
    elif listen is not None and "quic" in listen.transports:
        yield Finding(("ssl_config",), "missing; allowed: an object with cert and key, QUIC cannot listen without them")


def _quic_contradictions(config: Config) -> Iterator[Finding]:
    quic = config.quic_config
    if quic.engine == "qh3" and quic.congestion != "cubic":
        yield Finding(
            ("quic_config", "congestion"),
            f'found {shown(quic.congestion)} together with the engine "qh3"; allowed: "cubic", qh3 has no other',
        )


def _auth_contradictions(config: Config) -> Iterator[Finding]:
    auth = config.auth
    if auth is None or (auth.psk_file is None) != (auth.psk_env is None):
        return
    if auth.psk_file is None:
        yield Finding(("auth", "psk_file"), "missing; allowed: a file name here, or the name of a variable in psk_env")
    else:
        yield Finding(("auth", "psk_env"), "found together with psk_file; allowed: one of them")


def _interface_contradictions(config: Config) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for kind in InterfaceKinds.model_fields:
        for name in getattr(config.interfaces, kind):
            if name in seen:
                where = "twice" if seen[name] == kind else f'also under "{seen[name]}"'
                yield Finding(("interfaces", kind), f"found {shown(name)} {where}; allowed: each interface once")
            seen[name] = kind


def _scheduler_contradictions(config: Config) -> Iterator[Finding]:
    """Parameters a scheduler does not take. One named by its class is not imported: loading opens no file."""
    scheduler = config.multi_config.scheduler
    if not scheduler.parameters or ":" in scheduler.name:
        return
    from multi.schedulers import create_scheduler  # only configs with parameters pay for the import

    try:
        create_scheduler(scheduler.name, scheduler.parameters)
    except ConfigError as error:
        place = ("multi_config", "scheduler", *((error.key_path,) if error.key_path else ()))
        yield Finding(place, str(error).removeprefix(f"{error.key_path}: "))


def _meant_kind(name: str) -> str:
    """The kind that `name` looks like a misspelling of; empty when it may well be an interface name."""
    if name in (*KINDS, "any") or not name.isalpha() or address_family(name):
        return ""
    folded = name.casefold()
    if folded not in KINDS and folded.startswith(KINDS):  # "etha", "wifib": names people give interfaces
        return ""
    guess = closest(name, KINDS, cutoff=MISSPELT)
    return guess if len(name) >= len(guess) - 1 else ""


def _client_doubts(config: Config) -> Iterator[Finding]:
    ssl = config.ssl_config
    if ssl is not None and ssl.cert is not None and ssl.key is None and ssl.ca is not None:
        yield Finding(("ssl_config", "cert"), "not used: it has no key, and ca already names the trusted certificates")
    if ssl is not None and ssl.client_ca is not None:
        yield Finding(("ssl_config", "client_ca"), "not used: only a server checks client certificates")
    if ssl is not None and not ssl.verify and not ssl.pin:
        yield Finding(
            ("ssl_config", "verify"),
            "the server is not verified: anybody on the way can pose as it",
        )
    trusts = ssl is not None and (ssl.ca is not None or (ssl.cert is not None and ssl.key is None))
    if not trusts and (ssl is None or ssl.verify):
        for position, entry in enumerate(config.connection_priority):
            if entry.transport == "quic":
                yield Finding(
                    ("connection_priority", position),
                    "QUIC needs ssl_config with ca (or verify: false), unless an authority this system trusts signed "
                    "the server's certificate",
                )
    for key in SERVER_LIMITS:
        if key in config.limits.model_fields_set:
            yield Finding(("limits", key), "not used: it is a limit of servers")


def _server_doubts(config: Config) -> Iterator[Finding]:
    for key in CLIENT_KEYS:
        if key in config.model_fields_set:
            yield Finding((key,), "not used: it is for clients")
    for key in CLIENT_MULTI_KEYS:
        if key in config.multi_config.model_fields_set:
            yield Finding(("multi_config", key), "not used: clients open connections")
    ssl = config.ssl_config
    for key in CLIENT_SSL_KEYS:
        if ssl is not None and key in ssl.model_fields_set:
            yield Finding(("ssl_config", key), "not used: it is for clients")
