"""Several servers behind one address: `make bench ARGS=balancer`, `python -m benchmarks.balancer [ROW ...]`.

Real HAProxy, server processes and clients on loopback; every byte that comes back is compared. Each row is stored
under `benchmarks/results/balancer` and not measured again, so an interrupted run goes on where it was (`--fresh` begins
anew). Rows that need HAProxy are skipped, and say so, where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from benchmarks import RESULTS, ROOT
from benchmarks.balancer import returning
from benchmarks.balancer.clients import Met, Plan
from benchmarks.processes import Process, raise_descriptors
from benchmarks.revision import described
from multi.lab.cert import write_development_certificates
from tests.integration.support import free_port

HOST = "127.0.0.1"
SERVERS = 3
CLIENT = ("127.0.0.7", "127.0.0.8")
"""Where its connections start from."""
MEASURED = "benchmarks.balancer"
OPENED_APART = 0.2  # seconds between sessions that open behind a balancer that knows nothing
RESTARTED_APART = 3.0  # seconds until the next server is stopped; the balancer sees within one that this one is back
LIMITS = {"max_sessions_per_source": 10_000, "max_unauthenticated_per_source": 4096}
ROUND_ROBIN = """
global
    maxconn 8000
defaults
    mode tcp
    timeout connect 2s
    timeout client 5m
    timeout server 5m
frontend multi
    bind @BIND@
    default_backend servers
backend servers
    balance roundrobin
@SERVERS@
"""


class NoHAProxy(Exception):
    """It is not installed."""


@dataclass
class Outcome:
    """What a row came to."""

    row: str
    promise: str
    figures: dict[str, object]
    kept: bool
    revision: str = field(default_factory=described)
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))
    """Of the machine, when it was over."""


@dataclass
class Scale:
    """How much of everything."""

    sessions: int = 1000
    apart: float = 0.016
    """Seconds between two that open."""
    astray: int = 300
    """Sessions behind a balancer that knows nothing."""
    joins: int = 100_000
    hold: float = 20.0
    """Seconds that sessions go on after what happens to them."""
    drain: float = 15.0
    """Seconds a server that is stopped gives its sessions."""


QUICK = Scale(sessions=60, apart=0.03, astray=30, joins=5000, hold=8.0, drain=8.0)


class HAProxy:
    """The balancer, with a configuration of its own or the one that is shipped."""

    def __init__(self, directory: Path, ports: list[int], config: str = "") -> None:
        program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise NoHAProxy("haproxy is not installed (apt install haproxy)")
        self.port, self._admin = free_port(), directory / "admin.sock"
        path = ROOT / "deploy" / "haproxy.cfg"
        if config:
            path = directory / "haproxy.cfg"
            servers = "\n".join(f"    server s{number} {HOST}:{port}" for number, port in enumerate(ports, 1))
            path.write_text(config.replace("@BIND@", f"{HOST}:{self.port}").replace("@SERVERS@", servers))
        self._environment = {
            **os.environ,
            **{f"MULTI_S{number}": f"{HOST}:{port}" for number, port in enumerate(ports, 1)},
            "MULTI_BIND": f"{HOST}:{self.port}",
            "MULTI_PEER": f"{HOST}:{free_port()}",
            "MULTI_ADMIN": str(self._admin),
        }
        self._words = [program, "-db", "-L", "lb1", "-f", str(path)]
        self.start()

    def start(self) -> None:
        """With an empty table."""
        self._process = subprocess.Popen(self._words, env=self._environment, stderr=subprocess.DEVNULL)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError("haproxy does not listen")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@dataclass
class World:
    """Servers, a balancer before them, and clients."""

    directory: Path
    servers: list[Process]
    ports: list[int]
    start: Callable[[int], Process]
    """The server of this number, in the place of one that has ended."""
    balancer: HAProxy | None = None

    def restart(self, number: int) -> None:
        self.servers[number].kill()
        self.servers[number] = self.start(number)
        self.servers[number].line()


def server_config(
    port: int, transport: str, certificates: Path, drain_timeout: float, **listen: object
) -> dict[str, Any]:
    at = {"host": HOST, "port": port, "transports": [transport.partition("-")[0]], "proxies": [HOST], **listen}
    config: dict[str, Any] = {"listen": at, "limits": LIMITS, "drain_timeout": drain_timeout}
    if transport != "tcp":
        pair = {"cert": str(certificates / "server-cert.pem"), "key": str(certificates / "server-key.pem")}
        config["ssl_config"] = pair
    return config


def client_config(port: int, transport: str, certificates: Path) -> dict[str, Any]:
    name = transport.partition("-")[0]
    config: dict[str, Any] = {
        "connection_priority": [[name, "ipv4", address] for address in CLIENT],
        "remote_host": HOST,
        "remote_port": port,
        "multi_config": {"connect": "par"},
    }
    if transport != "tcp":
        config["ssl_config"] = {"ca": str(certificates / "ca.pem")}
    return config


@contextmanager
def world(
    transport: str = "tcp", *, told: bool = False, drain_timeout: float = 25.0, **listen: object
) -> Iterator[World]:
    """Three servers; where they are `told`, each has a port of its own and wants to be joined there only."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_development_certificates(directory, [])
        ports = [free_port() for _ in range(SERVERS)]
        configs = []
        for port in ports:
            own = {"own": {"host": HOST, "port": free_port()}, "join": "own"} if told else {}
            configs.append(json.dumps(server_config(port, transport, directory, drain_timeout, **own, **listen)))

        def start(number: int) -> Process:
            return stack.enter_context(Process(f"{MEASURED}.server", f"s{number + 1}", configs[number]))

        servers = [start(number) for number in range(SERVERS)]
        for server in servers:
            server.line()
        made = World(directory, servers, ports, start)
        yield made
        if made.balancer is not None:
            made.balancer.kill()


