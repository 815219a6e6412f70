"""The base of the sections of a configuration, and of those that transports bring.

The settings of a transport are declared once, as a `TransportSection` beside its code: that class is the section
`<name>_config` of the configuration, with its checks, its JSON Schema and its documentation.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
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
        defer_build=True,  # most sections are only checked as parts of a `Config`
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """With what the texts below the keys say. pydantic would read the source of each section for them with every
        import, which then took a fifth longer."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        texts = _texts(cls)
        for name in properties.keys() & texts:
            properties[name].setdefault("description", texts[name])
        return schema


def _texts(section: type[Section]) -> dict[str, str]:
    """By the names of its keys, those that have one; none where there is no source to read."""
    texts: dict[str, str] = {}
    for base in section.__mro__:
        if issubclass(base, Section):
            for key, text in pairwise([*_statements(base), None]):
                match key, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                        texts.setdefault(name, inspect.cleandoc(said))
                    case ast.AnnAssign(target=ast.Name(id=name)), _:
                        texts.setdefault(name, "")  # that of another class would be about another default
    return {name: text for name, text in texts.items() if text}


def _statements(section: type[Section]) -> list[ast.stmt]:
    """Of its class, as far as they can be read."""
    try:
        source = inspect.getsource(section)
        read = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
    except (OSError, TypeError, SyntaxError):  # an installation without sources, a class made by a program
        return []
    # Python 3.13 reads at the line of a class in the file of its module, whatever has made the class.
    classes = (each for each in ast.walk(read) if isinstance(each, ast.ClassDef) and each.name == section.__name__)
    return next((each.body for each in classes), [])


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
