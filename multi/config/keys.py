"""Pre-shared keys from a file or from the environment: `id:key` entries, the key in hex. Which files must be there.

Keys are never logged, and no error repeats what was read: it names the file or variable and the place in it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from multi.config.model import Auth, ConfigModel
from multi.discovery.resources import read_bounded
from multi.errors import ConfigError

MIN_KEY = 16  # bytes; shorter keys could be guessed from one recorded handshake
GOOD_KEY = 32  # bytes; what is shorter may be words, which can be guessed at any length
MIN_RESET_KEY = 32  # bytes
MAX_ID = 64  # bytes; `multi.protocol.handshake.MAX_PSK_ID`
MAX_FILE_SIZE = 16 << 20  # bytes; a hundred thousand keys, and a device has no end
_HEX = re.compile(rf"\s*([0-9a-fA-F]{{2}}\s*){{{MIN_KEY},}}")


def load_keys(config: ConfigModel) -> dict[bytes, bytes]:
    """Return {id: key}, empty without `auth`. Raises ConfigError naming the place, never its content."""
    auth = config.auth
    if auth is None:
        return {}
    keys = _read(config, auth)
    if auth.strict and (doubt := _doubt(keys)):
        raise ConfigError(f"{doubt}; allowed: longer ones", "auth.strict")
    return keys


def _read(config: ConfigModel, auth: Auth) -> dict[bytes, bytes]:
    if auth.psk_env is not None:
        value = os.environ.get(auth.psk_env)
        if value is None:
            raise ConfigError(f"the environment variable {auth.psk_env} is not set", "auth.psk_env")
        return _parse(re.split(r"[,\r\n]", value), f"{auth.psk_env} entry", auth.psk_env, "auth.psk_env")
    path = config.psk_path
    assert path is not None
    return _parse(_text_of(path, "auth.psk_file").splitlines(), f"{path} line", str(path), "auth.psk_file")


def _text_of(path: Path, key_path: str) -> str:
    try:
        return read_bounded(path, MAX_FILE_SIZE).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}", key_path) from None


def load_reset_key(config: ConfigModel) -> bytes:
    """A server's key for reset tokens, empty without `listen.reset_key_file`. Raises ConfigError."""
    name = config.listen.reset_key_file if config.listen is not None else None
    if name is None:
        return b""
    path = config.resolve(name)
    text = "".join(_text_of(path, "listen.reset_key_file").split())
    if not re.fullmatch(rf"([0-9a-fA-F]{{2}}){{{MIN_RESET_KEY},}}", text):
        raise ConfigError(f"{path} is not a key of at least {MIN_RESET_KEY} bytes in hex", "listen.reset_key_file")
    return bytes.fromhex(text)


def key_of(config: ConfigModel) -> tuple[bytes, bytes]:
    """A client's (id, key); empty without `auth`. Raises ConfigError."""
    keys = load_keys(config)
    if config.auth is None:
        return b"", b""
    wanted = config.auth.psk_id
    if wanted is None:
        return next(iter(keys.items()))
    if wanted.encode() not in keys:
        where = config.auth.psk_env or config.psk_path
        raise ConfigError(f"{where} holds no key {wanted!r}", "auth.psk_id")
    return wanted.encode(), keys[wanted.encode()]


def check_certificate_files(config: ConfigModel) -> None:
    """Raise ConfigError naming the key of `ssl_config` whose file is needed and cannot be read."""
    for key, path in _needed_files(config).items():
        try:
            path.open("rb").close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", "") or str(error)
            raise ConfigError(f"cannot read {path}: {reason.lower()}", f"ssl_config.{key}") from None


def _needed_files(config: ConfigModel) -> dict[str, Path]:
    """By key of `ssl_config`; what `warnings` says is not used may be missing."""
    ssl = config.ssl_config
    if ssl is None:
        return {}
    named = {"cert": ssl.cert, "key": ssl.key}
    if config.is_server:
        named["client_ca"] = ssl.client_ca
    else:
        named["ca"] = ssl.ca if ssl.verify else None
        if ssl.key is None and (ssl.ca is not None or not ssl.verify):
            del named["cert"]
    return {key: config.resolve(name) for key, name in named.items() if name is not None}


def key_warnings(config: ConfigModel) -> tuple[str, ...]:
    """What is doubtful about the keys, and about where they are kept."""
    named = {"auth.psk_file": config.psk_path}
    if config.ssl_config is not None and config.ssl_config.key is not None:
        named["ssl_config.key"] = config.resolve(config.ssl_config.key)
    if config.listen is not None and config.listen.reset_key_file is not None:
        named["listen.reset_key_file"] = config.resolve(config.listen.reset_key_file)
    try:
        doubt = _doubt(load_keys(config))
    except ConfigError:
        doubt = ""  # whoever needs them is told
    return (
        *([f"auth: {doubt}"] if doubt else []),
        *(
            f"{key}: {path} can be read by others; use mode 0600"
            for key, path in named.items()
            if path is not None and _others_can_read(path)
        ),
    )


def _doubt(keys: dict[bytes, bytes]) -> str:
    short = ", ".join(repr(name.decode()) for name, key in keys.items() if len(key) < GOOD_KEY)
    return f"keys of less than {GOOD_KEY} bytes may be guessed (`multi psk` makes new ones): {short}" if short else ""


def _others_can_read(path: Path) -> bool:
    try:
        return os.name == "posix" and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False  # reading it says why


def _parse(entries: list[str], entry: str, source: str, key_path: str) -> dict[bytes, bytes]:
    keys: dict[bytes, bytes] = {}
    for number, text in enumerate(entries, 1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        name, _, value = text.strip().partition(":")
        key_id = name.encode(errors="replace")
        if not 0 < len(key_id) <= MAX_ID or not _HEX.fullmatch(value):
            raise ConfigError(
                f"{entry} {number} is not 'id:key' with an id of at most {MAX_ID} bytes and a key of at least "
                f"{MIN_KEY} bytes in hex",
                key_path,
            )
        if key_id in keys:
            raise ConfigError(f"{entry} {number} has the id of an earlier one", key_path)
        keys[key_id] = bytes.fromhex(value)
    if not keys:
        raise ConfigError(f"{source} holds no key", key_path)
    return keys
