"""How the people who run a server, or a client, see into it and steer it: HTTP on a socket of this machine.

The control socket is a Unix socket with mode 0600, so whoever may open it is the process's own user or root. Who
connects to the port for metrics is unknown, and gets nothing else. Each connection carries one request.

    GET /metrics              the snapshot in Prometheus' text format
    GET /stats                the snapshot as JSON
    GET /sessions?limit=100   those that moved bytes last, with their connections, as JSON;
                              with begins=5f1c those whose Session IDs begin so
    POST /command             {"command": NAME, ...}: see `COMMANDS` and `SERVER_COMMANDS`
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from multi.asyncio.metrics import CONTENT_TYPE, exposition
from multi.asyncio.session import Session
from multi.asyncio.stats import ServerStats
from multi.errors import MultiError, TransportError, counted, words_of

logger = logging.getLogger("multi.server")

AUTOMATIC = "auto"
MAX_REQUEST = 16 * 1024  # bytes of a request
REQUEST_TIMEOUT = 5.0  # seconds for a request and its answer
BACKLOG = 100  # connections that wait to be accepted
MAX_CONNECTIONS = 32  # at the same time on each socket; for one more the oldest is closed, as who asks is done at once
SESSIONS_SHOWN = 100  # a server may have ten thousand, and telling of one takes a twentieth of a millisecond
LOOPBACK = "127.0.0.1"
JSON_TYPE = "application/json"


class Controlled(Protocol):
    """What a control socket leads to: a server, or what looks like one."""

    @property
    def sessions(self) -> tuple[Session, ...]: ...

    def stats(self) -> ServerStats: ...

    def recent_sessions(self, limit: int) -> list[Session]: ...

    def start_draining(self, timeout: float | None = None) -> float: ...


Answering = Callable[[str, str, bytes], Awaitable["Response"]]
"""From method, target and body of a request."""

Clients = dict[asyncio.Task[None], asyncio.StreamWriter]
"""Who is answered, and where, the oldest first."""


class CommandError(MultiError):
    """A request that cannot be done; the text says why."""


class Response(Exception):
    """What a request gets."""

    def __init__(self, status: HTTPStatus, body: bytes, content_type: str = JSON_TYPE) -> None:
        self.status, self.body, self.content_type = status, body, content_type


# --- where ---


def runtime_directory() -> Path:
    """Where control sockets are that have no name of their own: `multi` in $XDG_RUNTIME_DIR; root's is /run/multi.

    Raises TransportError where there is none.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base:
        return Path(base) / "multi"
    if os.geteuid() == 0:
        return Path("/run/multi")
    raise TransportError("XDG_RUNTIME_DIR is not set: give control.socket a path")


def control_sockets() -> list[Path]:
    """The sockets in the runtime directory that somebody answers on."""
    return [path for path in sorted(runtime_directory().glob("*.sock")) if _answers(path)]


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(str(path))
        except OSError:
            return False
    return True


def _bind(path: Path) -> socket.socket:
    """A Unix socket that only its owner may open, from its first moment. Raises TransportError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise TransportError(f"control socket {path}: there is a file of this name that is no socket")
        if _answers(path):
            raise TransportError(errno.EADDRINUSE, f"control socket {path}: another process answers on it")
        path.unlink()  # of a process that was killed
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(sock.fileno(), 0o600)  # Linux gives the file the socket's mode; a chmod afterwards would be late
        sock.bind(str(path))
        os.chmod(path, 0o600)
    except OSError as error:
        sock.close()
        raise TransportError(error.errno, f"control socket {path}: {words_of(error)}") from error
    return sock


def _automatic(name: int | str) -> Path:
    directory = runtime_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = directory.stat().st_uid
    except OSError as error:
        raise TransportError(error.errno, f"{directory}: {words_of(error)}") from error
    if owner != os.geteuid():
        raise TransportError(f"{directory} belongs to somebody else: give control.socket a path")
    return directory / f"{os.getpid()}-{name}.sock"


# --- sockets ---


class ControlSockets:
    """The control socket and the port for metrics of one server."""

    def __init__(self, answers: Answers) -> None:
        self._answers: Answers | None = answers
        self._servers: list[asyncio.Server] = []
        self._clients: list[Clients] = []
        """Of each socket."""
        self._file: tuple[Path, int] | None = None
        self.path: Path | None = None
        """Of the control socket."""
        self.metrics_port = 0

    @property
    def addresses(self) -> list[str]:
        """Where it listens, for people."""
        found = [f"control socket {self.path}"] if self.path is not None else []
        return found + ([f"metrics on http://{LOOPBACK}:{self.metrics_port}/metrics"] if self.metrics_port else [])

    async def open(self, path: Path | None, metrics: int | None, name: int | str) -> None:
        """Listen on the socket `path`, whose name `auto` is chosen, and on the loopback port `metrics`, 0 = a free one.

        `name` tells a chosen one from others of this process: the server's port. Raises TransportError.
        """
        answers = self._answers
        assert answers is not None
        if path is not None:
            self.path = _automatic(name) if path.name == AUTOMATIC and path.parent == Path() else path
            sock = _bind(self.path)
            self._file = (self.path, self.path.stat().st_ino)
            await self._listen(asyncio.start_unix_server, sock, answers.everything)
        if metrics is not None:
            try:
                sock = socket.create_server((LOOPBACK, metrics))
            except OSError as error:
                text = f"metrics on {LOOPBACK} port {metrics}: {os.strerror(error.errno or 0).lower()}"
                raise TransportError(error.errno, text) from error
            await self._listen(asyncio.start_server, sock, answers.metrics)
            self.metrics_port = sock.getsockname()[1]
        for line in self.addresses:
            logger.info("%s", line)

    async def _listen(
        self, start: Callable[..., Awaitable[asyncio.Server]], sock: socket.socket, ask: Answering
    ) -> None:
        clients: Clients = {}
        self._clients.append(clients)
        # Without descriptors asyncio logs each of the connections that it takes at once, and soon thousands a second.
        self._servers.append(await start(partial(_serve, ask, clients), sock=sock, limit=MAX_REQUEST, backlog=1))
        sock.listen(BACKLOG)

    def close(self) -> None:
        """Let go of the sockets, and remove the file if it is still this one's."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._answers = None  # which may hold these sockets
        for clients in self._clients:
            for writer in clients.values():
                writer.transport.abort()
        if self._file is not None:
            path, inode = self._file
            self._file = None
            with suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()


