"""Play many servers behind a balancer on paper: `python -m benchmarks.routing [--sessions N] [--servers N]`.

Servers are added, drained and killed, and the balancer forgets, in several rounds; in each a part of the sessions loses
its connections and comes back, all of them where the balancer has forgotten. Only sessions of killed servers may end.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from benchmarks.routing.model import WORKERS, Balancer, Hash, HashAndTable, Token, World

ROUNDS = 5
SHARE = 0.1  # of the sessions come back after each change
COLUMNS = ("ended with their server", "ended wrongly", "second connection missing", "joins", "at strangers", "dials")

KINDS: dict[str, Callable[[int, int], World]] = {
    "hash of the Session ID": lambda servers, seed: World(Hash, servers, seed=seed),
    "hash and table (HAProxy)": lambda servers, seed: World(HashAndTable, servers, seed=seed),
    "round robin": lambda servers, seed: World(Balancer, servers, seed=seed),
    "round robin, own addresses": lambda servers, seed: World(Balancer, servers, seed=seed, own=True),
    "round robin, peers redirect": lambda servers, seed: World(Balancer, servers, seed=seed, peers=True),
    "route tokens": lambda servers, seed: World(Token, servers, seed=seed),
}
SAFE = ("round robin, own addresses", "round robin, peers redirect", "route tokens")
"""With these, nobody's session ends but those of servers that were killed."""


def play(world: World, sessions: int, rounds: int = ROUNDS) -> World:
    """Additions, drains, deaths and a balancer that forgets."""
    world.open(sessions)
    for _ in range(rounds):
        for change in (world.add_server, world.drain_server, world.kill_server):
            change()
            world.come_back(SHARE)
            world.open(sessions // 100)
        world.balancer.forget()
        world.come_back(1.0)
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--servers", type=int, default=50)
    chosen = parser.parse_args()
    print(
        f"{chosen.sessions} sessions on {chosen.servers} servers of {WORKERS} workers. {ROUNDS} times: one more server,"
    )
    print("one drained, one killed, and the balancer forgets.\n")
    print(f"{'':28}{'living':>8}" + "".join(f"{column:>27}" for column in COLUMNS))
    for name, make in KINDS.items():
        began = time.monotonic()
        world = play(make(chosen.servers, 1), chosen.sessions)
        figures = "".join(f"{world.counts[column]:>27}" for column in COLUMNS)
        print(f"{name:28}{len(world.clients):>8}{figures}   ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