def play(
    made: World, transport: str, port: int, sessions: int, scale: Scale, act: Callable[[], None] = lambda: None
) -> tuple[list[Met], float]:
    """Open sessions, let something happen to them, and let them go on; what each has met, and when it happened."""
    plan = Plan(client_config(port, transport, made.directory), sessions, scale.apart)
    with Process(f"{MEASURED}.clients", json.dumps(asdict(plan))) as clients:
        clients.line()
        at = time.time()
        act()
        time.sleep(scale.hold)
        return [Met(**met) for met in clients.ask("over")], at


def of_all(met: list[Met]) -> dict[str, object]:
    lived = [one for one in met if not one.error]
    return {
        "sessions": len(met),
        "lived": len(lived),
        "with two connections": sum(one.active >= 2 for one in lived),
        "tried a session": round(statistics.fmean(one.tried for one in lived), 3) if lived else 0.0,
        "answers": sum(one.answers for one in met),
        "longest wait of who lived, s": round(max((one.longest for one in lived), default=0.0), 3),
        "errors": sorted({one.error for one in met if one.error})[:5],
    }


# --- rows ---


def table(scale: Scale) -> Outcome:
    """Nothing happens."""
    with world() as made:
        made.balancer = HAProxy(made.directory, made.ports)
        met, _ = play(made, "tcp", made.balancer.port, scale.sessions, scale)
    figures = of_all(met)
    kept = figures["with two connections"] == len(met) and float(str(figures["tried a session"])) <= 2.05
    promise = f"hash and table, {len(met)} x 2 sealed TCP: all have both, at most 2.05 connections tried a session"
    return Outcome("table", promise, figures, kept)


def killed(scale: Scale) -> Outcome:
    with world() as made:
        made.balancer = HAProxy(made.directory, made.ports)
        met, at = play(made, "tcp", made.balancer.port, scale.sessions, scale, made.servers[0].kill)
    return _after_a_death("killed", met, at)


def killed_with_own_port(scale: Scale) -> Outcome:
    """The balancer knows nothing, and those who come through it are told by strangers."""
    with world(told=True) as made:
        made.balancer = HAProxy(made.directory, made.ports, ROUND_ROBIN)
        met, at = play(made, "tcp", made.balancer.port, scale.astray, scale, made.servers[0].kill)
    return _after_a_death("killed-with-own-port", met, at)


def _after_a_death(row: str, met: list[Met], at: float) -> Outcome:
    """Server s1 was killed at `at`."""
    its = [one for one in met if one.server == "s1"]
    told = [one.ended - at for one in its if one.error]
    others = [one for one in met if one.server != "s1"]
    figures = of_all(others) | {
        "its sessions": len(its),
        "its sessions told": len(told),
        "told after at most, s": round(max(told, default=0.0), 2),
        "told after, median, s": round(statistics.median(told), 2) if told else 0.0,
        "its errors": sorted({one.error for one in its})[:5],
    }
    waited = max((one.longest for one in others), default=0.0)
    kept = bool(its) and len(told) == len(its) and max(told) <= 4.0
    kept = kept and not any(one.error for one in others) and waited <= 2.0
    promise = "a server killed: its sessions are told within 4 s; nobody else loses a byte or waits over 2 s"
    return Outcome(row, promise, figures, kept)


