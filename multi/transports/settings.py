"""The base of the sections of a configuration, and of those that transports bring.

The settings of a transport are declared once, as a `TransportSection` beside its code: that class is the section
`<name>_config` of the configuration, with its checks, its JSON Schema and its documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

DAY = 86_400.0  # seconds; the longest time-out that makes sense for one connection
NOT_ALLOWED = "not_allowed"
"""Type of a validation error that says itself what is allowed (`ctx["allowed"]`)."""


class Section(BaseModel):
    """Base of every part of a configuration: no unknown keys, no conversions, no changes after loading."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,  # most sections are only checked as parts of a `Config`
    )


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both included. Whatever does not fit is refused with both of them."""

    low: float
    high: float

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        number: Any = {**handler(source), "ge": self.low, "le": self.high}
        kind = "a whole number" if number["type"] == "int" else "a number"
        low, high = (int(bound) if bound == int(bound) else bound for bound in (self.low, self.high))
        return core_schema.custom_error_schema(
            number,
            NOT_ALLOWED,
            custom_error_message="{allowed}",
            custom_error_context={"allowed": f"{kind} from {low} to {high}"},
        )


class TransportSection(Section):
    """What every transport has in its section of the configuration."""

    def cannot_ask_clients(self) -> Iterator[tuple[str, str]]:
        """Keys, each with a message, that keep a server from asking clients for certificates."""
        yield from ()

    idle_timeout: Annotated[float, Range(0.0, DAY)] = 60.0
    """Seconds without receiving anything after which a connection is given up; 0 = never for that reason
    alone. Keep-alives go every min(15 s, a third of it). Default 60: four keep-alives in a row were lost."""
