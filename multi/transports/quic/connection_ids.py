"""The ids under which peers reach connections: every one that an engine issues is made here."""

from __future__ import annotations

import os

CONNECTION_ID_LENGTH = 8  # bytes; a server finds a connection by as many of any packet


def new_connection_id() -> bytes:
    """One that nobody can guess, of `CONNECTION_ID_LENGTH` bytes."""
    return os.urandom(CONNECTION_ID_LENGTH)
