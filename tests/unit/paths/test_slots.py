"""When a wanted connection is dialled again, and how long what comes back has to prove itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.paths.slots import (
    DIAL_APART,
    MAX_BESIDE,
    MAX_RETRY,
    MAX_RETRY_DETACHED,
    MAX_TRIAL,
    MAX_TRIAL_SWITCH,
    RETRY_FIRST,
    RETRY_JITTER,
    SHORT_LIFE,
    STABLE_AFTER,
    Attempt,
    Slot,
    slot_key,
    slots_of,
)
from multi.types import Candidate, ConnectionId, Family, Role

ID = ConnectionId(1)


def candidate(number: int = 0, *, entry: int = 0, group: str = "", interface: str = "wlan0") -> Candidate:
    return Candidate(
        "tcp", Family.IPV4, "server.example", f"192.0.2.{number}", 7788, interface=interface, entry=entry, group=group
    )


def slot(*candidates: Candidate) -> Slot:
    (made,) = slots_of(candidates or (candidate(),))
    return made


def attempt(tried: Candidate) -> Attempt:
    return Attempt(tried, 0.0, Role.ACTIVE)


def lived(made: Slot, seconds: float, *, at: float = 0.0) -> float:
    """A connection fills the slot and is lost; return when."""
    made.filled(ID, attempt(made.candidates[0]), at)
    made.trouble(at + seconds)
    made.emptied(at + seconds)
    return at + seconds


# --- what is wanted  ---


def test_candidates_of_one_group_are_alternatives_for_one_connection() -> None:
    made = slots_of([candidate(1, entry=0, group="wifi"), candidate(2, entry=1), candidate(3, entry=2, group="wifi")])
    assert [[c.remote_address for c in one.candidates] for one in made] == [["192.0.2.1", "192.0.2.3"], ["192.0.2.2"]]


def test_a_slot_stays_the_same_while_its_local_address_changes() -> None:
    before = Candidate("tcp", Family.IPV4, "h", "192.0.2.9", 1, interface="wlan0", local_address="10.0.0.1")
    after = Candidate("tcp", Family.IPV4, "h", "192.0.2.9", 1, interface="wlan0", local_address="10.0.0.2")
    assert slot_key(before) == slot_key(after)
    assert slot_key(before) != slot_key(candidate(9, interface="eth0"))


def test_a_slot_is_dialled_while_it_is_empty_or_its_connection_may_be_dead() -> None:
    made = slot()
    assert made.wants_dial
    made.filled(ID, attempt(made.candidates[0]), 0.0)
    assert not made.wants_dial
    made.suspect = True
    assert made.wants_dial
    made.standby = True
    assert not made.wants_dial
    made.standby, made.absent = False, "no address"
    assert not made.wants_dial
    assert made.dial_again_at(detached=False) is None


@pytest.mark.parametrize("configured", Role)
@pytest.mark.parametrize("wanted", Role)
def test_what_the_application_wants_counts_more_than_the_configuration(configured: Role, wanted: Role) -> None:
    made = slot(replace(candidate(), role=configured))
    assert made.wanted_role is configured
    made.role = wanted
    assert made.wanted_role is wanted


def test_alternatives_take_turns_until_one_works_and_that_one_is_first_then() -> None:
    one, other = candidate(1, group="g"), candidate(2, group="g")
    made = slot(one, other)
    tried = []
    for _ in range(3):
        tried.append(made.next_to_dial())
        made.rotate(tried[-1])
    assert tried == [one, other, one]
    made.filled(ID, attempt(other), 0.0)
    assert made.next_to_dial() is other
    made.rotate(candidate(9))
    assert made.next_to_dial() is other, "what is no candidate any more moves nothing"


# --- when it is dialled again  ---


def retries(made: Slot, count: int, *, detached: bool = False, jitter: float = 1.0) -> list[float]:
    """Seconds until the next dial after each of `count` refusals."""
    found = []
    for _ in range(count):
        made.schedule_retry(100.0, jitter, detached=detached)
        assert made.retry_at is not None
        found.append(made.retry_at - 100.0)
        made.refusals += 1
    return found


def test_who_refuses_is_asked_ever_less_often() -> None:
    delays = retries(slot(), 10)
    assert delays[:4] == pytest.approx([RETRY_FIRST, 2 * RETRY_FIRST, 4 * RETRY_FIRST, 8 * RETRY_FIRST])
    assert delays[-1] == pytest.approx(MAX_RETRY)


def test_many_clients_do_not_come_back_in_step() -> None:
    (latest,), (earliest,) = retries(slot(), 1, jitter=1.0), retries(slot(), 1, jitter=0.0)
    assert earliest == pytest.approx((1 - RETRY_JITTER) * latest)


def test_while_nothing_is_left_nobody_is_left_in_peace_for_long() -> None:
    assert max(retries(slot(), 10, detached=True)) <= MAX_RETRY_DETACHED


def test_a_connection_that_ends_at_once_counts_as_a_refusal_and_a_longer_life_forgives_them() -> None:
    made = slot()
    now = 0.0
    for expected in (1, 2, 3):
        now = lived(made, SHORT_LIFE / 2, at=now)
        assert made.refusals == expected
    lived(made, SHORT_LIFE * 2, at=now)
    assert made.refusals == 0


def test_of_attempts_beside_one_another_the_oldest_stays_and_the_others_are_of_all_ages() -> None:
    waiting = slot()
    for number in range(40):
        while len(waiting.attempts) >= 5:
            del waiting.attempts[waiting.least_missed(number * 0.5)]
        waiting.attempts[ConnectionId(number)] = Attempt(candidate(), number * 0.5, Role.ACTIVE)
    ages = [19.5 - attempt.started for attempt in waiting.attempts.values()]
    assert ages[0] == 19.5
    assert ages[-2:] == [0.5, 0.0]
    assert ages[2] >= 1.0
    assert ages[1] >= 2.0


def test_an_attempt_that_nobody_answers_gets_another_beside_it_ever_more_rarely() -> None:
    made, beside, now = slot(), [], 0.0
    made.been_up = True
    made.attempts[ID] = attempt(made.candidates[0])
    made.unanswered_since = made.dialled_at = now
    while now < 3600.0:
        at = made.dial_again_at(detached=False)
        assert at is not None
        beside.append(at - now)
        now = made.dialled_at = at
    assert beside == pytest.approx(sorted(beside))
    assert beside[0] == pytest.approx(0.5)
    assert beside[-1] == pytest.approx(MAX_BESIDE)


def test_a_sign_that_it_may_work_again_is_followed_at_once_and_not_too_often() -> None:
    made = slot()
    made.refusals, made.retry_at = 8, 1000.0
    made.dial_soon(50.0)
    assert (made.retry_at, made.refusals) == (50.0, 0)
    made.dialled_at = 50.0
    made.attempts[ID] = attempt(made.candidates[0])
    made.dial_soon(50.0 + DIAL_APART / 2)
    assert made.retry_at == 50.0, "one is on its way"
    made.dial_soon(50.0 + 2 * DIAL_APART)
    assert made.retry_at == pytest.approx(50.0 + 2 * DIAL_APART)


# --- trial  ---


def trial_of(made: Slot, *, switch: bool) -> float:
    """Seconds until what fills the slot now carries the stream."""
    made.start_trial(1000.0, switch=switch)
    return 0.0 if made.trial_until is None else made.trial_until - 1000.0


@pytest.mark.parametrize(("switch", "longest"), [(False, MAX_TRIAL), (True, MAX_TRIAL_SWITCH)])
def test_what_comes_back_proves_itself_the_longer_the_more_often_it_was_lost(switch: bool, longest: float) -> None:
    made = slot()
    assert trial_of(made, switch=switch) == 0.0, "what was never lost carries at once"
    waits, now = [], 0.0
    for _ in range(12):
        now = lived(made, STABLE_AFTER / 4, at=now)
        waits.append(trial_of(made, switch=switch))
    assert waits == sorted(waits)
    assert waits[0] < waits[1]
    assert waits[-1] == pytest.approx(longest)


def test_a_long_life_makes_the_next_loss_a_first_one_again() -> None:
    made = slot()
    now = lived(made, 1.0)
    now = lived(made, 1.0, at=now)
    often = trial_of(made, switch=False)
    lived(made, STABLE_AFTER, at=now)
    assert 0 < trial_of(made, switch=False) < often