def forgot(scale: Scale) -> Outcome:
    with world() as made:
        balancer = made.balancer = HAProxy(made.directory, made.ports)

        def crash() -> None:
            balancer.kill()
            balancer.start()

        met, _ = play(made, "tcp", balancer.port, scale.sessions, scale, crash)
    figures = of_all(met)
    lived = sum(not one.error for one in met)
    promise = "the balancer killed and started with an empty table: at least 99.9 % of the sessions live"
    return Outcome("forgot", promise, figures, lived >= 0.999 * len(met))


def round_robin(transport: str) -> Callable[[Scale], Outcome]:
    def row(scale: Scale) -> Outcome:
        with ExitStack() as stack:
            made = stack.enter_context(world(transport, told=True))
            if transport == "quic":
                port = free_port()
                words = (str(port), *map(str, made.ports))
                stack.enter_context(Process(f"{MEASURED}.udp", *words)).line()
            else:
                made.balancer = HAProxy(made.directory, made.ports, ROUND_ROBIN)
                port = made.balancer.port
            # One after the other: what a second connection waits for is its own handshakes, not those of others.
            met, _ = play(made, transport, port, scale.astray, replace(scale, apart=OPENED_APART))
        apart = sorted(one.second - one.first for one in met if one.second)
        refused = sum(len(one.refused) for one in met)
        late = sum(time > 0.2 for time in apart)
        figures = of_all(met) | {
            "JOINs refused": refused,
            "second connection after, median, s": round(statistics.median(apart), 3) if apart else 0.0,
            "after at most, s": round(apart[-1], 3) if apart else 0.0,
            "later than 0.2 s": late,
        }
        kept = len(apart) == len(met) and not refused and not late and not any(one.error for one in met)
        promise = "round robin and own ports: every first JOIN succeeds, second connection within 0.2 s of the first"
        return Outcome(f"round-robin-{transport}", f"{transport}: {promise}", figures, kept)

    return row


def restarted(scale: Scale) -> Outcome:
    """One server after the other is drained and started again; the balancer is told nothing."""
    with world(drain_timeout=scale.drain) as made:
        made.balancer = HAProxy(made.directory, made.ports)
        plan = Plan(client_config(made.balancer.port, "tcp", made.directory), scale.astray, scale.apart)
        ended: Counter[str] = Counter()
        took = []
        with Process(f"{MEASURED}.returning", json.dumps(asdict(plan))) as clients:
            clients.line()
            for number in range(SERVERS):
                begun = time.time()
                made.servers[number].ask("drain")
                ended.update(made.servers[number].line()["ended"])
                took.append(round(time.time() - begun, 2))
                made.restart(number)
                time.sleep(RESTARTED_APART)
            clients_met = [returning.Met(**met) for met in clients.ask()]
    stays = [returning.Stay(**stay) for met in clients_met for stay in cast("list[dict[str, Any]]", met.stays)]
    ends = Counter(stay.end for stay in stays if stay.end)
    late = [stay.ended - stay.word - stay.deadline for stay in stays if stay.end == "going_away"]
    figures: dict[str, object] = {
        "clients": len(clients_met),
        "ends, as clients saw them": dict(ends),
        "ends, as servers saw them": dict(ended),
        "ended without the word": sum(not stay.word for stay in stays if stay.end),
        "deadline, s": scale.drain,
        "nearest to its deadline, s": round(-max(late, default=0.0), 2),
        "drained in, s": took,
        "answers": sum(stay.answers for stay in stays),
        "sessions that could not be opened": sum(met.refused for met in clients_met),
        "longest without a session, s": round(max(met.apart for met in clients_met), 2),
        "errors": sorted({met.error for met in clients_met if met.error})[:5],
    }
    kept = bool(ends) and set(ends) | set(ended) <= {"going_away", "closed"}
    kept = kept and not figures["ended without the word"] and max(late, default=0.0) <= 0 and not figures["errors"]
    promise = "all three servers drained and started again: no session is gone, every end is within its deadline"
    return Outcome("restarted", promise, figures, kept)


