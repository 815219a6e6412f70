"""Pydantic's errors in our words: key path as written in the file, what was found, what is allowed.

What is allowed is read from the JSON Schema, so that messages and schema cannot disagree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from multi.config.entry import TRIPLE
from multi.config.findings import Finding, KeyPath, did_you_mean, error_of, shown
from multi.errors import ConfigError

__all__ = ["as_written", "explain"]

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""


def explain(error: ValidationError, written: object, schema: Schema) -> ConfigError:
    """Turn `error`, raised for the value `written` of a type with the JSON Schema `schema`, into one
    ConfigError."""
    problems = error.errors(include_url=False)
    locations = [problem["loc"] for problem in problems]
    findings = []
    for problem, location in zip(problems, locations, strict=True):
        if problem["type"] == "too_short" and any(_is_inside(other, location) for other in locations):
            continue  # pydantic counts valid elements only; the elements themselves are reported
        message = _message(problem["type"], problem["input"], problem.get("ctx", {}), location, schema)
        findings.append(Finding(location, message))
    return error_of(as_written(findings, written))


def as_written(findings: Sequence[Finding], written: object) -> list[Finding]:
    """The same findings with the places they have in the file, each once."""
    return list(dict.fromkeys(Finding(_written_place(one.location, written), one.message) for one in findings))


def _is_inside(location: KeyPath, outer: KeyPath) -> bool:
    return len(location) > len(outer) and location[: len(outer)] == outer


def _message(error_type: str, found: object, context: Mapping[str, Any], location: KeyPath, schema: Schema) -> str:
    match error_type:
        case "refused":
            return str(context["message"])
        case "extra_forbidden":
            keys = sorted(_keys(location[:-1], schema))
            return f"unknown key; allowed: {', '.join(keys)}{did_you_mean(str(location[-1]), keys)}"
        case "missing":
            return f"missing; allowed: {_allowed(_part(location, schema), schema)}"
        case "string_unicode":
            return "found text that is no valid Unicode (a lone surrogate); allowed: Unicode text"
        case "invalid_key":
            return "found a key that is no text; allowed: text"
        case _:
            part = _part(location, schema)
            guess = did_you_mean(found, _names(part, schema)) if isinstance(found, str) else ""
            return f"found {shown(found)}; allowed: {_allowed(part, schema)}{guess}"


def _written_place(location: KeyPath, written: object) -> KeyPath:
    """The place in the file: a triple has positions instead of keys, a short form has nothing inside."""
    path: list[str | int] = []
    value = written
    for step in location:
        if isinstance(value, list | tuple):
            index = TRIPLE.index(step) if isinstance(step, str) and step in TRIPLE else step
            path.append(index)
            value = value[index] if isinstance(index, int) and index < len(value) else None
        elif isinstance(value, Mapping):
            path.append(step)
            value = value.get(step)
        elif isinstance(value, str):
            break
        else:
            path.append(step)
    return tuple(path)


def _alternatives(part: Schema, schema: Schema) -> Iterator[Schema]:
    """The schemas `part` stands for, references followed, `null` left out: it only means "not given"."""
    if "$ref" in part:
        target = schema
        for step in part["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        yield from _alternatives(target, schema)
    elif "anyOf" in part:
        for alternative in part["anyOf"]:
            yield from _alternatives(alternative, schema)
    elif part.get("type") != "null":
        yield part


def _part(location: KeyPath, schema: Schema) -> Schema:
    """The schema that applies at `location`."""
    part = schema
    for step in location:
        part = next(_inside(part, step, schema), {})
    return part


def _inside(part: Schema, step: str | int, schema: Schema) -> Iterator[Schema]:
    for alternative in _alternatives(part, schema):
        if isinstance(step, int) and "items" in alternative:
            yield alternative["items"]
        elif step in alternative.get("properties", ()):
            yield alternative["properties"][step]
        elif isinstance(alternative.get("additionalProperties"), Mapping):
            yield alternative["additionalProperties"]


def _keys(location: KeyPath, schema: Schema) -> list[str]:
    objects = _alternatives(_part(location, schema), schema)
    return [key for part in objects for key in part.get("properties", ())]


def _names(part: Schema, schema: Schema) -> list[str]:
    return [name for one in _alternatives(part, schema) for name in one.get("enum", ())]


def _allowed(part: Schema, schema: Schema) -> str:
    """What a schema allows, in words."""
    phrases = dict.fromkeys(_phrase(one, schema) for one in _alternatives(part, schema))
    return " or ".join(phrases) or "nothing here"


def _phrase(part: Schema, schema: Schema) -> str:
    if "enum" in part or "const" in part:
        return ", ".join(json.dumps(name) for name in part.get("enum", [part.get("const")]))
    match part.get("type"):
        case "boolean":
            return "true, false"
        case "integer":
            return f"a whole number{_range(part)}"
        case "number":
            return f"a number{_range(part)}"
        case "string":
            return _text_phrase(part)
        case "array" if "prefixItems" in part:
            return f"a list [{', '.join(TRIPLE)}]"
        case "array":
            return _list_phrase(part, schema)
        case "object":
            more = " and parameters" if isinstance(part.get("additionalProperties"), Mapping) else ""
            return f"an object with the keys {', '.join(part.get('properties', ()))}{more}"
        case _:
            return "any value"


def _range(part: Schema) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    return ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _text_phrase(part: Schema) -> str:
    characters = re.fullmatch(r"\^\[(.*)\]\*\$", part.get("pattern", ""))
    limit = f"at most {part['maxLength']} characters" if "maxLength" in part else ""
    if part.get("minLength"):
        limit = limit.replace("at most", "1 to")
    if "examples" in part:
        return f"text such as {', '.join(json.dumps(example) for example in part['examples'])}"
    allowed = f" of letters, digits, - and _, {limit}" if characters else f" of {limit}" if limit else ""
    return f"text{allowed}"


def _list_phrase(part: Schema, schema: Schema) -> str:
    limit = f" of at most {part['maxItems']}" if "maxItems" in part else ""
    if part.get("minItems"):
        limit = limit.replace("at most", "1 to")
    return f"a list{limit}, each {_allowed(part['items'], schema)}"
