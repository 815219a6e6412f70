"""Figures no link can have, and profiles in files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from multi.errors import MultiError
from multi.lab.testbed import Direction, LinkSpec, Testbed, TestbedError, builtin_profiles, load_profile, paper_links

GOOD = Direction(rate_mbps=100, delay_ms=10)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"rate_mbps": 0}, "rate_mbps: 0 is outside"),
        ({"rate_mbps": -5}, "rate_mbps: -5 is outside"),
        ({"rate_mbps": math.nan}, "rate_mbps: nan is no finite number"),
        ({"rate_mbps": math.inf}, "rate_mbps: inf is no finite number"),
        ({"rate_mbps": 10**400}, "is no finite number"),
        ({"rate_mbps": True}, "rate_mbps: True is no finite number"),
        ({"delay_ms": -1}, "delay_ms: -1 is outside"),
        ({"delay_ms": 1, "jitter_ms": 2}, "jitter_ms: 2 is more than delay_ms"),
        ({"loss": 1.5}, "loss: 1.5 is outside 0 to 1"),
        ({"loss": -0.1}, "loss: -0.1 is outside 0 to 1"),
        ({"queue_ms": -1}, "queue_ms: -1 is outside"),
        ({"queue_bytes": -1}, "queue_bytes: -1 is no number of bytes"),
    ],
)
def test_impossible_figures_are_refused_in_words(figures: dict[str, Any], words: str) -> None:
    with pytest.raises(TestbedError) as caught:
        Direction(**({"rate_mbps": 100.0, "delay_ms": 10.0} | figures))
    assert words in str(caught.value)
    assert isinstance(caught.value, MultiError)


@pytest.mark.parametrize("name", ["", "a/b", "much-too-long-a-name", "-x", "é", "a b"])
def test_names_the_kernel_would_not_take_are_refused(name: str) -> None:
    with pytest.raises(TestbedError, match="is no name"):
        LinkSpec.symmetric(name, "eth0", GOOD)
    with pytest.raises(TestbedError, match="is no name"):
        LinkSpec.symmetric("wire", name, GOOD)


def test_links_that_share_a_name_or_an_interface_are_refused() -> None:
    with pytest.raises(TestbedError, match="two links have the name 'a'"):
        Testbed([LinkSpec.symmetric("a", "eth0", GOOD), LinkSpec.symmetric("a", "eth1", GOOD)])
    with pytest.raises(TestbedError, match="two links have the interface 'eth0'"):
        Testbed([LinkSpec.symmetric("a", "eth0", GOOD), LinkSpec.symmetric("b", "eth0", GOOD)])
    with pytest.raises(TestbedError, match="1 to 100 links"):
        Testbed([])


def test_the_paper_has_ethernet_wifi_and_5g() -> None:
    assert [(s.interface, s.kind, s.down.rate_mbps, s.up.rate_mbps, s.down.delay_ms * 2) for s in paper_links()] == [
        ("eth0", "eth", 940, 940, 0.25),
        ("wlan0", "wifi", 200, 200, 1.8),
        ("wwan0", "cellular", 190, 35, 46),
    ]
    assert [s.down.queue_ms for s in paper_links()] == [20, 50, 100]


def test_every_profile_that_comes_along_loads() -> None:
    assert "paper" in builtin_profiles()
    assert all(load_profile(name) for name in builtin_profiles())


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ([], "a profile is an object"),
        ({"link": {}}, "a profile is an object with nothing but `links`"),
        ({"links": {}}, "1 to 100 links"),
        ({"links": {"w": {"interface": "w0"}}}, "links.w: missing 2 required"),
        (
            {"links": {"w": {"both": {"rate_mbps": 1, "delay_ms": 1}}}},
            "links.w: missing 1 required positional argument",
        ),
        (
            {"links": {"w": {"interface": "w0", "both": {"rate_mbps": 1}}}},
            "links.w.down: missing 1 required positional argument",
        ),
        (
            {"links": {"w": {"interface": "w0", "both": {"rate_mbps": "1", "delay_ms": 1}}}},
            "links.w.down: rate_mbps: '1' is no finite number",
        ),
        (
            {"links": {"w": {"interface": "w0", "both": {"rate": 1}}}},
            "links.w.down: got an unexpected",
        ),
        ({"links": {"w": {"interface": "w0", "both": 5}}}, "links.w.down: an object is wanted, not int"),
        (
            {"links": {"w": {"interface": "w0", "kind": "lte", "both": {"rate_mbps": 1, "delay_ms": 1}}}},
            "'lte' is unknown",
        ),
    ],
)
def test_a_bad_profile_is_refused_where_it_is_bad(profile: object, words: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile))
    with pytest.raises(TestbedError) as caught:
        load_profile(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_profile_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(TestbedError, match=r"no such profile.*paper"):
        load_profile("papre")
