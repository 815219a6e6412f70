"""Testbeds with names, which stay up in a background process until they are taken down: `multi testbed`.

A keeper process owns one testbed. It holds a lock on NAME.lock for as long as it lives, so a leftover of a crash is
told from a running one without doubt, and answers requests on the socket NAME.sock. Both are in a directory only its
user can enter. One JSON request per connection, one JSON reply.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from multi.lab.testbed import call
from multi.lab.testbed.addressing import HOSTS
from multi.lab.testbed.errors import TestbedError
from multi.lab.testbed.hosts import Link, Testbed
from multi.lab.testbed.namespaces import enterer
from multi.lab.testbed.specs import DIRECTIONS, LinkSpec

MESSAGE_SIZE = 1 << 16
ANSWER_TIMEOUT = 15.0  # seconds
MAX_NAME = 32  # characters; a socket's path has 108
NUMBERS = ("rate_mbps", "delay_ms", "jitter_ms", "loss", "queue_ms", "queue_bytes")
SWITCHES = ("blackhole", "carrier", "address", "present")

Status = dict[str, Any]


def up(name: str, links: Sequence[LinkSpec], **options: object) -> Status:
    """Start a testbed in the background; return its status. The options are those of `Testbed`.

    Raises TestbedError, and then nothing is left.
    """
    check_name(name)
    directory = _directory()
    with subprocess.Popen(
        [sys.executable, "-c", "from multi.lab.testbed.daemon import main; main()", str(directory), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=call.environment(),
        cwd="/",
        start_new_session=True,
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        # A keeper that fails at once does not read; it says why.
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(pickle.dumps((tuple(links), options)))
            keeper.stdin.close()
        report = keeper.stdout.read()
        if not report:
            raise TestbedError(f"the process of testbed {name!r} ended with status {keeper.wait()}")
        keeper.returncode = 0  # it lives on; nobody waits for it here
        return _unpack(report)


def status(name: str) -> Status:
    """What a running testbed is made of, and its statistics."""
    return _ask(name, {"do": "status"})[0]


def change(name: str, link: str, changes: Mapping[str, str]) -> Status:
    """Change a link. The keys are those of `Link.set`, and blackhole, carrier, address and present with on or off."""
    return _ask(name, {"do": "set", "link": link, "changes": dict(changes)})[0]


def take_down(name: str) -> None:
    """End everything in a testbed and the testbed."""
    _ask(name, {"do": "down"})


def enter(name: str, host: str) -> None:
    """Move this process to a host of a testbed for good; it must have one thread."""
    _none, descriptors = _ask(name, {"do": "enter", "host": host})
    try:
        enterer(descriptors[0], descriptors[1] if len(descriptors) > 1 else None)()
    except OSError as error:
        raise TestbedError(f"cannot enter {host} of {name!r}: {error.strerror}") from None


def names() -> list[str]:
    """The testbeds of this user that are running; files left behind by crashes are removed."""
    directory = _directory()
    found = []
    for path in sorted(directory.glob("*.lock")):
        with contextlib.suppress(TestbedError), _locked(directory, path.stem):
            continue
        found.append(path.stem)
    return found


def check_name(name: str) -> None:
    """Raises TestbedError for what is no name of a testbed."""
    if not (1 <= len(name) <= MAX_NAME and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)):
        raise TestbedError(f"{name!r} is no name; 1 to {MAX_NAME} letters, digits, '-' and '_' are allowed")


def main() -> None:
    """The keeper process: arguments are the directory and the name, standard input has the rest."""
    directory, name = Path(sys.argv[1]), sys.argv[2]
    links, options = pickle.load(sys.stdin.buffer)
    reports = os.dup(1)
    # Whoever waits for the end of our output must not wait for the testbed's.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    # An exception, so that everything is taken down in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with (
            _locked(directory, name),
            _listener(directory / f"{name}.sock") as listener,
            Testbed(links, **options) as testbed,
        ):
            _report(reports, {"ok": _status(name, testbed)})
            while _answered(listener, name, testbed):
                pass
    except TestbedError as error:
        _report(reports, {"error": str(error)})
        sys.exit(1)


def _answered(listener: socket.socket, name: str, testbed: Testbed) -> bool:
    """Answer one request; False when the testbed has gone down by it."""
    connection, _address = listener.accept()
    # A client that goes away, or talks nonsense, must not end the testbed.
    with connection, contextlib.suppress(OSError, ValueError):
        connection.settimeout(ANSWER_TIMEOUT)
        request = json.loads(connection.recv(MESSAGE_SIZE) or b"{}")
        reply: dict[str, object] = {"ok": {}}
        descriptors: list[int] = []
        try:
            match request:
                case {"do": "status"}:
                    reply = {"ok": _status(name, testbed)}
                case {"do": "set", "link": str(link), "changes": dict(changes)}:
                    if link not in testbed.links:
                        raise TestbedError(f"no link {link!r}; there are {', '.join(testbed.links)}")
                    _apply(testbed.links[link], changes)
                    reply = {"ok": _status(name, testbed)}
                case {"do": "enter", "host": "client" | "server" as host}:
                    network, user = testbed.namespace("client" if host == "client" else "server")
                    descriptors = [network] if user is None else [network, user]
                case {"do": "down"}:
                    testbed.close()
                    connection.send(b'{"ok": {}}')
                    return False
                case _:
                    reply = {"error": "this request is unknown"}
        except TestbedError as error:
            reply = {"error": str(error)}
        socket.send_fds(connection, [json.dumps(reply).encode()], descriptors)
    return True


def _apply(link: Link, changes: Mapping[str, str]) -> None:
    """Everything is checked before anything is done."""
    figures: dict[str, Any] = {}
    switches: dict[str, bool] = {}
    way = changes.get("direction")
    if way is not None and way not in DIRECTIONS:
        raise TestbedError(f"direction: {way!r} is unknown; known: {', '.join(DIRECTIONS)}")
    for key, text in changes.items():
        if key in NUMBERS:
            try:
                figures[key] = int(text) if key == "queue_bytes" else float(text)
            except ValueError:
                raise TestbedError(f"{key}: {text!r} is no number") from None
        elif key in SWITCHES:
            if text not in ("on", "off"):
                raise TestbedError(f"{key}: {text!r} is neither on nor off")
            switches[key] = text == "on"
        elif key != "direction":
            raise TestbedError(f"{key!r} is unknown; known: {', '.join((*NUMBERS, 'direction', *SWITCHES))}")
    if figures:
        link.set(direction=way, **figures)
    for key, on in switches.items():
        match key:
            case "blackhole":
                link.blackhole(on, way)
            case "carrier":
                link.carrier(on)
            case "address":
                (link.restore_address if on else link.remove_address)()
            case "present":
                (link.reappear if on else link.vanish)()


def _status(name: str, testbed: Testbed) -> Status:
    statistics = testbed.statistics()
    return {
        "name": name,
        "process": os.getpid(),
        "backend": testbed.backend,
        "rootless": testbed.rootless,
        "server": [testbed.server.address(version) for version in (4, 6)],
        "links": {
            link.name: asdict(link.spec)
            | {
                "client": [link.client_address(v) for v in link.versions],
                "statistics": asdict(statistics[link.name]),
            }
            for link in testbed.links.values()
        },
    }


def _report(descriptor: int, report: Mapping[str, object]) -> None:
    """To the process that started us; after that there is nobody to talk to."""
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(report).encode())
    os.close(descriptor)


def _ask(name: str, request: Mapping[str, object]) -> tuple[Status, list[int]]:
    check_name(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(ANSWER_TIMEOUT)
        try:
            sock.connect(str(_directory() / f"{name}.sock"))
            sock.send(json.dumps(request).encode())
            data, descriptors, _flags, _address = socket.recv_fds(sock, MESSAGE_SIZE, len(HOSTS))
        except (FileNotFoundError, ConnectionRefusedError):
            running = ", ".join(names()) or "none"
            raise TestbedError(f"no testbed {name!r} is running (running: {running})") from None
        except TimeoutError:
            raise TestbedError(f"testbed {name!r} does not answer") from None
        except OSError as error:
            raise TestbedError(f"testbed {name!r} cannot be reached: {error.strerror}") from None
    return _unpack(data), descriptors


def _unpack(data: bytes) -> Status:
    match json.loads(data or b"{}"):
        case {"ok": dict(value)}:
            return value
        case {"error": str(message)}:
            raise TestbedError(message)
        case _:
            raise TestbedError("the testbed ended before it answered")


def _directory() -> Path:
    """A directory nobody else can enter. Raises TestbedError where there is something else in its place."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK):
        path = Path(runtime) / "multi-testbed"
    else:
        path = Path(tempfile.gettempdir()) / f"multi-testbed-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise TestbedError(f"{path} is not a directory only this user can enter")
    return path


@contextlib.contextmanager
def _locked(directory: Path, name: str) -> Iterator[None]:
    """The name is ours meanwhile; what a crash has left of it goes. Raises TestbedError while another has it."""
    path = directory / f"{name}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise TestbedError(f"a testbed named {name!r} is running: multi testbed down {name}") from None
        # The one who had it may have removed the file between our two calls.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                break
        os.close(descriptor)
    try:
        yield
    finally:
        (directory / f"{name}.sock").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def _listener(path: Path) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)  # we have the lock: a crash left it
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise TestbedError(f"{path}: {error.strerror}") from None
        finally:
            os.umask(before)
        listener.listen(8)
        yield listener