async def _serve(
    answer: Answering, clients: Clients, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    this = asyncio.current_task()
    assert this is not None
    if len(clients) >= MAX_CONNECTIONS:
        oldest = next(iter(clients))
        del clients[oldest]
        oldest.cancel()
    clients[this] = writer
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            try:
                request = await _request(reader)
                found = await answer_safely(answer, *request)
            except Response as refusal:
                found = refusal
            head = f"Content-Type: {found.content_type}\r\nContent-Length: {len(found.body)}\r\nConnection: close"
            first = f"HTTP/1.1 {found.status.value} {found.status.phrase}"
            writer.write(f"{first}\r\n{head}\r\n\r\n".encode() + found.body)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        logger.debug("control socket: somebody left before the answer")
    except asyncio.CancelledError:
        pass  # room for another was needed, or the program ends: asyncio reports a cancelled handler as one that failed
    finally:
        clients.pop(this, None)
        writer.transport.abort()  # also when this is cancelled


# --- what is answered ---


class Answers(ABC):
    """What is asked on the sockets of a server."""

    @abstractmethod
    async def stats(self) -> ServerStats:
        """The snapshot."""

    @abstractmethod
    async def sessions(self, target: str) -> Response:
        """Those that the query of `target` wants."""

    @abstractmethod
    async def command(self, body: bytes) -> Response:
        """Do what is asked for, and say so."""

    async def metrics(self, method: str, target: str, body: bytes) -> Response:
        """On the port for metrics."""
        if method != "GET" or urlsplit(target).path != "/metrics":
            return failure(HTTPStatus.NOT_FOUND, "only GET /metrics is answered here")
        return Response(HTTPStatus.OK, exposition(await self.stats()).encode(), CONTENT_TYPE)

    async def everything(self, method: str, target: str, body: bytes) -> Response:
        """On the control socket."""
        match method, urlsplit(target).path:
            case "GET", "/stats":
                return in_json((await self.stats()).as_dict())
            case "GET", "/sessions":
                return await self.sessions(target)
            case "POST", "/command":
                return await self.command(body)
        return await self.metrics(method, target, body)


async def answer_safely(answering: Answering, method: str, target: str, body: bytes) -> Response:
    """Those who look must not end what they look at."""
    try:
        return await answering(method, target, body)
    except Exception as error:
        logger.exception("control socket: %s %s", method, target)
        return failure(HTTPStatus.INTERNAL_SERVER_ERROR, f"internal error: {type(error).__name__}")


class ServerAnswers(Answers):
    """Of one server in this process."""

    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    async def stats(self) -> ServerStats:
        return self._controlled.stats()

    async def sessions(self, target: str) -> Response:
        wanted = parse_qs(urlsplit(target).query)
        limit, beginning = wanted.get("limit", [str(SESSIONS_SHOWN)])[0], wanted.get("begins", [""])[0]
        if not limit.isascii() or not limit.isdigit() or len(limit) > 6:
            return failure(HTTPStatus.BAD_REQUEST, "limit: a number of sessions")
        found = self._beginning(beginning) if beginning else self._controlled.recent_sessions(int(limit))
        return in_json([session.stats().as_dict() for session in found[: int(limit)]])

    async def command(self, body: bytes) -> Response:
        try:
            return in_json(self._command(body))
        except (MultiError, ValueError, TypeError) as error:
            return failure(HTTPStatus.BAD_REQUEST, str(error))

    def _command(self, body: bytes) -> dict[str, object]:
        """Do what a request asks for; return what was done. Raises CommandError and what sessions raise."""
        wanted = object_in(body)
        name = wanted.pop("command", None)
        if not isinstance(name, str) or name not in {**COMMANDS, **SERVER_COMMANDS}:
            raise CommandError(f"command: found {name!r}; allowed: {', '.join((*COMMANDS, *SERVER_COMMANDS))}")
        if name in SERVER_COMMANDS:
            allowed, order = SERVER_COMMANDS[name]
            if not set(wanted) <= set(allowed):
                raise CommandError(f"{name} takes {', '.join(allowed)}")
            return done(name, order(self._controlled, **wanted))
        parameters, perform = COMMANDS[name]
        if set(wanted) != {"session", *parameters}:
            raise CommandError(f"{name} takes {', '.join(('session', *parameters))}")
        sessions = self._meant(wanted.pop("session"))
        for session in sessions:
            perform(session, **wanted)
        return done(name, len(sessions))

    def _meant(self, name: object) -> Sequence[Session]:
        """Those whose Session ID begins with `name`: one, or with `all` every one."""
        if not isinstance(name, str) or not name:
            raise CommandError("session: the first digits of a Session ID, or `all`")
        if name == "all":
            return self._controlled.sessions
        found = self._beginning(name)
        if len(found) != 1:
            raise CommandError(not_one(len(found), name))
        return found

    def _beginning(self, name: str) -> list[Session]:
        return [session for session in self._controlled.sessions if session.id.hex().startswith(name.lower())]


def _role(session: Session, connection: object, role: object) -> None:
    living = [info.id for info in session.connections if not info.state.over]
    if isinstance(connection, bool) or connection not in living:  # true is 1
        raise CommandError(f"connection: found {connection!r}; living: {', '.join(map(str, living)) or 'none'}")
    session.set_role(next(each for each in living if each == connection), str(role))


def _scheduler(session: Session, scheduler: Any) -> None:
    if not isinstance(scheduler, str | dict):
        raise CommandError(f"scheduler: found {scheduler!r}; allowed: a name, or an object with `name` and parameters")
    session.set_scheduler(scheduler)


def _abort(session: Session) -> None:
    session.abort("ended by who runs the server")


COMMANDS: dict[str, tuple[tuple[str, ...], Callable[..., None]]] = {
    "role": (("connection", "role"), _role),
    "scheduler": (("scheduler",), _scheduler),
    "steering": (("mode",), lambda session, mode: session.set_steering(mode)),
    "block": (("network",), lambda session, network: session.block(network)),
    "unblock": (("network",), lambda session, network: session.unblock(network)),
    "abort": ((), _abort),
}
"""What can be asked for of a session: parameters beside `session`, and who does it."""


def _drain(server: Controlled, seconds: object = None) -> int:
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise CommandError(f"seconds: found {seconds!r}; allowed: a number")
    server.start_draining(seconds)
    return len(server.sessions)


SERVER_COMMANDS: dict[str, tuple[tuple[str, ...], Callable[..., int]]] = {"drain": (("seconds",), _drain)}
"""What can be asked for of the server: parameters, which may be left out, and who does it and counts the sessions."""


def object_in(body: bytes) -> dict[str, Any]:
    """The JSON object of a command. Raises CommandError."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CommandError("found no object with `command`")
    return found


def done(command: str, sessions: int) -> dict[str, object]:
    """What the answer to a command says."""
    return {"done": f"{command} for {counted(sessions, 'session')}", "sessions": sessions}


def not_one(found: int, name: str) -> str:
    return f"{found or 'no'} sessions begin with {name!r}"


# --- HTTP ---


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    """(method, target, body); raises Response for what is none."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.LimitOverrunError:
        raise failure(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long") from None
    words = head[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise failure(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    try:
        urlsplit(words[1])
    except ValueError:
        raise failure(HTTPStatus.BAD_REQUEST, "this is no URL") from None
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > 6 or int(length) > MAX_REQUEST:
        raise failure(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_REQUEST} bytes")
    return words[0], words[1], await reader.readexactly(int(length))


def in_json(value: object) -> Response:
    return Response(HTTPStatus.OK, json.dumps(value).encode())


def failure(status: HTTPStatus, text: str) -> Response:
    return Response(status, json.dumps({"error": text}).encode())
