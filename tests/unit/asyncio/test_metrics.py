"""Metrics as text: names, kinds and labels, whatever stands in the snapshot."""

from __future__ import annotations

import multi
from multi.asyncio.metrics import exposition, metric_families

STATS = multi.ServerStats(
    sessions={"open": 3},
    sessions_opened=5,
    sessions_ended={"CLOSED": 2},
    limits_hit={"max_sessions": 1},
    transports={"tcp": multi.TransportStats(connections={"active": 4}, bytes_sent=10, reinjected=1)},
)


def test_counters_end_with_total_and_each_metric_is_told_once() -> None:
    families = list(metric_families(STATS))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.name.startswith("multi_")
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert family.help.endswith(".")


def test_labels_have_few_values() -> None:
    named = {name for family in metric_families(STATS) for labels, _ in family.samples for name in labels}
    assert named == {"state", "cause", "limit", "transport"}


def test_states_without_a_session_are_zero_and_not_missing() -> None:
    (sessions,) = [family for family in metric_families(STATS) if family.name == "multi_sessions"]
    values = {labels["state"]: value for labels, value in sessions.samples}
    assert values["open"] == 3
    assert values["detached"] == values["opening"] == 0
    assert "closed" not in values


def test_each_metric_has_its_help_its_kind_and_its_values() -> None:
    lines = exposition(STATS).splitlines()
    at = lines.index('multi_sent_payload_bytes_total{transport="tcp"} 10')
    assert lines[at - 2 : at] == [
        "# HELP multi_sent_payload_bytes_total Payload sent, repeats included.",
        "# TYPE multi_sent_payload_bytes_total counter",
    ]
    assert 'multi_connections{transport="tcp",state="active"} 4' in lines


def test_labels_are_escaped() -> None:
    odd = multi.ServerStats(limits_hit={'a"b\\c\nd': 1})
    assert 'multi_limit_hits_total{limit="a\\"b\\\\c\\nd"} 1' in exposition(odd)
