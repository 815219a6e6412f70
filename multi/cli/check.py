"""`multi check`: what a configuration means on this machine, and what stands in its way. Dials nobody.

Decides what is worth saying. Which candidates an entry leads to is asked of the same code that opens sessions.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from multi.asyncio.budgets import LEVELS, Account, accounts_of
from multi.asyncio.interruption import run_interruptible
from multi.asyncio.reset_key import kept_in
from multi.asyncio.resolution import Found, Resolver
from multi.budgets.ledger import Ledger, shared_ledger
from multi.cli.parser import EITHER, Parser
from multi.config import Config, Entry, load_config
from multi.config.keys import key_of, key_warnings, load_keys, load_reset_key
from multi.config.model import Listen
from multi.discovery.reverse_path import filtered
from multi.errors import ConfigError, TransportError, printable, words_of
from multi.transports import transport, transport_names
from multi.transports.base import transport_type
from multi.transports.certificates import first_certificate, out_of_date, pin_of
from multi.transports.sockets import listening_socket, transport_error
from multi.types import Kind

CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h


def add_arguments(parser: Parser) -> None:
    parser.runs(run_check, EITHER)


def run_check(config: str) -> int:
    """Print the explanation. Returns 0 when the configuration is usable here, 1 when not. Raises ConfigError."""
    with _quiet("multi.config"):  # its warnings are part of the explanation here
        return _explain(config)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Only errors of this logger for a while: a program that calls `main` keeps its own settings."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _explain(config: str) -> int:
    loaded = load_config(config)
    print(f"{printable(config)}: valid configuration of a {'server' if loaded.is_server else 'client'}")
    usable = _server(loaded) if loaded.is_server else run_interruptible(_client(loaded))
    for warning in loaded.warnings():
        print(f"warning: {warning}")
    if loaded.is_server:
        besides = "" if loaded.control is None else ", opening the sockets of control"
        print(f"tried: binding the ports, reading the files; not tried: whether clients can reach them{besides}")
    else:
        print("tried: names, interfaces, routes, files; not tried: dialling anything, which `multi ping` does")
    print("usable" if usable else "NOT usable on this machine now")
    return 0 if usable else 1


# --- clients ---


async def _client(config: Config) -> bool:
    warnings: list[str] = []
    resolver = Resolver(only_looking(config), lambda: None, warnings.append)
    ledger, day = shared_ledger(), date.today()
    accounts = accounts_of(resolver.entries)
    if accounts:
        ledger.sync()  # nothing was counted here: it only reads
    for index, account in accounts.items():
        if account.level_now(ledger, day) == LEVELS[0]:
            resolver.restrict(index, account.budget, account.period.end(day).isoformat())
    found = await resolver.find()
    resolver.close()
    settings = config.transport_settings()
    used = {entry.transport for entry in config.connection_priority}
    blocked = {name: transport(name).obstacle(settings, listening=False) for name in used}
    missing = _key_obstacle(config)
    usable = False
    for index, entry in enumerate(config.connection_priority):
        obstacle = missing or blocked[entry.transport]
        usable = usable or (not obstacle and any(c.entry == index for c in found.candidates))
        _show_entry(config, index, entry, found, obstacle)
        if index in accounts:
            _show_budget(accounts[index], ledger, day)
    if accounts and ledger.problem:
        print(f"warning: data budgets would be counted in memory only: {printable(ledger.problem)}")
    for host, reason in found.errors.items():
        print(f"{printable(host)}: {printable(reason)}")
    for warning in warnings:
        print(f"warning: {warning}")
    multi = config.multi_config
    print(f"session: connect {multi.connect}, mode {multi.mode}, {config.division}, reinject {multi.reinject}")
    print(f"without a network: waits {multi.resume_timeout:g} s, or as long as the server does if that is shorter")
    _show_files(config)
    _show_transports(config, used)
    for text in (*_not_permitted(config), *filter_warnings(config, found)):
        print(f"warning: {text}")
    if config.wifi_config.power_savings is not None and not any(c.kind == Kind.WIFI.value for c in found.candidates):
        print("warning: wifi_config.power_savings: no WiFi interface is in use")
    return usable


def only_looking(config: Config) -> Config:
    """The same, for who shall change nothing on this machine."""
    return config.model_copy(update={"manage_routes": False})


def _may_administer() -> bool:
    """Whether this process may change links, routes and the power saving of WiFi; False where the system tells not."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_NET_ADMIN & 1)


