"""`multi bench`: the arguments of a measurement and of the server that answers it."""

from __future__ import annotations

import argparse

from multi.cli.parser import CLIENT, SERVER, Parser, add_workers, positive
from multi.lab.bench.protocol import MAX_SIZE
from multi.lab.bench.run import run_bench, run_bench_server


def add_arguments(parser: Parser) -> None:
    add_role = parser.has_actions("roles", "serve|run")

    server = add_role("serve", "answer measurements")
    server.runs(run_bench_server, SERVER)
    add_workers(server)

    client = add_role("run", "measure once")
    client.runs(run_bench, CLIENT)
    amount = client.add_mutually_exclusive_group()
    amount.add_argument("-t", metavar="S", dest="seconds", type=positive, help="measure for S seconds (default 10)")
    amount.add_argument(
        "-n", metavar="BYTES", dest="size", type=_byte_count, help="send exactly BYTES, which are compared on arrival"
    )
    client.add_argument("-R", dest="reverse", action="store_true", help="reverse: the server sends")
    client.add_argument("--json", dest="as_json", action="store_true", help="print the result as JSON")


def _byte_count(text: str) -> int:
    """A number of bytes, `K`, `M` and `G` as powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    try:
        value = int(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of bytes")
    if value > MAX_SIZE:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MAX_SIZE} bytes")
    return value
