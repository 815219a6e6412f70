"""Configurations from files and dicts, and files with pre-shared keys: accepted, or a ConfigError one can read."""

from __future__ import annotations

import atexit
import json
import math
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from multi.config import (
    Config,
    checks,
    errors,
    json_schema,
    keys,
    load_config,
    load_entry,
    loading,
    model,
)
from multi.config.keys import MAX_ID, MIN_KEY, load_keys
from multi.errors import ConfigError
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check

MODULES = (checks, errors, loading, model)
_DIRECTORY = tempfile.TemporaryDirectory(prefix="multi-fuzz-")
atexit.register(_DIRECTORY.cleanup)

_EXAMPLES = [
    (path.read_bytes(), json.loads(path.read_bytes()))
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.json"))
]


def _judge(config: Config) -> None:
    """What is accepted can be used, and says the same when it is written and read again."""
    config.warnings()
    config.transport_settings()
    check(len(config.session_id_bytes(bytes)) == 16, "a Session ID that is not 16 bytes")
    for one in config.connection_priority:
        config.remote_of(one)
    written = config.model_dump(mode="json", exclude_unset=True)
    check(
        load_config(json.loads(json.dumps(written))).located_in(config.resolve("")) == config,
        "another configuration when written and read again",
    )


def _load(config: str | Mapping[str, Any]) -> None:
    try:
        loaded = load_config(config)
    except ConfigError as error:
        text = str(error)
        # Names of files are the caller's; what was found in them is printed on terminals.
        check(all(line.isprintable() for line in text.split("\n")), "a message with control characters")
        text.encode()
        return
    _judge(loaded)


def run_text(data: bytes) -> None:
    path = Path(_DIRECTORY.name) / "config.json"
    path.write_bytes(data)
    _load(str(path))


# --- values of the right shape, with absurd contents  ---

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 65_535, 65_536, 10**18, 10**5000, 0.0, 0.5, -0.0, math.nan, math.inf, 1e308),
    *(
        "",
        " ",
        "a",
        "x" * 300,
        "\0",
        "\x1b[31m",
        "\ud800",
        "\u00e4\u202e",
        "any",
        "wifi",
        "tcp",
        "quic",
        "random",
        "1.2.3.4",
    ),
    *("::1%eth0", "fe80::1", "a.b", "-", "xn--a", "..", "127.1", "0x7f.1", "\u2488", "\u0660"),
    *([], {}, (), [[]], [None], {"": 0}, {"a": {}}, b"bytes", {1, 2}, object, range(3), 1j),
)


