"""What a command says on standard error: warnings, with -v more, and what went wrong in the end.

As text for people, or as JSON for programs that collect logs: an object a line, whatever happens.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

from multi.errors import printable
from multi.lab.output import Room, lost_lines

Format = Literal["text", "json"]

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
EXTRA = ("session", "connection")
"""What `multi` says besides of a record, where there is one: `logging.LogRecord` has them as attributes."""

logger = logging.getLogger("multi.cli")


class JsonFormatter(logging.Formatter):
    """`time` (UTC), `level`, `logger`, `message`; where there are such, `session`, `connection` and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in EXTRA if hasattr(record, name)}
        if record.exc_info or record.exc_text:  # of a worker's record only the text
            line["error"] = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return json.dumps(line, default=str)


class _Handler(logging.Handler):
    """Whoever collects may fall behind, be gone or have a full disk: that neither holds up nor ends a session."""

    def __init__(self) -> None:
        super().__init__()
        self._room = Room()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Looked up each time: the progress view puts itself between while it is on the screen.
            if self._room.for_a_line(sys.stderr):
                if lost := self._room.lost:
                    self._room.lost = 0
                    logger.warning("%s", lost_lines(lost))
                print(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


def log_to_stderr(verbosity: int, form: Format) -> None:
    """Warnings always, more when asked for."""
    text = "%(asctime)s %(name)s %(levelname)s: %(message)s" if verbosity else "multi: warning: %(message)s"
    handler = _Handler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(text))
    ours = logging.getLogger("multi")
    ours.handlers[:] = [handler]
    ours.setLevel(LEVELS[min(verbosity, 2)])
    if form == "json":
        ours.propagate = False
        _log_everything(handler)


def _log_everything(handler: logging.Handler) -> None:
    """What asyncio, other libraries and the interpreter have to say would come as text."""
    logging.getLogger().handlers[:] = [handler]
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: logger.error("uncaught exception", exc_info=error)
    threading.excepthook = lambda told: logger.error(
        "uncaught exception in a thread",
        exc_info=(told.exc_type, told.exc_value or told.exc_type(), told.exc_traceback),
    )
    sys.unraisablehook = lambda told: logger.error(
        "%s %r", told.err_msg or "exception ignored in", told.object, exc_info=told.exc_value
    )


def in_json() -> bool:
    """Whether programs read what is logged."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger("multi").handlers)


def say(text: str, form: Format, error: Exception | None = None) -> None:
    """What a command says last; of `error` the traceback too. Where nobody takes it the exit code still tells."""
    if form == "json":
        logger.error("%s", text, exc_info=error)
        return
    with suppress(OSError):
        if error is not None:
            import traceback

            traceback.print_exception(error)
        print("multi: " + "\n".join(printable(line) for line in text.splitlines()), file=sys.stderr)
