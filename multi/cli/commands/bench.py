"""`multi bench`: measure a session between two machines."""

from __future__ import annotations

import argparse

from multi.cli.arguments import Subparsers, add_command, byte_count, positive


def add_parser(commands: Subparsers) -> None:
    roles = add_command(commands, "bench", None, "measure a session, like iperf3").add_subparsers(
        title="roles", metavar="serve|run", required=True
    )
    answering = add_command(roles, "serve", serve, "answer measurements")
    answering.add_argument("config", metavar="CONFIG", help="the server's configuration")
    measuring = add_command(roles, "run", run, "measure once")
    measuring.add_argument("config", metavar="CONFIG", help="the client's configuration")
    amount = measuring.add_mutually_exclusive_group()
    amount.add_argument("-t", metavar="S", dest="seconds", type=positive, help="for S seconds (default 10)")
    amount.add_argument("-n", metavar="BYTES", dest="size", type=byte_count, help="exactly BYTES, checked on arrival")
    measuring.add_argument("-R", dest="reverse", action="store_true", help="the server sends")
    measuring.add_argument("--json", action="store_true", help="print the result as JSON")


def serve(parsed: argparse.Namespace) -> int:
    from multi.lab.bench.run import run_bench_server

    return run_bench_server(parsed.config)


def run(parsed: argparse.Namespace) -> int:
    from multi.lab.bench.run import run_bench

    return run_bench(
        parsed.config, seconds=parsed.seconds, size=parsed.size, reverse=parsed.reverse, as_json=parsed.json
    )
