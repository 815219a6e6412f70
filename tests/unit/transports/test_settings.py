"""Bounds of numbers, and what every transport may be told."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from multi.transports.settings import DAY, NOT_ALLOWED, Range, Section, TransportSection


class Oven(Section):
    """Something with bounds."""

    degrees: Annotated[float, Range(0.0, 250.0)] = 180.0
    trays: Annotated[int, Range(1, 4)] = 1


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"degrees": 250.5}, "a number from 0 to 250"),
        ({"degrees": "hot"}, "a number from 0 to 250"),
        ({"trays": 0}, "a whole number from 1 to 4"),
        ({"trays": 1.5}, "a whole number from 1 to 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_bounds(given: dict[str, object], allowed: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Oven.model_validate(given)
    (error,) = caught.value.errors()
    assert (error["type"], error["msg"]) == (NOT_ALLOWED, allowed)
    assert error["ctx"] == {"allowed": allowed}


def test_bounds_are_included_and_unknown_keys_are_not() -> None:
    assert Oven(degrees=250.0, trays=4) == Oven.model_validate({"degrees": 250, "trays": 4})
    with pytest.raises(ValidationError):
        Oven.model_validate({"timer": 1})
    assert TransportSection(idle_timeout=DAY).idle_timeout == DAY


def cellar() -> type[TransportSection]:
    class Cellar(TransportSection):
        """What a transport has, with texts of its own."""

        barrels: int = 1
        """How many
there are."""
        idle_timeout: Annotated[float, Range(0.0, DAY)] = 600.0
        key: str = Field("", description="Said in the field.")
        """Said below."""
        light: bool = False

    return Cellar


class Vault(TransportSection):
    """At the margin, and with what it has from its base."""

    keys: int = 2
    """How many."""


def described(section: type[Section]) -> dict[str, str | None]:
    return {name: key.get("description") for name, key in section.model_json_schema()["properties"].items()}


def test_the_schema_says_what_the_text_below_a_key_says() -> None:
    assert described(cellar()) == {
        "barrels": "How many\nthere are.",
        "idle_timeout": None,
        "key": "Said in the field.",
        "light": None,
    }
    texts = described(Vault)
    assert texts["keys"] == "How many."
    assert str(texts["idle_timeout"]).startswith("Seconds without receiving anything")


def test_a_section_without_source_has_no_texts() -> None:
    made: dict[str, Any] = {}
    exec('class Shed(TransportSection):\n    tools: int = 0\n    """How many."""', globals(), made)
    texts = described(made["Shed"])
    assert texts["tools"] is None
    assert texts["idle_timeout"] is not None
