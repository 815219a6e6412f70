"""Reading a configuration: a JSON file, a dict or a ready `Config` becomes a validated `Config`.

Opens the configuration file and no other. Everything that can be wrong with it is a ConfigError.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multi.config.entry import Entry
from multi.config.explain import explain
from multi.config.findings import Finding, KeyPath, error_of, shown
from multi.config.models import Config
from multi.config.schema import json_schema
from multi.errors import ConfigError

__all__ = ["load_config", "load_entry"]

MAX_FILE_SIZE = 1 << 20  # bytes; the largest sensible configuration has a few KiB, a device or log file has no end

logger = logging.getLogger("multi.config")


def load_config(config: str | os.PathLike[str] | Mapping[str, Any] | Config) -> Config:
    """Return the configuration in a JSON file, in a mapping of the same shape, or `config` itself.

    Raises ConfigError: its message names every mistake, one line each with key path, what was found and what
    is allowed; `key_path` is the first. File names inside are relative to the file's directory, for a mapping
    to the current one. Doubtful settings are logged as warnings, see `Config.warnings`.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, str | os.PathLike):
        return _from_file(Path(config))
    if isinstance(config, Mapping):
        return _with_warnings(_from_mapping(config))
    raise ConfigError(f"found {shown(config)}; allowed: a file name, an object (dict) or a Config")


def load_entry(entry: object) -> Entry:
    """One entry of `connection_priority` from a triple, an object or an `Entry`. Raises ConfigError."""
    try:
        return Entry.model_validate(entry)
    except ValidationError as error:
        schema = json_schema()
        item = schema["properties"]["connection_priority"]["items"]
        raise explain(error, entry, {**item, "$defs": schema["$defs"]}) from None


def _from_file(path: Path) -> Config:
    text = _text_of(path)
    try:
        config = _from_mapping(_parsed(text, path))
        return _with_warnings(config.located_in(Path(os.path.abspath(path)).parent))
    except ConfigError as error:
        error.add_note(f"in {_named(path)}")
        raise


def _from_mapping(mapping: Mapping[str, Any]) -> Config:
    for key in mapping:
        if not isinstance(key, str):
            raise ConfigError(f"found the key {shown(key)}; allowed: text")
    return Config(**mapping)


def _with_warnings(config: Config) -> Config:
    for warning in config.warnings():
        logger.warning("%s", warning)
    return config


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {_named(path)}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"cannot read {_named(path)}: {error}") from error
    if len(content) > MAX_FILE_SIZE:
        raise ConfigError(f"{_named(path)}: found more than {MAX_FILE_SIZE} bytes; allowed: a file of at most so many")
    try:
        return content.decode("utf-8-sig")  # some editors put a byte order mark in front
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{_named(path)}: found a byte that is not UTF-8 at offset {error.start}; allowed: UTF-8"
        ) from error


def _named(path: Path) -> str:
    """The file's name in a message, printable whatever bytes it has."""
    return str(path) if str(path).isprintable() else ascii(str(path))


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys were written more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: list[str] = []
        if len(self) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self.repeated.append(key)
                seen.add(key)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_Object)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"no JSON: {error.msg} at line {error.lineno}, column {error.colno} of {_named(path)}"
        ) from error
    except RecursionError:
        raise ConfigError(f"no configuration: {_named(path)} is nested too deeply") from None
    except ValueError as error:  # CPython refuses integers of more than 4300 digits
        raise ConfigError(f"no JSON for us: {_named(path)} holds a number that is too long") from error
    if not isinstance(value, _Object):
        raise ConfigError(f"found {shown(value)} in {_named(path)}; allowed: an object, {{...}}")
    repeated = _repeated_keys(value)
    if repeated:
        raise error_of(repeated)
    return value


def _repeated_keys(value: object) -> list[Finding]:
    findings: list[Finding] = []
    waiting: list[tuple[KeyPath, object]] = [((), value)]  # no recursion: the depth is the writer's choice
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, _Object):
            message = "found twice in the same object; allowed: once"
            findings += [Finding((*path, key), message) for key in dict.fromkeys(part.repeated)]
            waiting += [((*path, key), inside) for key, inside in part.items()]
        elif isinstance(part, list):
            waiting += [((*path, index), inside) for index, inside in enumerate(part)]
    return sorted(findings, key=lambda finding: finding.key_path)
