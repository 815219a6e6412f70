"""The exception tree of `multi`.

    MultiError
    |- ConfigError            (ValueError)       a configuration is wrong; names the key path
    |- LocalProtocolError     (RuntimeError)     you misused the library
    |  `- DatagramTooLarge                       it fits no connection; says which size does
    |- RemoteProtocolError                       the peer broke the protocol
    |- DependencyError        (ImportError)      a package that is needed for it cannot be imported
    |- TransportError         (OSError)          one transport connection failed
    |- NoUsableConnection     (TransportError)   no candidate could be opened; every attempt is listed
    |- SessionRefused         (ConnectionRefusedError)  the server said no
    `- SessionLost            (ConnectionResetError)  the session ended before everything arrived
       `- StreamReset                            one stream was reset; the session lives on

"You misused me" and "the peer misbehaved" are different exceptions, as in h11.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TypeVar

from multi.reasons import IN_ORDER, Cause, Reason

E = TypeVar("E", bound=Exception)


class MultiError(Exception):
    """Base of every error this library raises on purpose."""


class ConfigError(MultiError, ValueError):
    """A configuration is wrong.

    `key_path` names the place (`connection_priority[0].role`), `message` says what was found there and what is allowed.
    """

    def __init__(self, message: str, key_path: str = "") -> None:
        super().__init__(f"{key_path}: {message}" if key_path else message)
        self.message = message
        self.key_path = key_path


class DependencyError(MultiError, ImportError):
    """A package that what was asked for needs is missing or broken; what does not need it works."""

    @classmethod
    def of(cls, what: str, error: ImportError) -> DependencyError:
        """For `what`, which could not be imported."""
        return cls(f"{what} needs a package that cannot be imported: {error}")


class LocalProtocolError(MultiError, RuntimeError):
    """The caller asked for something that is not possible in this state."""


class DatagramTooLarge(LocalProtocolError):
    """A datagram of `size` bytes fits no connection there is now; one of `max_size` bytes does."""

    def __init__(self, size: int, max_size: int) -> None:
        super().__init__(f"a datagram of {size} bytes; the connections there are now carry {max_size} at most")
        self.size = size
        self.max_size = max_size

    def __reduce__(self) -> tuple[type[DatagramTooLarge], tuple[int, int]]:
        return type(self), (self.size, self.max_size)


class RemoteProtocolError(MultiError):
    """The peer sent something the protocol does not allow; `cause` says of what kind it is."""

    def __init__(self, message: str, cause: Cause = Cause.PROTOCOL) -> None:
        super().__init__(message)
        self.cause = cause


class TransportError(MultiError, OSError):
    """One transport connection failed; the message says why in words."""

    def __str__(self) -> str:
        return str(self.args[-1]) if self.args else ""


class NoUsableConnection(TransportError):
    """No candidate could be opened. `attempts` lists each (candidate, reason)."""

    def __init__(self, message: str, attempts: Sequence[tuple[str, str]] = ()) -> None:
        lines = [message, *(f"  {candidate}: {reason}" for candidate, reason in attempts)]
        super().__init__("\n".join(lines))
        self.attempts = tuple(attempts)


class _SessionError(MultiError, ConnectionError):
    _errno: int

    def __init__(self, reason: Reason = IN_ORDER) -> None:
        super().__init__(reason)
        self.reason = reason
        self.errno = self._errno

    def __str__(self) -> str:
        return self.reason


class SessionRefused(_SessionError, ConnectionRefusedError):
    """The server refused the session; `reason` says why."""

    _errno = errno.ECONNREFUSED


class SessionLost(_SessionError, ConnectionResetError):
    """The session ended before everything arrived; `reason` says why."""

    _errno = errno.ECONNRESET


class StreamReset(SessionLost):
    """The peer reset this stream (or asked us to stop sending on it) with an application `code`.

    `unacknowledged` is how many of the bytes written the peer had not taken by then.
    """

    def __init__(self, reason: Reason, code: int, unacknowledged: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.unacknowledged = unacknowledged

    def __reduce__(self) -> tuple[type[StreamReset], tuple[Reason, int, int]]:
        return type(self), (self.reason, self.code, self.unacknowledged)


def fresh(error: E) -> E:
    """A copy, to be raised in place of one of our errors that is kept; others may not be copied.

    What is raised gets a traceback. That holds the frames it has passed, and they hold whatever keeps the error: a
    circle which only the garbage collector finds.
    """
    return copy(error) if isinstance(error, MultiError) else error


def closest(word: str, options: Iterable[str], cutoff: float = 0.6) -> str:
    """The option a person most likely meant by `word`, for "did you mean", or empty. Case is forgiven."""
    folded = {option.casefold(): option for option in options}
    # difflib takes quadratic time: only the beginning of a long word is compared.
    close = difflib.get_close_matches(word[:64].casefold(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else ""


def counted(count: int, what: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{count} {what}{'s' * (count != 1)}"


def words_of(error: OSError) -> str:
    """What the system says of it, as part of a sentence: "permission denied"."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def printable(text: str) -> str:
    """`text` without characters that would steer a terminal or cannot be encoded."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
