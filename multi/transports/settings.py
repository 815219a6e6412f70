"""What the configuration tells transports: the base of their sections, and what all of them share.

The settings of a transport are declared once, as a `TransportSection` beside its code: that class is the section
`<name>_config` of the configuration, with its checks, its JSON Schema and its documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from multi.transports.half_open import HalfOpenConnections

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

    idle_timeout: Annotated[float, Range(0.0, DAY)] = 60.0
    """Seconds without receiving anything after which a connection is given up; 0 = never for that reason
    alone. Keep-alives go every min(15 s, a third of it). Default 60: four keep-alives in a row were lost."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """`ssl_config`, with file names already resolved against the config file's directory."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    verify: bool = True
    server_name: str = ""
    client_ca: Path | None = None
    pins: tuple[str, ...] = ()
    """`sha256/BASE64`; the peer's certificate must have one of these keys (`multi.transports.certificates`)."""


@dataclass(frozen=True, slots=True)
class ListenGuard:
    """What listeners bound, and whom they tell when a bound is reached."""

    handshake_timeout: float = 10.0
    """Seconds from accepting a connection until TLS or QUIC must be done."""
    strangers: HalfOpenConnections = field(default_factory=HalfOpenConnections)
    """Every connection whose peer has not proved anything yet."""
    report: Callable[[str, str], None] = lambda limit, source: None
    """Called with the name of a limit and the source that reached it."""


S = TypeVar("S", bound=TransportSection)


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Everything a transport may be told by the configuration."""

    sections: Mapping[str, TransportSection] = field(default_factory=dict)
    """By name of the transport; see `section`."""
    tls: TlsSettings | None = None
    guard: ListenGuard = field(default_factory=ListenGuard, compare=False)
    """Listeners only; those of one server share it."""

    def section(self, name: str, kind: type[S]) -> S:
        """What the transport `name` is told, in the class it was registered with; the defaults when nothing is said."""
        given = self.sections.get(name)
        if given is None:
            return kind()
        if not isinstance(given, kind):
            raise TypeError(f"found {type(given).__name__} for the transport {name!r}; allowed: {kind.__name__}")
        return given
