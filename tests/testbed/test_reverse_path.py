"""Strict reverse-path filtering in network namespaces: what is said of it is what the kernel does."""

from __future__ import annotations

import io
import socket
import subprocess
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from multi.cli.main import main
from multi.discovery import interfaces
from multi.discovery.reverse_path import filtered
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.linux.policy_routes import PolicyRoutes
from tests.testbed.test_policy_routes import KINDS, LINKS, OWN, REMOTES, ROUTER, SERVER, both, hide_second_link

PORT = 7788
CLIENT = f"multi://{SERVER[4]}:{PORT}?interfaces=eth0,wlan0&transports=tcp&open_timeout=3"


def set_filter(**values: int) -> None:
    for name, value in values.items():
        Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text(str(value))


def passes() -> bool:
    """Whether what the second network brings back arrives."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"wlan0")
        sock.bind((OWN[4], 0))
        sock.settimeout(1.5)
        with suppress(TimeoutError):
            sock.connect((SERVER[4], PORT))
            return True
    return False


def said() -> tuple[dict[str, str], bool]:
    return filtered(interfaces(KINDS), REMOTES), passes()


def look() -> list[tuple[dict[str, str], bool]]:
    seen = []
    set_filter(all=0, eth0=1, wlan0=1)
    seen.append(said())  # with the testbed's routes by source address
    hide_second_link()
    with_a_way_out()
    seen.append(said())
    set_filter(all=1, wlan0=0)
    seen.append(said())
    set_filter(wlan0=2)
    seen.append(said())
    set_filter(all=0, wlan0=0)
    seen.append(said())
    return seen


def with_a_way_out() -> None:
    """A default route of a worse metric, as network managers make for the second network."""
    subprocess.run(["ip", "route", "add", "default", "via", ROUTER[4], "dev", "wlan0", "metric", "900"], check=True)


async def test_it_is_told_exactly_where_the_kernel_drops_what_comes_back(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(LINKS)
    with testbed.server.socket() as listener:
        listener.bind((SERVER[4], PORT))
        listener.listen()
        seen = await testbed.client.run_python(look)
    assert seen == [({}, True), ({"wlan0": "eth0"}, False), ({"wlan0": "eth0"}, False), ({}, True), ({}, True)]


def run(*arguments: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        main(arguments)
    return output.getvalue()


def commands() -> list[str]:
    hide_second_link()
    with_a_way_out()
    set_filter(wlan0=1)
    shown = [run("check", CLIENT), run("ping", CLIENT)]
    routes = PolicyRoutes()
    routes.install(both(), REMOTES)
    shown.append(run("check", CLIENT))
    routes.remove()
    return shown


async def test_check_and_ping_tell_why_a_network_looks_dead(make_testbed: MakeTestbed) -> None:
    check, ping, routed = await make_testbed(LINKS).client.run_python(commands)
    warning = "warning: wlan0: this machine drops what comes back over it, by strict reverse-path filtering"
    assert warning in check
    assert "over eth0" in check
    assert warning in ping
    assert "reverse-path" not in routed
    assert "eth0: this machine" not in check + ping
