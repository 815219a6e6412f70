"""A trace of each session: what it does, written to a file while it does it. docs/tracing.md says what stands in it.

The file is a sequence of JSON texts (RFC 7464) in the form of qlog (draft-ietf-quic-qlog-main-schema-14): a header,
then a record for each event of the session, and for its figures as a snapshot tells them. Payload and keys are in
neither.

Nothing here is on the way of bytes. Events are noted as they come, a timer looks at the figures, and one thread of the
process writes, so that a disk that sleeps stops no session. What cannot be written is said once, and sessions go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from math import isfinite, log2
from pathlib import Path

from multi.asyncio.driver import SessionDriver
from multi.asyncio.info import ConnectionInfo
from multi.asyncio.stats import SessionStats, plain
from multi.config import Config
from multi.errors import words_of
from multi.events import Event, SessionEnded
from multi.reasons import Reason
from multi.types import Candidate, ConnectionFacts, Side

SAMPLE = 0.1  # seconds between two looks at the figures of a session
SAMPLE_SHARE = 0.002  # seconds between two looks for each session that is traced: all take a tenth of a core at most
FLUSH = 1.0  # seconds that something waits before it goes to the disk
BEHIND = 1 << 24  # bytes of all sessions that wait for a slow disk; figures are left out then
LOST = 1 << 26  # and traces end
STRANGER = 8 * 1024  # bytes that are noted of whoever has not proved himself: some fifteen events, and no figures
FOR_EVENTS = 32 * 1024  # bytes of a file that figures leave to events
FOR_END = 4 * 1024  # and events to what is said at the end

SCHEMA = "urn:uuid:2060615a-45a1-47df-a6f1-ff9f0322ec95#1"
"""Of the namespace `multi`; another number when a record is to be understood differently."""
RECORD_SEPARATOR = b"\x1e"  # RFC 7464
FACTS = ("transport", "family", "interface", "kind", "local", "remote", "secure")
"""What is said once of a connection: of `ConnectionInfo`, and of `ConnectionFacts`."""
OF_CONNECTION = (
    *("number", "role", "state", "rtt", "min_rtt", "rate", "loss", "in_flight"),
    *("bytes_sent", "bytes_received", "payload_received", "reinjected", "detail", "subflows"),
)
OF_SESSION = (
    *("state", "scheduler", "streams", "memory", "in_flight", "unsent", "window_blocked"),
    *("bytes_sent", "bytes_received", "payload_received", "reinjected"),
)
LIMITS = ("max_stream_window", "max_session_window", "max_streams", "max_connections")

Record = dict[str, object]


def event_name(event: type) -> str:
    """`ConnectionChanged` -> `connection_changed`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()


def sample_interval(size: int, limit: int, sessions: int) -> float:
    """Seconds to the next look where a file has `size` bytes of `limit`, and so many sessions are traced.

    With each half of what was left that is used, looks are half as often: something is always left.
    """
    halvings = int(-log2(max(1 - size / limit, 1e-6)))
    return max(SAMPLE * (1 << halvings), sessions * SAMPLE_SHARE)


def trace_session(driver: SessionDriver, config: Config) -> None:
    """Trace a session from now on if the configuration wants that."""
    if config.trace is not None and config.trace_path is not None:
        _SessionTrace(driver, _directory(config.trace_path), config.trace.max_size)


# --- files ---


