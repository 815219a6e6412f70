"""`multi testbed`: two hosts with emulated links, for trying things by hand."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from multi.cli.parser import Parser
from multi.errors import ConfigError, words_of
from multi.lab.testbed import TestbedError, daemon, load_profile
from multi.lab.testbed.daemon import Status
from multi.lab.testbed.specs import HostName


def add_arguments(parser: Parser) -> None:
    add_action = parser.has_actions("actions", "ACTION")
    _add_up_arguments(add_action("up", "start a testbed in the background"))

    execution = add_action("exec", "run a program on a host")
    execution.runs(execute)
    execution.add_argument("name", metavar="NAME", help="the testbed")
    execution.add_argument("host", choices=("client", "server"), help="the host")
    execution.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the program, after --")

    setting = add_action("set", "change a link")
    setting.runs(change)
    setting.add_argument("name", metavar="NAME", help="the testbed")
    setting.add_argument("link", metavar="LINK", help="the link's name")
    keys = (
        "rate_mbps, delay_ms, jitter_ms, loss, queue_ms, queue_bytes; direction=down|up (default: both); "
        "blackhole, carrier, address, present = on|off"
    )
    setting.add_argument("changes", metavar="KEY=VALUE", nargs="+", help=keys)

    ending = add_action("down", "end a testbed and everything in it")
    ending.runs(down)
    ending.add_argument("name", metavar="NAME", nargs="?", default="default", help="its name (default: default)")

    add_action("list", "show the testbeds that are running").runs(show_all)


def _add_up_arguments(parser: Parser) -> None:
    parser.runs(up)
    links = "its links: a JSON file, or paper (default) or wifi_and_5g"
    parser.add_argument("--profile", metavar="FILE", default="paper", help=links)
    parser.add_argument("--name", metavar="NAME", default="default", help="its name (default: default)")
    parser.add_argument(
        "--backend",
        choices=("auto", "tap", "veth"),
        default="auto",
        help="how the relay gets at frames: tap (needs /dev/net/tun), veth, or whichever works",
    )
    parser.add_argument("--congestion", metavar="NAME", default="", help="TCP congestion control, such as bbr or cubic")
    parser.add_argument(
        "--detect-duplicates", action="store_true", help="let the kernel check new IPv6 addresses first (tentative)"
    )
    parser.add_argument("--mptcp", action="store_true", help="let MPTCP make subflows over all links")


def up(*, name: str, profile: str, **options: object) -> int:
    """The options are those of `Testbed`."""
    _show(daemon.up(name, load_profile(profile), **options))
    return 0


def execute(*, name: str, host: HostName, command: list[str]) -> int:
    program = command[1:] if command[:1] == ["--"] else command
    if not program:
        raise ConfigError("no program given: multi testbed exec NAME client|server -- CMD...")
    daemon.enter(name, host)
    sys.stdout.flush()
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise TestbedError(f"{program[0]}: {words_of(error)}") from None


def change(*, name: str, link: str, changes: Sequence[str]) -> int:
    pairs = {}
    for text in changes:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r}: KEY=VALUE is wanted")
        pairs[key] = value
    _show_link(daemon.change(name, link, pairs), link)
    return 0


def down(*, name: str) -> int:
    daemon.take_down(name)
    return 0


def show_all() -> int:
    for name in daemon.names():
        # It may have ended since we looked.
        with contextlib.suppress(TestbedError):
            _show(daemon.status(name))
    return 0


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
            f" +- {figures['jitter_ms']:g}, loss {figures['loss']:g}, queue {queue}"
            f"{', blackhole' if link['blackhole'][way] else ''};"
            f" {done['packets']} packets, {done['bytes']} bytes, lost: {done['queue_drops']} queue full,"
            f" {done['random_losses']} random, {done['cut_drops']} cut; waiting {done['queue_ms']:.1f} ms"
        )
