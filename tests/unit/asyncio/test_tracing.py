"""Traces: how often figures are looked at, and that the documents name all that can stand in one."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from multi import ConnectionChanged, ConnectionInfo, Event, SessionStats
from multi.asyncio.tracing import FACTS, OF_CONNECTION, OF_SESSION, SAMPLE, SCHEMA, event_name, sample_interval
from multi.types import ConnectionFacts

PAGE = (Path(__file__).parents[3] / "docs" / "tracing.md").read_text()
OWN = {"session_started", "session_sampled", "connection_sampled", "session_ended", "trace_full"}
ROWS = dict(re.findall(r"^\| `multi:(\w+)` \| (.*?) ?\|$", PAGE, re.MULTILINE))


def test_every_record_has_a_row_in_the_documents() -> None:
    events = {event_name(event) for event in get_args(Event)}
    assert set(ROWS) == events | OWN
    assert SCHEMA in PAGE


@pytest.mark.parametrize("event", get_args(Event), ids=event_name)
def test_the_row_of_an_event_names_its_fields(event: type) -> None:
    if event_name(event) == "session_ended":
        return  # it has the reason of the session, however that has ended
    named = set(re.findall(r"`(\w+)`", ROWS[event_name(event)])) - {"path", "cause"}
    own = {each.name for each in fields(event)} - {"connection", "facts"}
    assert named == own | (set(FACTS) if event is ConnectionChanged else set())


def test_figures_are_those_of_the_snapshot_and_stand_in_the_documents() -> None:
    assert {each.name for each in fields(ConnectionInfo)} >= {*OF_CONNECTION, *FACTS}
    assert {each.name for each in fields(SessionStats)} >= set(OF_SESSION)
    assert {each.name for each in fields(ConnectionFacts)} >= set(FACTS)
    prose = re.sub(r"\s+", " ", PAGE.partition("Figures are those of")[2])
    assert set(re.findall(r"`(\w+)`", prose.partition("Those that have not changed")[0])) == {
        *OF_SESSION,
        *OF_CONNECTION,
    }


def test_looks_become_rarer_as_the_file_fills_and_with_many_sessions() -> None:
    assert [sample_interval(size, 1024, 1) / SAMPLE for size in (0, 511, 512, 768, 896)] == [1, 1, 2, 4, 8]
    assert sample_interval(1024, 1024, 1) > 1000, "a file that is full costs nothing more"
    assert sample_interval(0, 1024, 1000) == 2.0