def proxied(scale: Scale) -> Outcome:
    with world(proxy_protocol=[HOST]) as made:
        config = (ROOT / "deploy" / "haproxy.cfg").read_text().replace("default-server", "default-server send-proxy-v2")
        made.balancer = HAProxy(made.directory, made.ports, config)
        seen: list[dict[str, Any]] = []

        def look() -> None:
            seen.extend(server.ask() for server in made.servers)

        met, _ = play(made, "tcp", made.balancer.port, scale.astray, scale, look)
    clients = sorted({address for one in seen for address in one["clients"]})
    figures = of_all(met) | {"clients, as servers see them": clients, "limits hit": [one["limits"] for one in seen]}
    kept = clients == list(CLIENT) and figures["with two connections"] == len(met)
    return Outcome("proxied", "send-proxy-v2: servers see clients, and not the balancer", figures, kept)


def tokens(scale: Scale) -> Outcome:
    with world() as made:
        plan = Plan(client_config(made.ports[0], "tcp", made.directory), 20, 0.05)
        with Process(f"{MEASURED}.clients", json.dumps(asdict(plan))) as clients:
            living = clients.line()["open"]
            words = (str(made.ports[0]), str(scale.joins), *living)
            begun = time.time()
            with Process(f"{MEASURED}.tokens", *words) as stranger:
                said = stranger.line()
            took = time.time() - begun
            met = [Met(**one) for one in clients.ask("over")]
    figures = of_all(met) | {"JOINs a second": round(scale.joins / took), **{f"said {k}": v for k, v in said.items()}}
    kept = len(living) == 20 and not any(one.error for one in met) and said == {"UNKNOWN": scale.joins}
    promise = f"{scale.joins} JOINs with random tokens: no session lost, every one refused"
    return Outcome("tokens", promise, figures, kept)


def astray(scale: Scale) -> Outcome:
    words = [sys.executable, "-m", f"{MEASURED}.astray"]
    elsewhere, here = (
        json.loads(subprocess.run([*words, at], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        for at in ("10.99.0.1", HOST)
    )
    figures: dict[str, object] = {"server elsewhere": elsewhere, "server on loopback": here}
    kept = elsewhere == {"told": 0, "redirected": 0, "lives": True} and bool(here.get("told") and here["redirected"])
    promise = "a server that is not on loopback tells and redirects to loopback: no dial, and the session lives"
    return Outcome("astray", promise, figures, kept)


ROWS: dict[str, Callable[[Scale], Outcome]] = {
    "table": table,
    "killed": killed,
    "killed-with-own-port": killed_with_own_port,
    "forgot": forgot,
    **{f"round-robin-{transport}": round_robin(transport) for transport in ("tcp", "tcp-tls", "quic")},
    "restarted": restarted,
    "proxied": proxied,
    "tokens": tokens,
    "astray": astray,
}


def show(outcome: Outcome) -> None:
    print(f"{'kept  ' if outcome.kept else 'MISSED'} {outcome.row}: {outcome.promise}", flush=True)
    for name, value in outcome.figures.items():
        print(f"         {name}: {value}", flush=True)
    print(f"         {outcome.revision}, load {outcome.load}", flush=True)


def run(*, quick: bool) -> None:
    """All rows, for `python -m benchmarks`."""
    measure(quick=quick)


def measure(*, quick: bool, only: list[str] | None = None, fresh: bool = False, scale: Scale | None = None) -> bool:
    """Measure the rows that are not there yet; whether every promise was kept."""
    raise_descriptors()
    store = RESULTS / ("balancer-quick" if quick else "balancer")
    if fresh:
        shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True, exist_ok=True)
    kept = True
    for name, row in ROWS.items():
        if only and name not in only:
            continue
        path = store / f"{name}.json"
        if not path.exists():
            try:
                outcome = row(scale or (QUICK if quick else Scale()))
            except NoHAProxy as error:
                print(f"SKIPPED {name}: {error}", flush=True)
                continue
            path.write_text(json.dumps(asdict(outcome), indent=1))
        outcome = Outcome(**json.loads(path.read_text()))
        show(outcome)
        kept = kept and outcome.kept
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer sessions: a look, not a measurement")
    parser.add_argument("--fresh", action="store_true", help="throw away what is there")
    parser.add_argument("--sessions", type=int, help="of the rows with a table, and a third of it of the others")
    chosen = parser.parse_args()
    scale = QUICK if chosen.quick else Scale()
    if chosen.sessions:
        scale.sessions, scale.astray = chosen.sessions, max(1, chosen.sessions // 3)
    return 0 if measure(quick=chosen.quick, only=chosen.rows, fresh=chosen.fresh, scale=scale) else 1


if __name__ == "__main__":
    sys.exit(main())