class _Shape:
    """Values for a JSON Schema: mostly what it asks for."""

    def __init__(self, choices: Choices, definitions: dict[str, Any]) -> None:
        self._choices = choices
        self._definitions = definitions

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        choices = self._choices
        if choices.chance(12) or depth > 8:
            return choices.pick(ODD)
        if "$ref" in schema:
            return self.value(self._resolved(schema["$ref"]), depth + 1)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema and "properties" not in schema:
                return self.value(choices.pick(schema[several]), depth + 1)
        if "enum" in schema:
            return choices.pick(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "properties" in schema:
            return self._object(schema, depth)
        match schema.get("type"):
            case "array":
                places = schema.get("prefixItems")
                wanted = places or [schema.get("items", {})] * choices.below(4)
                return [self.value(place, depth + 1) for place in wanted]
            case "integer":
                return choices.edge(schema.get("minimum", 0), schema.get("maximum", 0) % (1 << 64))
            case "number":
                return choices.pick((schema.get("minimum", 0), schema.get("maximum", 1), 0.5, choices.edge() / 1000))
            case "boolean":
                return choices.chance(2)
            case "string":
                return choices.pick((*schema.get("examples", ()), choices.some().decode("latin-1"), "name"))
            case "object":
                return {choices.pick(("a", "alpha", "")): self.value({}, depth + 1) for _ in range(choices.below(3))}
            case _:
                return choices.pick(ODD)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name, field in schema["properties"].items():
            wanted = name in schema.get("required", ()) or self._choices.chance(4)
            if wanted and not self._choices.chance(32):
                found[name] = self.value(field, depth + 1)
        if self._choices.chance(24):
            found[self._choices.pick(("unknown", "conection_priority", "", "\x1b", 7, None))] = 1
        return found

    def _resolved(self, reference: str) -> dict[str, Any]:
        place: Any = {"$defs": self._definitions}
        root = _SCHEMA
        for part in reference.removeprefix("#/").split("/"):
            place = (place if part in place else root)[part]
        return place  # type: ignore[no-any-return]


_SCHEMA = json_schema()


def run_dict(data: bytes) -> None:
    choices = Choices(data)
    shape = _Shape(choices, _SCHEMA["$defs"])
    if choices.chance(4):
        try:
            load_entry(shape.value(_SCHEMA["properties"]["connection_priority"]["items"]))
        except ConfigError as error:
            str(error).encode()
        return
    found = shape._object(_SCHEMA, 0)
    if not choices.chance(4):
        _, base = choices.pick(_EXAMPLES)
        other = "connection_priority" if "listen" in base else "listen"
        kept = dict(list(found.items())[: choices.pick((0, 1, 1, 2, 20))])
        found = {**base, **{key: value for key, value in kept.items() if key != other}}
    _load(found)


_VARIABLE = "MULTI_FUZZ_KEYS"


@cache
def _config_with(place: str, name: str) -> Config:
    return load_config({"listen": {"transports": ["tcp"]}, "auth": {place: name}})


def run_keys(data: bytes) -> None:
    """The same bytes as a file and, where it can hold them, as an environment variable."""
    path = Path(_DIRECTORY.name) / "keys"
    if not path.exists():
        path.touch(mode=0o600)
    path.write_bytes(data)
    _judge_keys(_config_with("psk_file", str(path)), "auth.psk_file")
    if b"\0" not in data:
        with patch.dict(os.environ, {_VARIABLE: os.fsdecode(data)}):
            _judge_keys(_config_with("psk_env", _VARIABLE), "auth.psk_env")


def _judge_keys(config: Config, key_path: str) -> None:
    try:
        found = load_keys(config)
    except ConfigError as error:
        check(error.key_path == key_path, "an error that does not say where")
        check(str(error).isprintable(), "a message with control characters")
        return
    check(bool(found), "no key and no complaint")
    for name, key in found.items():
        check(0 < len(name) <= MAX_ID and len(key) >= MIN_KEY, "a name or key of a length that is refused")


def _text_seeds() -> list[bytes]:
    return [*(text for text, _ in _EXAMPLES), b"\xef\xbb\xbf{}", b"[" * 3000, b'{"listen": {}, "listen": 1e999}']


WORDS = (
    *(json.dumps(word).encode() for word in _SCHEMA["properties"]),
    *(b"null", b"true", b"1e999", b"-0", b"NaN", b"[[", b"{}", b'"\\ud800"', b'"\\u0000"', b"9" * 100, b'"a":'),
)

TARGETS = (
    Target(
        "config-text",
        run_text,
        _text_seeds,
        MODULES,
        short=300,
        weight=2,
        longest=4000,
        memory_base=4 << 20,
        words=WORDS,
    ),
    Target(
        "config-dict",
        run_dict,
        lambda: [bytes((n * i) % 251 for i in range(300)) for n in range(1, 12)],
        MODULES,
        short=300,
        weight=3,
        longest=500,
        memory_base=8 << 20,  # messages quote names of up to 64 characters and up to 100 mistakes
        memory_factor=4096,
    ),
    Target(
        "key-file",
        run_keys,
        lambda: [
            b"id:" + b"ab" * 16 + b"\n# comment\n\nother:" + b"00" * 32,
            b"a b:" + b" 0a" * 16,
            "\u2028:aa".encode(),
        ],
        (keys,),
        short=300,
        longest=400,
        words=(b"00" * 16, b":", b"\r\n", b"\xc2\x85", b"\0", b"#", b"\xef\xbb\xbf"),
    ),
)
