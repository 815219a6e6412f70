"""What workers log: it comes out of their parent as it was said."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator

import pytest

from multi.cli.logs import JsonFormatter
from multi.workers.logs import LogsToParent, log_of_worker

Ends = tuple[logging.Logger, socket.socket]


@pytest.fixture
def worker() -> Iterator[Ends]:
    """A logger whose records go into a socket, and its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    logger = logging.Logger("multi.session")
    logger.addHandler(LogsToParent(ours))
    with ours, theirs:
        yield logger, theirs


def came_out(theirs: socket.socket, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    caplog.clear()
    log_of_worker(theirs.recv(1 << 20))
    (record,) = caplog.records
    return record


def test_record_of_a_worker_says_which_session_it_is_about(worker: Ends, caplog: pytest.LogCaptureFixture) -> None:
    logger, theirs = worker
    logger.warning("connection %d", 3, extra={"session": "5f1c", "connection": 3})
    line = json.loads(JsonFormatter().format(came_out(theirs, caplog)))
    assert (line["message"], line["session"], line["connection"]) == ("connection 3", "5f1c", 3)


def test_exception_of_a_worker_is_told_beside_the_message(worker: Ends, caplog: pytest.LogCaptureFixture) -> None:
    logger, theirs = worker
    try:
        raise ValueError("a bug")
    except ValueError:
        logger.exception("internal error")
    record = came_out(theirs, caplog)
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "internal error"
    assert line["error"].startswith("Traceback")
    assert logging.Formatter().format(record).endswith("ValueError: a bug")


def test_record_that_is_too_long_is_cut(worker: Ends, caplog: pytest.LogCaptureFixture) -> None:
    logger, theirs = worker
    logger.warning("x" * 1_000_000)
    assert len(came_out(theirs, caplog).getMessage()) < 100_000


def test_what_cannot_be_formatted_does_not_end_who_says_it(
    worker: Ends, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, theirs = worker
    loop: list[object] = []
    loop.append(loop)
    logger.warning("%d sessions", "many")
    logger.warning("has no end", extra={"held": loop})
    assert capsys.readouterr().err.count("--- Logging error ---") == 2
    logger.warning("next")
    assert came_out(theirs, caplog).getMessage() == "next"
