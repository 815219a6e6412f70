"""`multi testbed`: two hosts with emulated links, for trying things by hand."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from multi.cli.arguments import Subparsers, add_command

if TYPE_CHECKING:
    from multi.lab.testbed.daemon import Status

DEFAULT_NAME = "default"


def add_parser(commands: Subparsers) -> None:
    parser = add_command(commands, "testbed", None, "two hosts with emulated networks on this machine")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    up = add_command(actions, "up", _up, "start a testbed in the background")
    up.add_argument(
        "--profile", metavar="FILE", default="paper", help="its links: a JSON file, or paper (default) or wifi_and_5g"
    )
    up.add_argument("--name", metavar="NAME", default=DEFAULT_NAME, help=f"its name (default: {DEFAULT_NAME})")
    up.add_argument("--backend", choices=("auto", "tap", "veth"), default="auto", help="how frames are got at")
    up.add_argument("--congestion", metavar="NAME", default="", help="TCP congestion control, such as bbr or cubic")
    up.add_argument("--detect-duplicates", action="store_true", help="let new IPv6 addresses be tentative for a while")
    up.add_argument("--mptcp", action="store_true", help="let MPTCP make subflows over all links")

    execute = add_command(actions, "exec", _exec, "run a program on a host")
    execute.add_argument("name", metavar="NAME", help="the testbed")
    execute.add_argument("host", choices=("client", "server"), help="the host")
    execute.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the program, after --")

    change = add_command(actions, "set", _set, "change a link")
    change.add_argument("name", metavar="NAME", help="the testbed")
    change.add_argument("link", metavar="LINK", help="the link's name")
    change.add_argument(
        "changes",
        metavar="KEY=VALUE",
        nargs="+",
        help="rate_mbps, delay_ms, jitter_ms, loss, queue_ms, queue_bytes; direction=down|up (default: both); "
        "blackhole, carrier, address, present = on|off",
    )

    down = add_command(actions, "down", _down, "end a testbed and everything in it")
    down.add_argument("name", metavar="NAME", nargs="?", default=DEFAULT_NAME, help=f"default: {DEFAULT_NAME}")

    add_command(actions, "list", _list, "show the testbeds that are running")


def _up(parsed: argparse.Namespace) -> int:
    from multi.lab.testbed import daemon as keeper
    from multi.lab.testbed import load_profile

    status = keeper.up(
        parsed.name,
        load_profile(parsed.profile),
        backend=parsed.backend,
        congestion=parsed.congestion,
        detect_duplicates=parsed.detect_duplicates,
        mptcp=parsed.mptcp,
    )
    _show(status)
    return 0


def _exec(parsed: argparse.Namespace) -> int:
    from multi.lab.testbed import TestbedError
    from multi.lab.testbed import daemon as keeper

    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if not command:
        raise TestbedError("no program given: multi testbed exec NAME client|server -- CMD...")
    keeper.enter(parsed.name, parsed.host)
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise TestbedError(f"{command[0]}: {(error.strerror or str(error)).lower()}") from None


def _set(parsed: argparse.Namespace) -> int:
    from multi.lab.testbed import daemon as keeper

    _show_link(keeper.change(parsed.name, parsed.link, _pairs(parsed.changes)), parsed.link)
    return 0


def _down(parsed: argparse.Namespace) -> int:
    from multi.lab.testbed import daemon as keeper

    keeper.take_down(parsed.name)
    return 0


def _list(_parsed: argparse.Namespace) -> int:
    from multi.lab.testbed import TestbedError
    from multi.lab.testbed import daemon as keeper

    for name in keeper.names():
        # It may have ended since we looked.
        with contextlib.suppress(TestbedError):
            _show(keeper.status(name))
    return 0


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    from multi.lab.testbed import TestbedError

    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise TestbedError(f"{text!r}: KEY=VALUE is wanted")
        pairs[key] = value
    return pairs


def _show(status: Status) -> None:
    how = f"{status['backend']}{', without root' if status['rootless'] else ''}"
    print(f"{status['name']}: server {' '.join(status['server'])} ({how}, process {status['process']})")
    for link in status["links"]:
        _show_link(status, link)


def _show_link(status: Status, name: str) -> None:
    link = status["links"][name]
    print(f"  {name}: {link['interface']} {' '.join(link['client'])}")
    for way in ("down", "up"):
        figures, done = link[way], link["statistics"][way]
        queue = f"{figures['queue_ms']:g} ms" if figures["queue_bytes"] is None else f"{figures['queue_bytes']} bytes"
        print(
            f"    {way:4} {figures['rate_mbps']:g} Mbit/s, delay {figures['delay_ms']:g} ms"
            f" +- {figures['jitter_ms']:g}, loss {figures['loss']:g}, queue {queue};"
            f" {done['packets']} packets, {done['bytes']} bytes, lost: {done['queue_drops']} queue full,"
            f" {done['random_losses']} random, {done['cut_drops']} cut; waiting {done['queue_ms']:.1f} ms"
        )
