"""A server's reset key: with it the next process on its port proves that it no longer holds a session.

Whoever has the key can end the sessions that were opened under it, so it has to be with one server at a time that knows
which of them live. One that nobody has named is kept in this user's state directory, in a file for each address that is
listened on, and used only under a lock, which its server holds as long as it has sessions. Who gets the lock knows that
all sessions of before are gone. The name of the machine goes into the key: copies of a disk, and machines that share a
directory on which locks do not hold, have keys of their own.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import socket
import stat
from pathlib import Path
from urllib.parse import quote
from weakref import finalize

from multi.config import Config
from multi.config.keys import load_reset_key
from multi.config.model import Listen
from multi.discovery.resources import NO_STATE_DIRECTORY, state_directory
from multi.errors import words_of

try:
    import fcntl
except ImportError:  # not on Windows: nothing there ends with the process that holds it
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("multi.server")

LENGTH = 32  # bytes
LABEL = b"multi1 kept reset key "
NOT_KEPT = (
    "clients may take longer to hear of it when this server is killed and started again: no reset key is kept: %s"
)


class ResetKey:
    """The one of a running server, or of the parent of its workers."""

    def __init__(self, value: bytes, lock: int | None = None) -> None:
        """`lock`: a descriptor to be closed when it is released, or when nobody has this any more."""
        self.value = value
        self._release = finalize(self, os.close, lock) if lock is not None else None

    def release(self) -> None:
        """The server has no sessions any more, and begins none: another one may have the key."""
        if self._release is not None:
            self._release()


def reset_key_of(config: Config) -> ResetKey:
    """Of a server that starts. The log says why the next one will not have it, where that was to be expected.

    Raises ConfigError.
    """
    if named := load_reset_key(config):
        return ResetKey(named)
    assert config.listen is not None
    try:
        if (path := kept_in(config.listen)) is not None:
            return _kept(path)
    except OSError as error:
        logger.warning(NOT_KEPT, f"{path}: {words_of(error)}")
    except ValueError as error:
        logger.warning(NOT_KEPT, error)
    return ResetKey(os.urandom(LENGTH))


def _kept(path: Path) -> ResetKey:
    if fcntl is None:
        raise ValueError("this system has no locks for it")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path}: another server that is running has it") from None
        status = os.fstat(number)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: it belongs to somebody else")
        text = os.pread(number, 2 * LENGTH + 1, 0)
        known_to_others = status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if known_to_others or not re.fullmatch(rb"[0-9a-f]{%d}\n" % (2 * LENGTH), text):  # or the disk was full
            os.fchmod(number, 0o600)
            os.ftruncate(number, 0)
            text = f"{secrets.token_hex(LENGTH)}\n".encode()
            os.pwrite(number, text, 0)  # what is written in part is written anew the next time
        of_this_machine = hmac.digest(bytes.fromhex(text.decode()), LABEL + socket.gethostname().encode(), "sha256")
    except BaseException:
        os.close(number)
        raise
    return ResetKey(of_this_machine, number)


def kept_in(listen: Listen) -> Path | None:
    """The file of a server that names none; None = it needs none. Raises ValueError where there is no place for it."""
    if listen.reset_key_file is not None or listen.port == 0:  # nobody would find the next process on another port
        return None
    if (directory := state_directory()) is None:
        raise ValueError(NO_STATE_DIRECTORY)
    return directory / "reset-keys" / f"{quote(listen.host, safe=':%')}-{listen.port}"
