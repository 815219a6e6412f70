"""A process that has imported the command line and forks for every command it is asked for.

A command then is a process of its own as ever, with files, arguments, output, signals and exit code, but does not spend
most of its time on imports. One order comes in a packet over the socket that is standard input: [arguments, directory,
environment], and descriptors for output, errors and a pipe that is told its process id and, later, its exit code.
Commands that still run end with this process, and it with its standard input.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
from importlib import import_module

import multi.cli
from tests.integration.callbacks import callbacks_told

ALSO = ("multi._exports", "multi.asyncio.settings", "multi.lab.bench.run", "multi.lab.files.client")
MAX_ORDER = 1 << 20  # bytes


def main() -> int:
    for module in (*(f"multi.cli.{found.name}" for found in pkgutil.iter_modules(multi.cli.__path__)), *ALSO):
        import_module(module)
    gc.freeze()
    orders = socket.socket(fileno=sys.stdin.fileno())
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    running: dict[int, int] = {}  # processes, and where their exit codes go
    while True:
        for key, _ in selector.select():
            if key.fileobj is not orders:
                os.close(key.fd)
                selector.unregister(key.fd)
                tell(key.data, os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1]), running)
                continue
            order, descriptors, _, _ = socket.recv_fds(orders, MAX_ORDER, 3)
            if not order:
                for process in running:
                    os.kill(process, signal.SIGKILL)
                return 0
            *outputs, told = descriptors
            process = os.fork()
            if not process:
                selector.close()
                arguments, directory, environment = json.loads(order)
                return run(arguments, directory, environment, outputs)
            running[process] = told
            os.write(told, f"{process}\n".encode())
            for descriptor in outputs:
                os.close(descriptor)
            selector.register(os.pidfd_open(process), selectors.EVENT_READ, process)


def tell(process: int, code: int, running: dict[int, int]) -> None:
    told = running.pop(process)
    try:
        os.write(told, f"{code}\n".encode())
    except BrokenPipeError:
        pass  # nobody wants to know any more
    os.close(told)


def run(arguments: list[str], directory: str, environment: dict[str, str], outputs: list[int]) -> int:
    """The command, in a process of its own."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for descriptor, output in enumerate(outputs, 1):
        os.dup2(output, descriptor)
    os.closerange(3, 256)  # what other commands have been given
    with callbacks_told():
        return int(import_module("multi.cli.main").main(arguments))


if __name__ == "__main__":
    sys.exit(main())
