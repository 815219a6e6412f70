"""How a wrong configuration is put into words: key path, what was found, what is allowed, "did you mean".

Decides the wording only, from what pydantic says of a mistake; `multi.config.model` decides what is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from multi.errors import ConfigError, closest
from multi.transports.settings import NOT_ALLOWED

KeyPath = tuple[str | int, ...]

TRIPLE = ("transport", "ip", "interface")
"""Meaning of the three places of an entry written as a list."""

MAX_SHOWN = 60  # characters of a found value that are repeated in a message: enough to recognise it
MAX_FINDINGS = 100  # lines in one message; a generated file can hold any number of mistakes
HUGE = 10**18  # longer numbers are not printed: CPython refuses to print integers of more than 4300 digits

NOT_ONE_OF = "not_one_of"
SECRET = "secret"
REPEATED = object()
"""Stands in an object for the value of a key that was written more than once."""
ALLOWED = {
    NOT_ALLOWED: "{allowed}",
    "value_error": "{error}",
    "bool_type": "true, false",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_unicode": "Unicode text, without lone surrogates",
    "string_too_short": "text with a length of at least {min_length}",
    "string_too_long": "text of at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "tuple_type": "a list",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "invalid_key": "keys that are text",
}
"""What is allowed, by type of pydantic's error. Others are quoted as pydantic words them."""

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: where it is and what is said about it."""

    location: KeyPath
    message: str

    def __str__(self) -> str:
        path = path_text(self.location)
        return f"{path}: {self.message}" if path else self.message


def error_of(findings: Sequence[Finding]) -> ConfigError:
    """All findings as one error, a line each; the first gives its `key_path`."""
    first, *rest = findings
    lines = [first.message, *(str(finding) for finding in rest[: MAX_FINDINGS - 1])]
    if len(findings) > MAX_FINDINGS:
        lines.append(f"... and {len(findings) - MAX_FINDINGS} more")
    return ConfigError("\n".join(lines), path_text(first.location))


def not_one_of(options: Iterable[str], *, further: str = "") -> PydanticCustomError:
    """What a validator raises for a name it does not know. `further` names what else would be allowed."""
    return PydanticCustomError(NOT_ONE_OF, "unknown name", {"options": list(options), "further": further})


def secret(allowed: str) -> PydanticCustomError:
    """What a validator raises for a value that no message may repeat."""
    return PydanticCustomError(SECRET, "not shown", {"allowed": allowed})


def explain(error: ValidationError, written: object, model: type[BaseModel]) -> ConfigError:
    """All that pydantic found wrong with `written`, read as a `model`, as one ConfigError."""
    problems = error.errors(include_url=False)
    problems = [problem for problem in problems if problem["input"] is REPEATED] or problems
    nested = {problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))}
    findings = [
        Finding(problem["loc"], _message(problem, model))
        for problem in problems
        # Pydantic counts only valid elements; the invalid ones are reported themselves.
        if not (problem["type"] == "too_short" and problem["loc"] in nested)
    ]
    return error_of(as_written(findings, written))


def as_written(findings: Sequence[Finding], written: object) -> list[Finding]:
    """The same findings with the places they have in the file, each once."""
    return list(dict.fromkeys(Finding(_written_place(one.location, written), one.message) for one in findings))


def _message(problem: ErrorDetails, model: type[BaseModel]) -> str:
    kind, location, context = problem["type"], problem["loc"], problem.get("ctx", {})
    found, options = problem["input"], list(context.get("options", ()))
    if found is REPEATED:
        return "found twice in the same object; allowed: once"
    match kind:
        case "extra_forbidden":
            options = sorted(_section_at(location[:-1], model).model_fields)
            return f"unknown key; allowed: {', '.join(options)}{_did_you_mean(str(location[-1]), options)}"
        case "missing":
            fields = _section_at(location[:-1], model).model_fields
            return f"missing; allowed: an object with {', '.join(k for k, f in fields.items() if f.is_required())}"
        case "secret":
            return f"found something else (not shown, it may be a key); allowed: {context['allowed']}"
        case "model_type":
            keys = ", ".join(_section_at(location, model).model_fields)
            return f"found {shown(found)}; allowed: an object with the keys {keys}"
        case "literal_error":
            options = re.findall("'([^']*)'", context["expected"])
    if options:
        allowed = ", ".join(json.dumps(option) for option in options) + context.get("further", "")
        return f"found {shown(found)}; allowed: {allowed}{_did_you_mean(found, options)}"
    allowed = ALLOWED[kind].format_map(context) if kind in ALLOWED else problem["msg"].removeprefix("Input should ")
    return f"found {shown(found)}; allowed: {allowed}"


def _section_at(location: KeyPath, model: type[BaseModel]) -> type[BaseModel]:
    """The class of the section at `location`."""
    for step in location:
        if isinstance(step, str) and step in model.model_fields:
            declared = model.model_fields[step].annotation
            inside = (declared, *get_args(declared))  # itself, an element of a tuple, or one or None
            model = next((one for one in inside if isinstance(one, type) and issubclass(one, BaseModel)), model)
    return model


def _written_place(location: KeyPath, written: object) -> KeyPath:
    """The place in the file: a triple has positions instead of keys, a short form has nothing inside."""
    path: list[str | int] = []
    value = written
    for step in location:
        if isinstance(value, list | tuple):
            index = TRIPLE.index(step) if isinstance(step, str) and step in TRIPLE else step
            path.append(index)
            value = value[index] if isinstance(index, int) and index < len(value) else None
        elif isinstance(value, dict):
            path.append(step)
            value = value.get(step)
        elif isinstance(value, str):
            break
        else:
            path.append(step)
    return tuple(path)


def _did_you_mean(word: object, options: Iterable[str]) -> str:
    guess = closest(word, options) if isinstance(word, str) else ""
    return f'; did you mean "{guess}"?' if guess else ""


def shown(value: object) -> str:
    """A found value as it would be written in JSON, shortened; never fails, whatever the value."""
    match value:
        case None | True | False:
            return json.dumps(value)
        case int() if abs(value) > HUGE:
            return "a number with more than 18 digits"
        case int() | float():
            return json.dumps(value)
        case str():
            return _quoted(value)
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def path_text(path: KeyPath) -> str:
    """`("connection_priority", 1, "role")` as `connection_priority[1].role`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part) and len(part) <= MAX_SHOWN:
            text += f".{part}" if text else part
        else:
            text += f"[{_quoted(part)}]"
    return text


def _quoted(text: str) -> str:
    shortened = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
    return json.dumps(shortened, ensure_ascii=not shortened.isprintable())
