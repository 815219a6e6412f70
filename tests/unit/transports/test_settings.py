"""Bounds of numbers, and what every transport may be told."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import ValidationError

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
