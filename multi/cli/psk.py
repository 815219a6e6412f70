"""`multi psk`: a pre-shared key for `auth`."""

from __future__ import annotations

import re
import secrets

from multi.cli.parser import Parser
from multi.config.keys import GOOD_KEY, MAX_ID
from multi.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    parser.runs(run_psk)
    parser.add_argument("name", metavar="NAME", nargs="?", default="default", help="its name (default: default)")


def run_psk(name: str) -> int:
    """Print `name:key` with a fresh key of 256 bits. Returns 0; raises ConfigError for what cannot be a name."""
    if re.search(r"[^!-~]|[,:]|^#", name) or len(name) not in range(1, MAX_ID + 1):
        raise ConfigError(f"found {name!r}; allowed: at most {MAX_ID} ASCII letters, digits and signs but , and :")
    print(f"{name}:{secrets.token_hex(GOOD_KEY)}")
    return 0
