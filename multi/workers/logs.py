"""What workers log comes out of their parent: there logging was set up, by the command line or the program."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress

MAX_TEXT = 32 * 1024  # characters of a message; it has to fit one packet


def levels() -> dict[str, int]:
    """Of all loggers that have one, by name; the root's is empty."""
    known = logging.Logger.manager.loggerDict.items()
    found = {name: logger.level for name, logger in known if isinstance(logger, logging.Logger) and logger.level}
    return {"": logging.getLogger().getEffectiveLevel(), **found}


class LogsToParent(logging.Handler):
    """Sends records, and drops them where the parent does not keep up."""

    def __init__(self, sock: socket.socket, worker: int) -> None:
        super().__init__()
        self._sock, self._worker = sock, worker

    def install(self, levels: Mapping[str, int]) -> None:
        """All loggers of this process log as those of the parent, whatever its program has set up when imported."""
        logging.getLogger().handlers[:] = [self]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)[:MAX_TEXT]
        message = {"name": record.name, "levelno": record.levelno, "created": record.created, "msg": text}
        with suppress(OSError):
            self._sock.send(json.dumps(message | {"process": record.process}).encode(), socket.MSG_DONTWAIT)


def log_of_worker(packet: bytes) -> None:
    """In the parent: a record comes out of the logger of its name."""
    fields = json.loads(packet)
    logger = logging.getLogger(fields["name"])
    level = fields.pop("levelno")
    if logger.isEnabledFor(level):
        record = logging.makeLogRecord({**fields, "levelno": level, "levelname": logging.getLevelName(level)})
        logger.handle(record)
