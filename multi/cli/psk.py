"""`multi psk`: a pre-shared key for `auth`."""

from __future__ import annotations

from multi.config.keys import new_key


def run_psk(name: str) -> int:
    """Print `name:key` with a fresh key of 256 bits. Returns 0; raises ConfigError."""
    print(new_key(name))
    return 0
