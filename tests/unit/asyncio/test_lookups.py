"""Threads for questions: how many a share has, whose turn it is, and that what was given up counts until it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from multi.asyncio.lookups import LookupResult, Question, Share
from multi.types import Family


class Asked:
    """The questions that have been asked, in order; each waits in its thread until it is answered."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.told: dict[str, LookupResult] = {}
        """By host and owner."""
        self._over: set[str] = set()
        self._changed = threading.Condition()

    def put(self, share: Share, *hosts: str, owner: object = None) -> None:
        for host in hosts:
            tell = partial(self.told.__setitem__, host + str(owner or ""))
            share.put(Question(owner, host, Family.IPV4, partial(self._ask, host), tell))

    def _ask(self, host: str) -> list[str]:
        with self._changed:
            self.hosts.append(host)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: host in self._over or "" in self._over, 20)
        return [f"address of {host}"]

    def answer(self, *hosts: str) -> None:
        """Let them end; `""` is all."""
        with self._changed:
            self._over.update(hosts)
            self._changed.notify_all()

    def check(self, *hosts: str) -> None:
        """These and no others are asked."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.hosts) >= len(hosts), 5)
        time.sleep(0.02)
        assert sorted(self.hosts) == sorted(hosts)


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.answer("")


def test_one_share_waits_for_itself_and_others_do_not(asked: Asked) -> None:
    threads = Share(8)
    dead, other = Share(2, threads), Share(2, threads)
    asked.put(dead, "dead1", "dead2", "dead3", "dead4")
    asked.check("dead1", "dead2")
    asked.put(other, "good")
    asked.check("dead1", "dead2", "good")
    asked.answer("dead2")
    asked.check("dead1", "dead2", "good", "dead3")


def test_what_was_given_up_counts_until_it_is_over(asked: Asked) -> None:
    share = Share(2, Share(8))
    asked.put(share, "dead1", "dead2", "never", owner="first")
    share.forget("first")
    asked.put(share, "next", owner="second")
    asked.check("dead1", "dead2")
    asked.answer("dead1")
    asked.check("dead1", "dead2", "next")


def test_shares_lie_within_another(asked: Asked) -> None:
    threads = Share(8)
    source = Share(3, threads)
    asked.put(Share(2, source), "a1", "a2", "a3")
    asked.put(Share(2, source), "b1", "b2", "b3")
    asked.put(Share(2, threads), "c1", "c2", "c3")
    asked.check("a1", "a2", "b1", "c1", "c2")
    asked.answer("b1")
    asked.check("a1", "a2", "b1", "c1", "c2", "b2")


def test_those_in_line_take_turns(asked: Asked) -> None:
    threads = Share(1)
    many, few = Share(1, threads), Share(1, threads)
    asked.put(many, "many1", "many2", "many3", "many4")
    asked.put(few, "few1", "few2")
    asked.answer("")
    asked.check("many1", "many2", "few1", "many3", "few2", "many4")
    assert asked.hosts == ["many1", "many2", "few1", "many3", "few2", "many4"]


def test_one_name_has_half_of_a_share(asked: Asked) -> None:
    share = Share(4, Share(8))
    asked.put(share, *["dead"] * 5, "good")
    asked.check("dead", "dead", "good")


def test_an_answer_is_for_all_who_ask_the_same_and_wait_in_line(asked: Asked) -> None:
    share = Share(2, Share(8))
    for number in range(5):
        asked.put(share, "same", owner=number)
    asked.put(share, "other")
    asked.answer("same")
    asked.check("same", "other")
    assert asked.told == {f"same{number or ''}": ["address of same"] for number in range(5)}


def test_without_a_thread_of_the_system_the_next_one_is_not_kept_waiting(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    share = Share(1, Share(1))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        asked.put(share, "a", "b")
    assert [str(asked.told[host]) for host in "ab"] == ["[Errno 11] can't start new thread"] * 2
    asked.put(share, "c")
    asked.check("c")
