"""A process that has imported the command line and forks for every command it is asked for.

A command then is a process of its own as ever, with files, arguments, output and exit code, but does not spend most of
its time on imports. One order a line comes in, [arguments, directory, environment, file for output, file for errors];
the exit code goes out.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import sys
from importlib import import_module

import multi.cli

ALSO = ("multi._exports", "multi.asyncio.settings", "multi.lab.bench.run", "multi.lab.files.client")


def main() -> int:
    for module in (*(f"multi.cli.{found.name}" for found in pkgutil.iter_modules(multi.cli.__path__)), *ALSO):
        import_module(module)
    gc.freeze()
    for line in sys.stdin:
        arguments, directory, environment, *outputs = json.loads(line)
        child = os.fork()
        if not child:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            for descriptor, name in enumerate((os.devnull, *outputs)):
                os.dup2(os.open(name, os.O_RDWR), descriptor)
            return int(import_module("multi.cli.main").main(arguments))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