def _not_permitted(config: Config) -> list[str]:
    """What the configuration wants changed on this machine and this process may not change."""
    if _may_administer():
        return []
    wanted = {
        "manage_routes": config.manage_routes,
        "wifi_config.power_savings": config.wifi_config.power_savings is not None,
    }
    return [f"{name}: needs CAP_NET_ADMIN, which this process does not have" for name, asked in wanted.items() if asked]


def filter_warnings(config: Config, found: Found) -> list[str]:
    """Networks that look dead because this machine drops what comes back over them."""
    if config.manage_routes and _may_administer():
        return []  # then there are routes by source address, under which nothing is dropped
    used = {c.interface for c in found.candidates}
    dropping = filtered(
        (interface for interface in found.interfaces if interface.name in used),
        {c.remote_address for c in found.candidates},
    )
    return [
        f"{name}: this machine drops what comes back over it, by strict reverse-path filtering: it would answer over "
        f"{way or 'no interface'}. Either set manage_routes, or net.ipv4.conf.{name}.rp_filter to 2"
        for name, way in dropping.items()
    ]


def _show_entry(config: Config, index: int, entry: Entry, found: Found, obstacle: str) -> None:
    host, port = config.remote_of(entry)
    where = f"{', '.join(entry.interface)} to {printable(host)} port {port}"
    protection = _protection(config, entry.transport)
    print(f"entry {index}: {entry.transport}, {entry.ip}, {where}, {entry.role.name.lower()}; {protection}")
    candidates = [c for c in found.candidates if c.entry == index]
    rejections = [r for r in found.rejections if r.entry == index]
    for candidate in candidates:
        print(f"  {'no: ' if obstacle else 'yes:'} {candidate}" + (f": {obstacle}" if obstacle else ""))
    for part in rejections:
        print(f"  no:  {printable(part.reason if part.what in part.reason else f'{part.what}: {part.reason}')}")
    if not (candidates or rejections):
        print("  no:  leads to no candidate (another entry already asks for the same connection)")


def _show_budget(account: Account, ledger: Ledger, day: date) -> None:
    budget, used = account.budget, account.used(ledger, day)
    left = max(0, budget.bytes - used) / 1e6
    state = "then" if left else "now"
    print(
        f"  data budget {printable(account.name)!r}: {left:.1f} of {budget.mb:g} MB left until "
        f"{account.period.end(day).isoformat()}, {state} {budget.then}"
    )


def _protection(config: Config, name: str) -> str:
    """Who encrypts, in words."""
    sealed = "sealed by the session"
    encrypts = transport_type(name).needs_certificate
    if encrypts or config.ssl_config is not None:
        outer = f"{name.upper()} (TLS 1.3)" if encrypts else "TLS 1.3"
        ssl = config.ssl_config
        if not config.is_server and ssl is not None and not ssl.verify:
            outer += ", server verified by its pin alone" if ssl.pin else ", server NOT verified"
        return f"protected by {outer}" + (f" and {sealed}" if config.protect == "always" else "")
    if config.protect == "never":
        return "NOT protected"
    return sealed + ("" if config.auth is not None else " (against listeners; no proof of who the other side is)")


# --- servers ---


