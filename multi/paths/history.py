"""What became of earlier attempts on each network, and what that means for the next ones.

Decides the order among candidates and how long to wait for one before the next is tried (RFC 8305 section 8, and the
performance cache of RFC 9623). A network is named by what `multi.discovery.networks` finds out, so that what was learnt
at home does not count in a hotel. A memory is never a verdict: what failed comes last, it does not disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multi.types import Candidate, Family

__all__ = ["ConnectionHistory"]

DEMOTION = 60.0  # seconds after the first failure, doubled with each further one
MAX_DEMOTION = 3600.0  # seconds; as long as Linux keeps MPTCP off a network that swallows it
SUCCESS_LIFETIME = 24 * 3600.0  # seconds a setup time is believed
FAILURE_LIFETIME = 24 * 3600.0  # seconds after the end of a demotion in which the next failure counts as a further one
IGNORED = 0.05  # of the races are run as if nothing was known, or a recovered candidate would never be seen
SETUP_FACTOR = 1.5  # what takes half as long again as last time probably fails
MIN_DELAY = 0.100  # seconds, RFC 8305 section 8
MAX_DELAY = 2.0  # seconds, RFC 8305 section 8
MEMORIES = 1024  # a laptop sees a few networks a day and a few servers on each


@dataclass(slots=True)
class _Memory:
    """A setup time, or a demotion, or neither any more."""

    setup: float = 0.0
    setup_until: float = float("-inf")
    demotion: float = 0.0
    demoted_until: float = float("-inf")


_Key = tuple[str, str, Family, str, int]
"""Network, transport, IP version, remote host, remote port."""


class ConnectionHistory:
    """Successes and failures by network, transport, IP version and server. Times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._memories: dict[_Key, _Memory] = {}  # the longest untouched first

    def succeeded(self, network: str, candidate: Candidate, setup: float, now: float) -> None:
        """An attempt took `setup` seconds until the connection could be used."""
        self._remember(_key(network, candidate), _Memory(setup=setup, setup_until=now + SUCCESS_LIFETIME))

    def failed(self, network: str, candidate: Candidate, now: float) -> None:
        """An attempt failed: the candidate is demoted, and for twice as long as the last time.

        Failures during a demotion count once: connections tried again and again on a network that is gone for a
        minute would be demoted for an hour.
        """
        key = _key(network, candidate)
        memory = self._memories.get(key, _Memory())
        if now >= memory.demoted_until:
            recent = now < memory.demoted_until + FAILURE_LIFETIME
            memory.demotion = min(2 * memory.demotion, MAX_DEMOTION) if recent and memory.demotion else DEMOTION
            memory.demoted_until = now + memory.demotion
        self._remember(key, memory)

    def order(
        self, candidates: Sequence[Candidate], network_of: Callable[[Candidate], str], now: float, chance: float
    ) -> list[Candidate]:
        """The candidates in their own order, but those demoted on their network last.

        `chance` is a random number in [0, 1): one race in twenty ignores what is remembered.
        """
        if chance < IGNORED:
            return list(candidates)
        return sorted(candidates, key=lambda candidate: self._is_demoted(_key(network_of(candidate), candidate), now))

    def attempt_delay(self, network: str, candidate: Candidate, default: float, now: float) -> float:
        """Seconds to wait for this candidate before the next is tried."""
        memory = self._memories.get(_key(network, candidate))
        if memory is None or now >= memory.setup_until:
            return default
        return min(max(SETUP_FACTOR * memory.setup, MIN_DELAY), MAX_DELAY)

    def _is_demoted(self, key: _Key, now: float) -> bool:
        memory = self._memories.get(key)
        return memory is not None and now < memory.demoted_until

    def _remember(self, key: _Key, memory: _Memory) -> None:
        self._memories.pop(key, None)
        self._memories[key] = memory
        if len(self._memories) > MEMORIES:
            del self._memories[next(iter(self._memories))]


def _key(network: str, candidate: Candidate) -> _Key:
    return (network, candidate.transport, candidate.family, candidate.remote_host, candidate.remote_port)
