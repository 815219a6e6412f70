"""Pre-shared keys from a file: one `id:key` per line, the key in hex. Never logged."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from multi.errors import ConfigError

logger = logging.getLogger("multi.config")

MIN_KEY = 16  # bytes; shorter keys could be guessed from one recorded handshake


def load_keys(path: Path) -> dict[bytes, bytes]:
    """Return {id: key}. Raises ConfigError naming the line, never its content."""
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}", "auth.psk_file") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("%s can be read by others; use mode 0600", path)
    keys: dict[bytes, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.strip().partition(":")
        try:
            key = bytes.fromhex(value)
        except ValueError:
            key = b""
        if not separator or not name or len(key) < MIN_KEY:
            raise ConfigError(
                f"{path} line {number} is not 'id:key' with a key of at least {MIN_KEY} bytes in hex", "auth.psk_file"
            )
        keys[name.encode()] = key
    if not keys:
        raise ConfigError(f"{path} holds no key", "auth.psk_file")
    return keys