def _server(config: Config) -> bool:
    listen = config.listen
    assert listen is not None
    usable = not _key_obstacle(config)
    for name in listen.transports:
        obstacle = _server_obstacle(config, listen, name)
        usable = usable and not obstacle
        kind = "UDP" if transport_type(name).over_udp else "TCP"
        port = f"{kind} port {listen.port}" if listen.port else f"a free {kind} port"
        state = f"no: {obstacle}" if obstacle else "free"
        print(f"{name} on {printable(listen.host)}, {port}: {state}; {_protection(config, name)}")
    multi = config.multi_config
    print(f"clients without a network: waited for {multi.resume_timeout:g} s, or as they do if that is shorter")
    if 0.0 < multi.abandon_timeout < multi.resume_timeout:
        print(f"clients that have closed all connections themselves: waited for {multi.abandon_timeout:g} s")
    _show_files(config)
    _show_transports(config, set(listen.transports))
    return usable


def _server_obstacle(config: Config, listen: Listen, name: str) -> str:
    known = transport_type(name)
    if obstacle := known.make().obstacle(config.transport_settings(), listening=True):
        return obstacle
    kind = socket.SOCK_DGRAM if known.over_udp else socket.SOCK_STREAM
    try:
        with listening_socket(listen.host, listen.port, lambda family: socket.socket(family, kind)) as sock:
            if kind == socket.SOCK_STREAM:
                sock.listen(1)
    except TransportError as error:
        return str(error)
    except OSError as error:
        return str(transport_error(error, f"cannot listen on port {listen.port}"))
    return ""


# --- this machine ---


def _key_obstacle(config: Config) -> str:
    try:
        if not config.is_server:
            key_of(config)
        else:
            load_keys(config)
            load_reset_key(config)
    except ConfigError as error:
        return str(error)
    return ""


def _show_files(config: Config) -> None:
    """Every file the configuration names, and whether it can be read."""
    ssl = config.ssl_config
    named = {} if ssl is None else {"cert": ssl.cert, "key": ssl.key, "ca": ssl.ca, "client_ca": ssl.client_ca}
    files = {f"ssl_config.{key}": config.resolve(name) for key, name in named.items() if name is not None}
    for key, path in files.items():
        try:
            with path.open("rb"):
                state = "ok"
        except OSError as error:
            state = f"cannot be read: {words_of(error)}"
        print(f"{key}: {printable(str(path))}: {state}")
        if key == "ssl_config.cert" and state == "ok":
            _show_certificate(path)
    if (traces := config.trace_path) is not None:
        print(f"trace.dir: {printable(str(traces))}: {_write_state(traces)}")
    if config.listen is not None:
        _show_kept_reset_key(config.listen)
    for text in key_warnings(config):
        print(f"warning: {printable(text)}")
    if obstacle := _key_obstacle(config):
        print(printable(obstacle))
    elif config.psk_path is not None:
        print(f"auth.psk_file: {printable(str(config.psk_path))}: ok")
    if ":" in (name := config.multi_config.scheduler.name):
        print(f"warning: multi_config.scheduler: {printable(name)} is code that sessions run; it was not looked at")


def _write_state(directory: Path) -> str:
    """Of one that will be made if need be."""
    there = next(d for d in (directory, *directory.absolute().parents) if d.exists())
    return "ok" if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else "cannot be written"


def _show_kept_reset_key(listen: Listen) -> None:
    """Where a server that names no key keeps its own."""
    try:
        path = kept_in(listen)
    except ValueError as error:
        print(f"warning: no reset key can be kept: {error}")
        return
    if path is not None:
        print(f"reset key: kept in {printable(str(path))}: {_write_state(path.parent)}")


def _show_certificate(path: Path) -> None:
    """The pin of a certificate, for the `ssl_config.pin` of the other side, and whether it is out of date."""
    try:
        print(f"ssl_config.cert: pin {pin_of(first_certificate(path))}")
        doubt = out_of_date(path)
    except TransportError as error:
        doubt = str(error)
    if doubt:
        print(f"warning: {printable(doubt)}")


def _show_transports(config: Config, transports: set[str]) -> None:
    """What this machine has for each transport, what is left to it, and what it does otherwise."""
    settings = config.transport_settings()
    for name in sorted(transports, key=transport_names().index):
        for line in transport(name).host(settings):
            print(line)
        if choice := transport(name).choice(settings):
            print(f"{name}: {choice}")
        for warning in transport(name).warnings(settings):
            print(f"warning: {warning}")
