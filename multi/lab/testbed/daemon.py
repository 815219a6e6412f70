"""Testbeds with names, which stay up in a background process until they are taken down: `multi testbed`.

A keeper process owns one testbed and answers on the socket NAME.sock, in a directory only its user can enter. One
request per connection, one reply, as between a testbed and its relay: a function that the keeper calls with its
testbed. A socket that nobody answers on is a leftover of a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, cast

from multi.lab.testbed import call, namespaces
from multi.lab.testbed.errors import TestbedError
from multi.lab.testbed.hosts import Link, Testbed
from multi.lab.testbed.relay import receive, send
from multi.lab.testbed.specs import DIRECTIONS, FIGURES, HostName, LinkSpec, Way

ANSWER_TIMEOUT = 15.0  # seconds
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")  # a socket's path has 108 characters
SWITCHES: Mapping[str, Callable[[Link, bool, Way | None], None]] = {
    "blackhole": lambda link, on, way: link.blackhole(on, way),
    "carrier": lambda link, on, _: link.carrier(on),
    "address": lambda link, on, _: link.restore_address() if on else link.remove_address(),
    "present": lambda link, on, _: link.reappear() if on else link.vanish(),
}

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Status = dict[str, Any]


# --- what programs call: each raises TestbedError ---


def up(name: str, links: Sequence[LinkSpec], **options: object) -> Status:
    """Start a testbed in the background; return its status. The options are those of `Testbed`.

    When it fails or is interrupted, nothing is left.
    """
    path = _path(name)
    with subprocess.Popen(
        [sys.executable, "-c", "from multi.lab.testbed.daemon import main; main()", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=call.environment(),
        cwd="/",
        start_new_session=True,
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            # A keeper that fails at once does not read; it says why.
            with contextlib.suppress(BrokenPipeError):
                keeper.stdin.write(pickle.dumps((tuple(links), options)))
                keeper.stdin.close()
            failure = keeper.stdout.read()
        except BaseException:
            keeper.terminate()
            keeper.wait()
            raise
        if failure:
            raise TestbedError(failure.decode())
        keeper.returncode = 0  # it lives on; nobody waits for it here
    return status(name)


def status(name: str) -> Status:
    """What a running testbed is made of, and its statistics."""
    return _ask(name, _status) | {"name": name}


def change(name: str, link: str, changes: Mapping[str, str]) -> Status:
    """Change a link. The keys are those of `Link.set`, and blackhole, carrier, address and present with on or off."""
    _ask(name, _change, link, dict(changes))
    return status(name)


def take_down(name: str) -> None:
    """End everything in a testbed and the testbed."""
    _ask(name, Testbed.close)


def enter(name: str, host: HostName) -> None:
    """Move this process to a host of a testbed for good; it must have one thread."""
    network, user = _ask(name, _namespaces, host)
    try:
        namespaces.enter(os.open(network, os.O_RDONLY), None if user is None else os.open(user, os.O_RDONLY))
    except OSError as error:
        raise TestbedError(f"cannot enter {host} of {name!r}: {error.strerror}") from None


def names() -> list[str]:
    """The testbeds of this user that are running."""
    return [path.stem for path in sorted(_directory().glob("*.sock")) if _answers(path)]


def _ask(name: str, request: Callable[[Testbed, *Arguments], Result], *arguments: *Arguments) -> Result:
    path = _path(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(ANSWER_TIMEOUT)
        try:
            sock.connect(str(path))
            send(sock, (request, arguments))
            reply, _none = receive(sock)
        except (FileNotFoundError, ConnectionRefusedError):
            running = ", ".join(names()) or "none"
            raise TestbedError(f"no testbed {name!r} is running (running: {running})") from None
        except TimeoutError:
            raise TestbedError(f"testbed {name!r} does not answer") from None
        except (EOFError, OSError) as error:
            raise TestbedError(f"testbed {name!r} ended before it answered: {error}") from None
    if isinstance(reply, TestbedError):
        raise reply
    return cast(Result, reply)


def _path(name: str) -> Path:
    """The socket of a testbed. Raises TestbedError for what is no name of one."""
    if not NAME.fullmatch(name):
        raise TestbedError(f"{name!r} is no name; 1 to 32 letters, digits, '-' and '_' are allowed")
    return _directory() / f"{name}.sock"


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


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


# --- the keeper process ---


def main() -> None:
    """The argument is the path of the socket, standard input has the rest. Standard output gets what goes wrong."""
    path = Path(sys.argv[1])
    try:
        links, options = pickle.load(sys.stdin.buffer)
    except (EOFError, pickle.UnpicklingError):
        return  # who wanted it was interrupted
    report = os.dup(1)
    # Whoever waits for the end of our output must not wait for the testbed's.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    # An exception, so that everything is taken down in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with _listener(path) as listener, Testbed(links, **options) as testbed:
            os.close(report)  # it is up
            while _answer(listener, testbed):
                pass
    except TestbedError as error:
        os.write(report, str(error).encode())


@contextlib.contextmanager
def _listener(path: Path) -> Iterator[socket.socket]:
    """The name is ours meanwhile. Raises TestbedError while another has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as at_the_end:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # two that start at once must not both find it free
            if _answers(path):
                raise TestbedError(f"a testbed named {path.stem!r} is running: multi testbed down {path.stem}")
            path.unlink(missing_ok=True)
            at_the_end.callback(path.unlink, missing_ok=True)
            listener.bind(str(path))
            listener.listen(8)
        except OSError as error:
            raise TestbedError(f"{path}: {error.strerror}") from None
        finally:
            os.close(directory)
        yield listener


