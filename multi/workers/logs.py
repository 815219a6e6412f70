"""What workers log comes out of their parent: there logging was set up, by the command line or the program."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress

MAX_TEXT = 16 * 1024  # characters of a message, and of an exception; both have to fit one packet
PLAIN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime"))
"""What every record has, or gets from a formatter."""


def levels() -> dict[str, int]:
    """Of all loggers that have one, by name; the root's is empty."""
    known = logging.Logger.manager.loggerDict.items()
    found = {name: logger.level for name, logger in known if isinstance(logger, logging.Logger) and logger.level}
    return {"": logging.getLogger().getEffectiveLevel(), **found}


class LogsToParent(logging.Handler):
    """Sends records, and drops them where the parent does not keep up."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock

    def install(self, levels: Mapping[str, int]) -> None:
        """All loggers of this process log as those of the parent, whatever its program has set up when imported."""
        logging.getLogger().handlers[:] = [self]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            packet = self._packet(record)
        except Exception:
            self.handleError(record)  # as every handler: what cannot be formatted must not end who says it
            return
        with suppress(OSError):
            self._sock.send(packet, socket.MSG_DONTWAIT)

    @staticmethod
    def _packet(record: logging.LogRecord) -> bytes:
        about = {name: value for name, value in vars(record).items() if name not in PLAIN}  # as `session`
        message = {name: getattr(record, name) for name in ("name", "levelno", "created", "process")}
        message["msg"] = record.getMessage()[:MAX_TEXT]
        if record.exc_info:
            message["exc_text"] = logging.Formatter().formatException(record.exc_info)[-MAX_TEXT:]
        return json.dumps(about | message, default=str).encode()


def log_of_worker(packet: bytes) -> None:
    """In the parent: a record comes out of the logger of its name."""
    fields = json.loads(packet)
    logger = logging.getLogger(fields["name"])
    level = fields.pop("levelno")
    if logger.isEnabledFor(level):
        record = logging.makeLogRecord({**fields, "levelno": level, "levelname": logging.getLevelName(level)})
        logger.handle(record)
