"""How a wrong configuration is put into words: key path, what was found, what is allowed, "did you mean".

Decides the wording only. Which values are wrong is decided by `fields`, `entry`, `sections` and `checks`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from multi.errors import ConfigError

__all__ = [
    "Finding",
    "KeyPath",
    "closest",
    "did_you_mean",
    "error_of",
    "one_of",
    "path_text",
    "refusal",
    "shown",
]

KeyPath = tuple[str | int, ...]

REFUSAL = "refused"
"""Error type of `refusal`: its message is already complete."""

MAX_SHOWN = 60  # characters of a found value that are repeated in a message: enough to recognise it
MAX_SUGGESTED = 64  # characters; longer words are not compared, difflib takes quadratic time
MAX_FINDINGS = 100  # lines in one message; a generated file can hold any number of mistakes
HUGE = 10**18  # longer numbers are not printed: CPython refuses to print integers of more than 4300 digits

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: where it is and what is said about it."""

    location: KeyPath
    message: str

    @property
    def key_path(self) -> str:
        return path_text(self.location)

    def __str__(self) -> str:
        return f"{self.key_path}: {self.message}" if self.key_path else self.message


def error_of(findings: Sequence[Finding]) -> ConfigError:
    """All findings as one error, a line each; the first gives its `key_path`."""
    first, *rest = findings
    lines = [first.message, *(str(finding) for finding in rest[: MAX_FINDINGS - 1])]
    if len(findings) > MAX_FINDINGS:
        lines.append(f"... and {len(findings) - MAX_FINDINGS} more")
    return ConfigError("\n".join(lines), first.key_path)


def refusal(message: str) -> PydanticCustomError:
    """The exception a validator raises when it has worded the whole message itself."""
    return PydanticCustomError(REFUSAL, "{message}", {"message": message})


def one_of(found: str, allowed: Iterable[str], *, further: str = "") -> str:
    """Message for a name that is not among the allowed ones. `further` names what else would be allowed."""
    names = list(allowed)
    listed = ", ".join(json.dumps(name) for name in names)
    return f"found {shown(found)}; allowed: {listed}{further}{did_you_mean(found, names)}"


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing when no option is close."""
    guess = closest(word, options)
    return f'; did you mean "{guess}"?' if guess else ""


def closest(word: str, options: Iterable[str], cutoff: float = 0.6) -> str:
    """The option a person most likely meant by `word`, or empty. Case and abbreviation are forgiven."""
    if len(word) > MAX_SUGGESTED:
        return ""
    folded = {option.casefold(): option for option in options}
    wanted = word.casefold()
    if wanted in folded:
        return folded[wanted]
    close = difflib.get_close_matches(wanted, folded, n=1, cutoff=cutoff)
    if close:
        return folded[close[0]]
    shortened = [
        o for o in folded if len(o) >= 3 and len(wanted) >= 3 and (wanted.startswith(o) or o.startswith(wanted))
    ]
    return folded[shortened[0]] if len(shortened) == 1 else ""


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
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


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
