"""`multi interfaces`: the interfaces of this machine and what a session could do with them."""

from __future__ import annotations

import json
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from multi.cli.parser import Parser
from multi.discovery.interfaces import interfaces
from multi.types import Family, Interface, Kind

PIPED_WIDTH = 10_000  # columns; nothing is cut or wrapped when a program reads the table


def add_arguments(parser: Parser) -> None:
    parser.runs(show_interfaces)
    parser.add_argument("--json", dest="as_json", action="store_true", help="print them as JSON")


def show_interfaces(*, as_json: bool = False) -> int:
    """Print the table, on a terminal an address per line, otherwise an interface per line; or JSON. Returns 0."""
    found = interfaces({})
    if as_json:
        print(json.dumps([_described(interface) for interface in found], indent=2))
        return 0
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else PIPED_WIDTH, markup=False, highlight=False)
    if not found:
        console.print("The interfaces of this machine cannot be read.")
        return 0
    console.print(_table(found, separator="\n" if terminal else ", "))
    return 0


def _described(interface: Interface) -> dict[str, object]:
    reason = interface.unusable_reason()
    return {
        "name": interface.name,
        "kind": interface.kind.value,
        "usable": not reason,
        "reason": reason or "",
        "metered": interface.metered,
        "gateways": {family.value: gateway for family, gateway in interface.gateways},
        "addresses": [
            {"address": str(a.address), "prefix_length": a.prefix_length, "usable": a.usable, "reason": a.reason}
            for a in interface.addresses
        ],
    }


def _table(found: tuple[Interface, ...], separator: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("name", "kind", "addresses", "gateway", "metered", "usable"):
        table.add_column(heading, overflow="fold")
    for interface in found:
        table.add_row(
            interface.name,
            interface.kind.value,
            separator.join(_addresses(interface)),
            separator.join(gateway or "direct" for _, gateway in interface.gateways),
            "yes" if interface.metered else "",
            _usable(interface),
        )
    return table


def _addresses(interface: Interface) -> list[str]:
    return [f"{a.address}/{a.prefix_length}" + ("" if a.usable else f" ({a.reason})") for a in interface.addresses]


def _usable(interface: Interface) -> str:
    """`yes`, with what it is limited to, or why not."""
    reason = interface.unusable_reason()
    if reason:
        return f"no: {reason}"
    if interface.kind is Kind.LOOPBACK:
        return "yes, this machine only"
    families = [f for f in Family if not interface.unusable_reason(f)]
    routed = {family for family, _ in interface.gateways}
    beyond = [f.value for f in families if f in routed]
    if not beyond:
        return "yes, no default route"
    return "yes" if len(beyond) == len(families) else f"yes, default route for {beyond[0]} only"
