"""A program with a server of several processes: `python -m tests.integration.workers_program CONFIG`."""

from __future__ import annotations

import logging
import os
import signal
import sys

import multi


async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    """Answers each line; some of them are orders."""
    async for line in reader:
        match line:
            case b"who\n":
                writer.write(b"%d\n" % os.getpid())
            case b"from where\n":
                session: multi.Session = writer.get_extra_info("session")
                writer.write(" ".join(info.remote for info in session.connections).encode() + b"\n")
            case b"die\n":
                os.kill(os.getpid(), signal.SIGKILL)
            case b"leave\n":
                sys.exit(0)
            case b"log\n":
                logging.getLogger("program").warning("logged by %d", os.getpid())
                writer.write(b"logged\n")
            case _:
                writer.write(line)
        await writer.drain()
    writer.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stdout)
    print("ended by", multi.run_server(on_client, sys.argv[1]).name, flush=True)
