"""From a configuration to what the core is told."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

from multi.config import Config
from multi.config.keys import key_of, key_warnings
from multi.errors import TransportError
from multi.protocol.handshake import KeyPair
from multi.protocol.payloads import Policy
from multi.protocol.sealing import Cipher
from multi.protocol.settings import MAX_EARLY_DATA, Protect, SessionSettings
from multi.schedulers import create_scheduler
from multi.schedulers.base import Scheduler
from multi.transports import transport, transport_names
from multi.transports.base import loaded_transport

NEVER = 1e9  # seconds; "no idle timeout" without a second kind of value
CLIENT_WINDOW = 1024 * 1024  # bytes; a client knows whom it talks to, and few of them, so windows need not begin small

KeyPair(bytes(32))  # the cipher library loads parts of itself then, and whoever imports this is in a thread


def session_settings(config: Config) -> SessionSettings:
    """Settings of a client's or a server's sessions. Reads a client's pre-shared key. Raises ConfigError."""
    limits = config.limits
    multi = config.multi_config
    scheduler, parameters = config.scheduler
    policy = Policy(scheduler, tuple(parameters.items()), multi.mode == "switch", multi.reinject)
    psk_id, psk = (b"", b"") if config.is_server else key_of(config)
    smallest = min(limits.max_stream_window, limits.max_session_window)
    return SessionSettings(
        initial_window=MAX_EARLY_DATA if config.is_server else min(CLIENT_WINDOW, smallest),
        max_stream_window=limits.max_stream_window,
        max_session_window=limits.max_session_window,
        max_streams=limits.max_streams,
        protect=Protect(config.protect),
        ciphers=ciphers(),
        policy=policy,
        peer_policy=None if config.is_server else policy,
        follow_peer_policy=config.is_server and config.steering is None and "scheduler" not in multi.model_fields_set,
        follow_peer_reinject=config.is_server and "reinject" not in multi.model_fields_set,
        handshake_timeout=limits.handshake_timeout,
        resume_timeout=multi.resume_timeout,
        abandon_timeout=multi.abandon_timeout,
        idle_timeouts=tuple((name, config.section_of(name).idle_timeout or NEVER) for name in transport_names()),
        max_connections=limits.max_connections_per_session,
        max_unproved=limits.max_pending_joins,
        psk=psk,
        psk_id=psk_id,
        warnings=() if config.is_server else host_warnings(config),  # a server says it once, not in every session
    )


async def load_transports(config: Config) -> None:
    """Import the code of the transports in use; what cannot be is told by their warnings, and by every attempt."""
    for name in _used(config):
        with suppress(TransportError):
            await loaded_transport(name)


def _used(config: Config) -> list[str]:
    listen = config.listen
    return list(dict.fromkeys(listen.transports if listen else [e.transport for e in config.connection_priority]))


def host_warnings(config: Config) -> tuple[str, ...]:
    """What this host does not do as the configuration wants, or where it keeps keys too openly."""
    settings = config.transport_settings()
    texts = list(key_warnings(config))
    for name in _used(config):
        try:
            texts += transport(name).warnings(settings)
        except TransportError as error:
            texts.append(str(error))
    return tuple(texts)


@cache
def ciphers() -> tuple[Cipher, ...]:
    """AES first where the processor has instructions for it, else ChaCha20 (16 KiB: 1.5 against 4.1 us)."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = " aes "
    both = (Cipher.AES_128_GCM, Cipher.CHACHA20_POLY1305)
    return both if " aes " in flags or " aes\n" in flags else both[::-1]


def local_scheduler(name: str, parameters: dict[str, float]) -> Scheduler:
    """Schedulers named by our own configuration may be `package.module:Class`."""
    return create_scheduler(name, parameters, allow_import=True)


def peer_scheduler(name: str, parameters: dict[str, float]) -> Scheduler:
    """Schedulers named by a peer are looked up, never imported."""
    return create_scheduler(name, parameters)
