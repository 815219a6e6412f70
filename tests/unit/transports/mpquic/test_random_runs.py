"""Connections over paths drawn at random that die, come back, change and are moved, with either engine at each end.

Every byte arrives, both ways; a path that answers again is used again; and where nothing but silence and longer ways
stood against them, transfers take no longer than the best path gives reason for.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from multi.lab.engines.links import DatagramLinkSpec, link_of
from multi.lab.engines.pair import EngineEnd
from multi.multipath.facts import PathState
from multi.multipath.silence import MAX_PROBE_INTERVAL
from tests.unit.transports.mpquic.ends import engines_by_name, paths_of

pytestmark = pytest.mark.slow  # whole engines in virtual time

ENGINES = [("aioquic", "aioquic"), ("noq", "noq"), ("aioquic", "noq"), ("noq", "aioquic")]
ASKS_BEFORE_THE_HANDSHAKE_IS_CONFIRMED = 10_368  # a seed: what asked went with the handshake, and nothing asked again
LONGEST = 1.0  # seconds one way
CHANGES = ("dies", "dies", "hears", "is heard", "heals", "heals", "backup", "moves", "longer", "shorter")


class Run:
    """One, all of which follows from its seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.gentle = True
        """Nothing slows it down but silence and ways that become longer or shorter."""
        self.specs = [self._drawn() for _ in range(self.random.choice([2, 2, 3]))]
        self.made = engines_by_name(*ENGINES[seed % len(ENGINES)], *self.specs)

    def _drawn(self) -> tuple[DatagramLinkSpec, DatagramLinkSpec]:
        chance = self.random
        rate, trip = chance.choice([0.5, 1, 2, 5, 10]), chance.choice([0.005, 0.02, 0.05, 0.1, 0.3, 0.6, 1.2, 2.0])
        loss, jitter = chance.choice([0, 0, 0, 0.002, 0.01, 0.03]), chance.choice([0, 0, 0, trip / 10])
        self.gentle = self.gentle and not loss and not jitter
        queue = chance.choice([0.5, 1, 1.5, 4])
        up, down = (
            link_of(share * rate, trip, queue, loss=loss, jitter=jitter) for share in (chance.choice([1, 0.3]), 1)
        )
        return up, down

    def something_happens(self) -> None:
        made, chance = self.made, self.random
        at = chance.randrange(len(self.specs))
        links = made.ups[at], made.downs[at]
        match chance.choice(CHANGES):
            case "dies":
                links[0].silent = links[1].silent = True
            case "hears":
                links[0].silent = True
            case "is heard":
                links[1].silent = True
            case "heals":
                links[0].silent = links[1].silent = False
            case "backup":
                self.gentle = False
                end = chance.choice([made.client, self.server])
                if at in made.facts(end):
                    paths_of(end).set_backup(at, chance.random() < 0.6)
                    end.pump()
            case "moves":
                made.move(at, address=chance.random() < 0.5)
            case change:
                factor = 3 if change == "longer" else 1 / 3
                for link in links:
                    link.spec = replace(link.spec, delay=min(LONGEST, link.spec.delay * factor))
        if all(up.silent or down.silent for up, down in zip(made.ups, made.downs, strict=True)):
            at = chance.randrange(len(self.specs))
            made.ups[at].silent = made.downs[at].silent = False

    @property
    def server(self) -> EngineEnd:
        assert self.made.server is not None
        return self.made.server

    def play(self) -> None:
        made, chance = self.made, self.random
        made.client.keep_data = True
        made.connect()
        made.open_all()
        self.server.keep_data = True
        rates = [max(spec[way].rate for spec in self.specs) for way in (0, 1)]
        up, down = (chance.randbytes(int(rate * chance.uniform(0.2, 5))) for rate in rates)
        made.client.write(up, end=True)
        assert made.run(lambda: self.server.received > 0)
        self.server.write(down, end=True)
        for _ in range(chance.randint(1, 8)):
            made.run(lambda: False, chance.uniform(0.01, 1.5))
            self.something_happens()
        made.run(lambda: False, chance.uniform(0.01, 1))
        for link in (*made.ups, *made.downs):
            link.silent = False
        longest = 2 * max(link.spec.delay for link in made.ups)
        left = max((len(up) - self.server.received) / rates[0], (len(down) - made.client.received) / rates[1])
        limit = 4 * left + 40 * longest + 8 if self.gentle else 600.0
        ends = self.server, made.client
        assert made.run(lambda: ends[0].received == len(up) and ends[1].received == len(down), limit), self.told()
        assert bytes(self.server.data) == up
        assert bytes(made.client.data) == down
        assert made.run(self.all_answer, 5 * MAX_PROBE_INTERVAL + 12 * longest), self.told()

    def all_answer(self) -> bool:
        facts = [path for end in (self.made.client, self.server) for path in self.made.facts(end).values()]
        # A backup whose address has changed is not asked before the peer is heard from there.
        return all(path.state is PathState.ACTIVE or path.backup for path in facts)

    def told(self) -> str:
        return f"{self.specs}; {[self.made.facts(end) for end in (self.made.client, self.server)]}"


@pytest.mark.parametrize("seed", [*range(8), ASKS_BEFORE_THE_HANDSHAKE_IS_CONFIRMED])
def test_all_arrives_and_every_path_that_answers_is_used(seed: int) -> None:
    Run(seed).play()