def _answer(listener: socket.socket, testbed: Testbed) -> bool:
    """One request; False when the testbed has gone down by it."""
    connection, _address = listener.accept()
    request: Callable[..., object] = _status
    # A client that goes away must not end the testbed.
    with connection, contextlib.suppress(OSError, EOFError):
        connection.settimeout(ANSWER_TIMEOUT)
        (request, arguments), _none = receive(connection)
        try:
            reply = request(testbed, *arguments)
        except TestbedError as error:
            reply = error
        send(connection, reply)
    return request is not Testbed.close


# --- what the keeper is asked ---


def _namespaces(testbed: Testbed, host: HostName) -> tuple[str, str | None]:
    """Where to open the network namespace of a host, and the user namespace it belongs to if it is not ours."""
    network, user = testbed.namespace(host)
    here = f"/proc/{os.getpid()}/fd"
    return f"{here}/{network}", None if user is None else f"{here}/{user}"


def _change(testbed: Testbed, name: str, changes: Mapping[str, str]) -> None:
    """Everything is checked before anything is done."""
    if name not in testbed.links:
        raise TestbedError(f"no link {name!r}; there are {', '.join(testbed.links)}")
    figures: dict[str, Any] = {}
    switches: dict[str, bool] = {}
    way: Any = None
    for key, text in changes.items():
        if key in FIGURES or key == "queue_bytes":
            try:
                figures[key] = int(text) if key == "queue_bytes" else float(text)
            except ValueError:
                raise TestbedError(f"{key}: {text!r} is no number") from None
        elif key in SWITCHES:
            if text not in ("on", "off"):
                raise TestbedError(f"{key}: {text!r} is neither on nor off")
            switches[key] = text == "on"
        elif key != "direction":
            raise TestbedError(
                f"{key!r} is unknown; known: {', '.join((*FIGURES, 'queue_bytes', 'direction', *SWITCHES))}"
            )
        elif text not in DIRECTIONS:
            raise TestbedError(f"direction: {text!r} is unknown; known: {', '.join(DIRECTIONS)}")
        else:
            way = text
    link = testbed.links[name]
    if figures:
        link.set(direction=way, **figures)
    for key, on in switches.items():
        SWITCHES[key](link, on, way)


def _status(testbed: Testbed) -> Status:
    statistics = testbed.statistics()
    return {
        "process": os.getpid(),
        "backend": testbed.backend,
        "rootless": testbed.rootless,
        "server": [testbed.server.address(version) for version in (4, 6)],
        "links": {
            link.name: asdict(link.spec)
            | {
                "client": [link.client_address(v) for v in link.versions],
                "blackhole": link.dark,
                "statistics": asdict(statistics[link.name]),
            }
            for link in testbed.links.values()
        },
    }