class _Directory:
    """Where the traces of several sessions go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.living = 0
        """Sessions that are being traced."""
        self.noted = 0
        """Bytes that were to be written since the process began."""
        self.done = 0
        """Those of them that wait no more: the thread counts them."""
        self.told = False
        """Somebody was told that nothing can be written, and it still is so."""

    @property
    def waiting(self) -> int:
        """Bytes that are not written yet."""
        return self.noted - self.done


@cache
def _directory(path: Path) -> _Directory:
    return _Directory(path)


@cache
def _thread() -> ThreadPoolExecutor:
    """What writes all traces of this process, in order; the interpreter waits for it at its end."""
    return ThreadPoolExecutor(1, "multi-trace")


def _forked() -> None:
    _thread.cache_clear()  # a child has no threads, and nothing that waits for them
    _directory.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _write(directory: _Directory, path: Path, data: bytes, *, new: bool) -> OSError | None:
    """In the thread: append to a file, which is opened each time, for there may be ten thousand; what went wrong."""
    flags = os.O_CREAT | os.O_EXCL if new else os.O_APPEND
    try:
        if new:
            path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)) as file:
            file.write(data)
    except OSError as error:
        return error
    finally:
        directory.done += len(data)
    return None


class _SessionTrace:
    """Listens to one session until it ends. The timer holds it."""

    def __init__(self, driver: SessionDriver, directory: _Directory, limit: int) -> None:
        self._driver, self._directory, self._limit = driver, directory, limit
        self._process = os.getpid()
        started = datetime.now(UTC)
        self._started = self._now = self._looked_at = self._flushed_at = driver.loop.time()
        core = driver.core
        session, side = core.session_id.hex(), core.side.value
        self._path = directory.path / f"{started:%Y%m%dT%H%M%S.%fZ}-{session}-{side}.sqlog"
        self._lines: list[bytes] = []
        self._size = 0
        """Of the file, when all is written."""
        self._new = True
        self._full = self._failed = False
        self._writing: Future[OSError | None] | None = None
        self._known: set[str] = set()
        """Connections whose facts were said."""
        self._last: dict[str, Record] = {}
        """The figures that were noted last, by path; those of the session have none."""
        self._over: set[str] = set()
        """Those that have ended, and whose last figures were noted."""
        self._signature: object = None
        """What would be different if bytes had moved since the last look."""
        self._still = False
        """None had at the last look."""
        directory.living += 1
        self._append(_header(session, side, started))
        limits = {name: getattr(core.settings, name) for name in LIMITS} | {"send_buffer": driver.send_buffer}
        self._note("session_started", {"scheduler": core.scheduling.policy.scheduler, "limits": limits})
        for event in driver.record.known():
            self.put(event)
        driver.record.listen(self)
        self._timer = driver.loop.call_later(0.0, self._tick)

    # --- what is noted ---

    def put(self, event: Event) -> None:
        if isinstance(event, SessionEnded):
            return  # `end` says it, however it has come to that
        self._now = self._driver.loop.time()
        data, path = self._described(event)
        self._note(event_name(type(event)), data, path, reserve=FOR_END)
        self._signature = None

    def end(self) -> None:
        self._timer.cancel()
        self._directory.living -= 1
        if os.getpid() != self._process:
            return  # the file belongs to the process that this one was forked from
        self._sample()
        reason = self._driver.core.reason
        if reason is not None:
            self._note("session_ended", {"reason": str(reason), "cause": reason.cause.value})
        self._flush(last=True)

    def _described(self, event: Event) -> tuple[Record, str]:
        """(its fields in JSON's terms, the path it is about): nothing but values that are meant for people."""
        data: Record = {}
        path = ""
        for each in fields(event):
            value = getattr(event, each.name)
            match value:
                case Reason():
                    data |= {each.name: str(value), "cause": value.cause.value}
                case Candidate():
                    data[each.name] = str(value)
                case ConnectionFacts():
                    if path not in self._known:
                        self._known.add(path)
                        data |= {name: plain(getattr(value, name)) for name in FACTS}
                case _ if each.name == "connection":  # which stands before the facts of it
                    path = str(value)
                case _:
                    data[each.name] = plain(value)
        return data | {"text": str(event)}, path

    def _tick(self) -> None:
        self._sample()
        if self._lines and self._now - self._flushed_at >= FLUSH:
            self._flush()
        interval = sample_interval(self._size, self._limit, self._directory.living)
        self._timer = self._driver.loop.call_later(interval, self._tick)

    def _sample(self) -> None:
        """Note what has changed of the figures; nothing of a session that does nothing."""
        core, looked_at = self._driver.core, self._look_at_clock()
        sender = core.sender
        signature = core.moved_at, sender.used, sender.unacked, sender.reinjected_bytes
        if signature == self._signature:
            self._still = True
            return
        if self._unproved or self._directory.waiting > BEHIND:
            return
        self._signature = signature
        stats = self._driver.stats()
        data = self._changed("", stats, OF_SESSION)
        if self._still:
            self._still = False
            data["since"] = self._milliseconds(looked_at)  # what is new has not happened before
        self._note("session_sampled", data, reserve=FOR_EVENTS)  # also without news: it tells when all was looked at
        for connection in stats.connections:
            path = str(connection.id)
            if path in self._over:
                continue
            if data := self._changed(path, connection, OF_CONNECTION):
                self._note("connection_sampled", data, path, reserve=FOR_EVENTS)
            if connection.state.over:
                self._over.add(path)
                del self._last[path]

    def _look_at_clock(self) -> float:
        """Look at the clock; when the figures were looked at before."""
        before, self._looked_at = self._looked_at, self._driver.loop.time()
        self._now = self._looked_at
        return before

    def _changed(self, path: str, of: SessionStats | ConnectionInfo, names: tuple[str, ...]) -> Record:
        """The figures that have changed since they were noted."""
        before, now = self._last.get(path, {}), {name: _figure(getattr(of, name)) for name in names}
        self._last[path] = now
        return {name: value for name, value in now.items() if name not in before or before[name] != value}

    # --- what is written ---

    @property
    def _unproved(self) -> bool:
        """Nothing is written yet: the client may be anybody."""
        core = self._driver.core
        return core.side is Side.SERVER and not core.confirmed

    def _note(self, name: str, data: Record, path: str = "", *, reserve: int = 0) -> None:
        record: Record = {"time": self._milliseconds(self._now), "name": f"multi:{name}"}
        if path:
            record["path"] = path
        self._append(record | {"data": data}, reserve)

    def _milliseconds(self, at: float) -> float:
        return round((at - self._started) * 1000, 3)

    def _append(self, record: Record, reserve: int = 0) -> None:
        """Write a record if `reserve` bytes of the file are left then."""
        if self._failed:
            return
        if self._unproved and self._size > STRANGER:
            self._failed = True
            return
        if self._directory.waiting > LOST:
            self._fail("what is to be written waits for too long")
            return
        line = RECORD_SEPARATOR + json.dumps(record, separators=(",", ":"), default=_omitted).encode() + b"\n"
        if self._size + len(line) + reserve > self._limit:
            if not self._full:
                self._full = True
                self._note("trace_full", {"limit": self._limit})
            return
        self._lines.append(line)
        self._size += len(line)
        self._directory.noted += len(line)

    def _flush(self, *, last: bool = False) -> None:
        """Hand what waits to the thread, unless that has not done with what it got before."""
        driver = self._driver
        if self._writing is not None and not self._writing.done() and not last:
            return
        if self._unproved and not (last or self._failed):
            return
        data, self._lines = b"".join(self._lines), []
        self._flushed_at = self._now
        if self._failed or self._unproved:  # a flood of strangers leaves no files
            self._directory.noted -= len(data)
            return
        with suppress(RuntimeError):  # the interpreter ends: it takes no more work
            self._writing = _thread().submit(_write, self._directory, self._path, data, new=self._new)
            self._new = False
            written = asyncio.wrap_future(self._writing, loop=driver.loop)
            written.add_done_callback(self._written)
            driver.settle_after(written)

    def _written(self, done: asyncio.Future[OSError | None]) -> None:
        error = None if done.cancelled() else done.result()
        if error is None:
            self._directory.told = False
            return
        self._fail(words_of(error))

    def _fail(self, why: str) -> None:
        """Write no more: a file with a hole would tell of something that did not happen."""
        self._failed = True
        if self._directory.told:
            return
        self._directory.told = True
        self._driver.warn(f"no trace can be written in {self._directory.path}: {why}")


def _header(session: str, side: str, started: datetime) -> Record:
    return {
        "file_schema": "urn:ietf:params:qlog:file:sequential",
        "serialization_format": "application/qlog+json-seq",
        "qlog_version": "0.3",  # by this and the next, tools that are older than the two above know what it is
        "qlog_format": "JSON-SEQ",
        "title": f"multi session {session[:8]}, {side}",
        "trace": {
            "vantage_point": {"name": "multi", "type": side},
            "event_schemas": [SCHEMA],
            "common_fields": {
                "group_id": session,
                "time_format": "relative_to_epoch",
                "reference_time": {
                    "clock_type": "monotonic",
                    "epoch": "unknown",
                    "wall_clock_time": f"{started:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
                },
            },
        },
    }


def _figure(value: object) -> object:
    """In JSON's terms, and no longer than it has meaning: microseconds, whole bytes a second."""
    return round(value, 6 if value < 1000 else None) if isinstance(value, float) and isfinite(value) else plain(value)


def _omitted(_: object) -> None:
    """Whatever an event may hold that is neither text nor figure is not for a file."""
