"""What in a configuration does not fit together: contradictions, which are errors, and warnings.

A contradiction can never work. A warning is about something that has no effect, or that will work only under
conditions nobody can check here; silence would hide a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from multi.config.errors import Finding, KeyPath, shown
from multi.config.model import MAX_TOLD, ConfigModel, Entry, Listen
from multi.config.values import KINDS
from multi.errors import ConfigError, closest
from multi.schedulers import create_scheduler
from multi.transports.base import transport_type
from multi.transports.settings import Section
from multi.types import ROUTE_LENGTH, Side

MISSPELT = 0.8  # similarity from which an interface name is taken for a misspelt kind ("celular", "wfi")


def contradictions(config: ConfigModel) -> list[Finding]:
    """Everything that can never work, in the order of the file format."""
    if config.listen is not None and config.connection_priority:
        message = 'found together with "connection_priority"; allowed: one of them, for a server or a client'
        return [Finding(("listen",), message)]
    if config.listen is None and not config.connection_priority:
        message = 'found neither "connection_priority" nor "listen"; allowed: one of them, for a client or a server'
        return [Finding((), message)]
    return [
        *(_of_server(config) if config.is_server else _of_client(config)),
        *_auth(config),
        *_interfaces(config),
        *_scheduler_parameters(config),
    ]


def entry_contradictions(config: ConfigModel, entry: Entry) -> list[Finding]:
    """What can never work of an entry that is wanted besides those of the configuration."""
    findings = list(_misspelt_kinds(config, entry, ()))
    if config.remote_host is None and entry.remote_host is None:
        findings.append(Finding(("remote_host",), "missing; allowed: a host name or IP address"))
    return findings


def warnings_of(config: ConfigModel) -> list[Finding]:
    """Everything that has no effect or may not work."""
    other = Side.CLIENT if config.is_server else Side.SERVER
    unused = list(_keys_for(other, config, ()))
    return [*(_never_followed(config.listen) if config.listen is not None else _client_tls(config)), *unused]


# --- contradictions ---


def _of_client(config: ConfigModel) -> Iterator[Finding]:
    if config.remote_host is None and any(entry.remote_host is None for entry in config.connection_priority):
        yield Finding(("remote_host",), "missing; allowed: a host name or IP address, here or in every entry")
    for position, entry in enumerate(config.connection_priority):
        yield from _misspelt_kinds(config, entry, ("connection_priority", position))
    ssl = config.ssl_config
    if ssl is not None and ssl.key is not None and ssl.cert is None:
        yield Finding(("ssl_config", "cert"), "missing; allowed: the PEM file with the certificate that key belongs to")


def _of_server(config: ConfigModel) -> Iterator[Finding]:
    ssl, listen = config.ssl_config, config.listen
    assert listen is not None
    yield from _whereabouts(listen)
    if config.workers is not None and len(listen.route_bytes(bytes)) >= ROUTE_LENGTH:
        message = f'found {shown(listen.route)} together with "workers"; allowed: at most {ROUTE_LENGTH - 1} bytes'
        yield Finding(("listen", "route"), message)
    if ssl is None:
        for name in listen.transports:
            if transport_type(name).needs_certificate:
                message = f"missing; allowed: an object with cert and key, {name.upper()} cannot listen without them"
                yield Finding(("ssl_config",), message)
        return
    for key in ("cert", "key"):
        if getattr(ssl, key) is None:
            yield Finding(("ssl_config", key), "missing; allowed: the name of a PEM file, a server needs cert and key")
    if ssl.client_ca is None and ssl.pin:
        yield Finding(("ssl_config", "client_ca"), "missing; allowed: a PEM file, pin is about clients' certificates")
    for name in listen.transports if ssl.client_ca else ():
        for key, message in config.section_of(name).cannot_ask_clients():
            yield Finding((f"{name}_config", key), message)


def _whereabouts(listen: Listen) -> Iterator[Finding]:
    """Where clients are sent."""
    if listen.own is not None and len(listen.announce) >= MAX_TOLD:
        message = f'found {len(listen.announce)} addresses together with "own"; allowed: {MAX_TOLD} in all'
        yield Finding(("listen", "announce"), message)
    if listen.join == "own" and not listen.told(listen.port):
        yield Finding(("listen", "own"), 'missing; allowed: an address that join "own" sends clients to')
    if not listen.port and any(peer.port is None for peer in listen.peers.values()):
        yield Finding(("listen", "peers"), 'found an address without a port; allowed: ports where "port" is 0')
    if "auto" in listen.peers:
        yield Finding(("listen", "peers"), 'found "auto"; allowed: the route of another server in hex')
    if listen.peers and listen.route is None:
        yield Finding(("listen", "route"), "missing; allowed: a token that tells this server from its peers")
    if listen.route in listen.peers:
        yield Finding(("listen", "peers"), f'found {shown(listen.route)}, which is "route"; allowed: other servers')


def _auth(config: ConfigModel) -> Iterator[Finding]:
    auth = config.auth
    if auth is None or (auth.psk_file is None) != (auth.psk_env is None):
        return
    if auth.psk_file is None:
        yield Finding(("auth", "psk_file"), "missing; allowed: a file name here, or the name of a variable in psk_env")
    else:
        yield Finding(("auth", "psk_env"), "found together with psk_file; allowed: one of them")


def _interfaces(config: ConfigModel) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for kind, names in config.interfaces:
        for name in names:
            if name in seen:
                where = "twice" if seen[name] == kind else f'also under "{seen[name]}"'
                yield Finding(("interfaces", kind), f"found {shown(name)} {where}; allowed: each interface once")
            seen[name] = kind


def _scheduler_parameters(config: ConfigModel) -> Iterator[Finding]:
    """Parameters a scheduler does not take. One named by its class is not imported: loading opens no file."""
    scheduler = config.multi_config.scheduler
    if config.steering is not None and "scheduler" in config.multi_config.model_fields_set:
        message = 'found together with "multi_config.scheduler"; allowed: one of them'
        yield Finding(("steering",), message)
    if not scheduler.parameters or ":" in scheduler.name:
        return
    try:
        create_scheduler(scheduler.name, scheduler.parameters)
    except ConfigError as error:
        place = ("multi_config", "scheduler", *((error.key_path,) if error.key_path else ()))
        yield Finding(place, error.message)


def _misspelt_kinds(config: ConfigModel, entry: Entry, place: KeyPath) -> Iterator[Finding]:
    known = {name for _, names in config.interfaces for name in names}
    for name in entry.interface:
        kind = "" if name in known else _meant_kind(name)
        if kind:
            yield Finding(
                (*place, "interface"),
                f'found {shown(name)}; allowed: "eth", "wifi", "cellular", "any", an interface name or a '
                f'local IP address; did you mean "{kind}"? (if an interface has this name, list it under '
                f'"interfaces")',
            )


def _meant_kind(name: str) -> str:
    """The kind that `name` looks like a misspelling of; empty when it may well be an interface name."""
    folded = name.casefold()
    if name in KINDS or not name.isalpha():
        return ""
    if folded not in KINDS and folded.startswith(KINDS):  # "etha", "wifib": names people give interfaces
        return ""
    return closest(name, KINDS, cutoff=MISSPELT)


# --- warnings ---


def _keys_for(side: Side, section: Section, place: KeyPath) -> Iterator[Finding]:
    """The keys that were set and mean something on `side` alone."""
    for key, field in type(section).model_fields.items():
        if key not in section.model_fields_set:
            continue
        value = getattr(section, key)
        if side in field.metadata:
            yield Finding((*place, key), f"not used: it is for {side.value}s")
        elif isinstance(value, Section):
            yield from _keys_for(side, value, (*place, key))


def _never_followed(listen: Listen) -> Iterator[Finding]:
    """Addresses that clients elsewhere take for an attempt to have them dial services of their own machine."""
    if is_loopback(listen.host):
        return
    own = [("own", listen.own)] if listen.own is not None else []
    for key, place in (
        *own,
        *(("announce", one) for one in listen.announce),
        *(("peers", p) for p in listen.peers.values()),
    ):
        if is_loopback(place.host):
            yield Finding(("listen", key), f"{place.host} is of use only for clients that came to a loopback address")


def is_loopback(host: str) -> bool:
    """Of a name only `localhost` is: what others lead to is not known."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _client_tls(config: ConfigModel) -> Iterator[Finding]:
    ssl = config.ssl_config
    if ssl is not None and ssl.cert is not None and ssl.key is None and ssl.ca is not None:
        yield Finding(("ssl_config", "cert"), "not used: it has no key, and ca already names the trusted certificates")
    if ssl is not None and not ssl.verify and not ssl.pin:
        yield Finding(("ssl_config", "verify"), "the server is not verified: anybody on the way can pose as it")
    trusts = ssl is not None and (ssl.ca is not None or (ssl.cert is not None and ssl.key is None))
    if trusts or (ssl is not None and not ssl.verify):
        return
    for position, entry in enumerate(config.connection_priority):
        if transport_type(entry.transport).needs_certificate:
            yield Finding(
                ("connection_priority", position),
                f"{entry.transport.upper()} needs ssl_config with ca (or verify: false), unless an authority this "
                "system trusts signed the server's certificate",
            )
