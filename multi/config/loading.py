"""From a JSON file or a dict to a checked `Config`, and its JSON Schema.

Opens the configuration file and no other. Everything that can be wrong with it is a ConfigError.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar, cast

from pydantic import Field, ValidationError, create_model

from multi.config import checks
from multi.config.errors import REPEATED, TRIPLE, as_written, error_of, explain, shown
from multi.config.model import END_ROLES, ConfigModel, Entry, SslConfig, SteeringSpec
from multi.config.options import SCHEME, client_mapping, server_mapping, url_mapping
from multi.errors import ConfigError
from multi.schedulers import scheduler_names
from multi.schedulers.base import DEFAULT_SCHEDULER
from multi.transports import TransportSection, transport_names
from multi.transports.base import transport_type
from multi.transports.settings import Section

MAX_FILE_SIZE = 1 << 20  # bytes; the largest sensible configuration has a few KiB, a device or log file has no end
DIALECT = "https://json-schema.org/draft/2020-12/schema"

S = TypeVar("S", bound=Section)

logger = logging.getLogger("multi.config")


class Config(ConfigModel):
    """Configuration of a MULTI session (client: `connection_priority`) or server (`listen`)."""

    def __new__(cls, /, **data: Any) -> Self:
        # Copies are made without data.
        return cast(Self, super().__new__(_complete(cls) if data else cls))

    def __init__(self, /, **data: Any) -> None:
        """Validate. Raises ConfigError naming every mistake, one line each."""
        try:
            super().__init__(**_with_possible_transports(data))
        except ValidationError as error:
            raise explain(error, data, type(self)) from None
        findings = checks.contradictions(self)
        if findings:
            raise error_of(as_written(findings, data))

    def __reduce__(self) -> tuple[object, ...]:
        # The class with the sections of the transports has no name by which it could be found.
        return _restored, (self.__getstate__(),)

    def check_entry(self, entry: Entry) -> None:
        """Raise ConfigError if `entry`, wanted besides those of this configuration, can never work."""
        findings = checks.entry_contradictions(self, entry)
        if findings:
            raise error_of(findings)

    def warnings(self) -> tuple[str, ...]:
        """What is accepted but has no effect or will probably not work, one line each."""
        return tuple(str(finding) for finding in checks.warnings_of(self))


ConfigLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Config


def load_config(config: ConfigLike) -> Config:
    """Return the configuration in a JSON file, in a mapping of the same shape, of a `multi://` URL, or `config` itself.

    Raises ConfigError: its message names every mistake, one line each with key path, what was found and what
    is allowed; `key_path` is the first. File names inside are relative to the file's directory, for a mapping
    to the current one. Doubtful settings are logged as warnings, see `Config.warnings`.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, str) and config.startswith(SCHEME):
        return _with_warnings(_from_mapping(url_mapping(config)))
    if isinstance(config, str | os.PathLike):
        return _from_file(Path(config))
    if isinstance(config, Mapping):
        return _with_warnings(_from_mapping(config))
    raise ConfigError(f"found {shown(config)}; allowed: a file name, an object (dict) or a Config")


def config_of(
    target: ConfigLike | None, port: int | None, options: Mapping[str, Any], *, server: bool = False
) -> Config:
    """What a call means: a configuration or a URL, or host and port with options. Raises ConfigError."""
    if port is None and target is not None:
        if options:
            raise ConfigError(f"found {', '.join(options)} with a configuration; allowed: with host and port")
        return load_config(target)
    if isinstance(port, bool) or not isinstance(port, int):
        raise ConfigError(f"found {shown(port)}; allowed: a whole number", "port")
    if not (isinstance(target, str) or (target is None and server)):
        raise ConfigError(f"found {shown(target)}; allowed: a host name or an IP address", "host")
    return load_config(server_mapping(target, port, options) if server else client_mapping(str(target), port, options))


def load_entry(entry: object) -> Entry:
    """One entry of `connection_priority` from a triple, an object or an `Entry`. Raises ConfigError."""
    return _section(Entry, entry)


def load_steering(steering: object) -> SteeringSpec:
    """Steering from a mode or an object. Raises ConfigError."""
    return _section(SteeringSpec, steering)


def _section(model: type[S], written: object) -> S:
    try:
        return model.model_validate(written)
    except ValidationError as error:
        raise explain(error, written, model) from None


def _with_possible_transports(data: dict[str, Any]) -> dict[str, Any]:
    """Without a certificate, the default of `listen.transports` is what can do without one."""
    listen, ssl = data.get("listen"), data.get("ssl_config")
    has_certificate = isinstance(ssl, SslConfig) or (isinstance(ssl, dict) and "cert" in ssl)
    if not isinstance(listen, dict) or "transports" in listen or has_certificate:
        return data
    types = [transport_type(name) for name in transport_names()]
    possible = [known.name for known in types if known.shipped and not known.needs_certificate]
    return {**data, "listen": {**listen, "transports": possible}}


def _complete(config: type[Config]) -> type[Config]:
    """The class with the section `<name>_config` of every transport."""
    known = ((name, transport_type(name).settings) for name in transport_names())
    return _extended(config, tuple(item for item in known if f"{item[0]}_config" not in config.model_fields))


@cache
def _extended(config: type[Config], sections: tuple[tuple[str, type[TransportSection]], ...]) -> type[Config]:
    fields: dict[str, Any] = {}
    for name, settings in sections:
        text = f"{name.upper()} connections. Default: see its fields."
        fields[f"{name}_config"] = (settings, Field(settings.model_construct(), description=text))
    return (
        create_model("Config", __base__=config, __cls_kwargs__={"defer_build": False}, **fields) if fields else config
    )


def _restored(state: dict[Any, Any]) -> Config:
    """A configuration from its pickle."""
    config = object.__new__(_complete(Config))
    config.__setstate__(state)
    return config


# --- files ---


def _from_file(path: Path) -> Config:
    text = _text_of(path)
    try:
        config = _from_mapping(_parsed(text))
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
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        hint = "; a server's address is written multi://HOST:PORT" if ":" in str(path) else ""
        raise ConfigError(f"cannot read {_named(path)}: {getattr(error, 'strerror', '') or error}{hint}") from error
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; what is there twice fits no key."""
    times = Counter(key for key, _ in pairs)
    return {key: value if times[key] == 1 else REPEATED for key, value in pairs}


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ConfigError(f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError:
        raise ConfigError("no configuration: nested too deeply") from None
    except ValueError as error:  # CPython refuses integers of more than 4300 digits
        raise ConfigError("no JSON for us: a number that is too long") from error
    if not isinstance(value, dict):
        raise ConfigError(f"found {shown(value)}; allowed: an object, {{...}}")
    return value


# --- JSON Schema ---

JSON = dict[str, Any]
"""A JSON object; its shape is given by the JSON Schema standard."""


def json_schema() -> JSON:
    """JSON Schema (draft 2020-12) of the file format: every key with description, range and default.

    It cannot express everything: names registered by an application and files are checked when loading.
    """
    schema = _complete(Config).model_json_schema(mode="validation")
    definitions = schema["$defs"]
    properties = schema["properties"]
    properties["connection_priority"]["items"] = {"anyOf": [_triple(), _ref("Entry")]}
    properties["connection_priority"].pop("default")  # the empty list only stands for "not given"
    entry, name = definitions["Entry"]["properties"], definitions["SchedulerSpec"]["properties"]["name"]
    name["examples"] = scheduler_names(aliases=True)
    entry["transport"]["examples"] = transport_names()
    entry["role"]["default"] = "active"
    many = {key: entry["interface"].pop(key) for key in ("type", "items", "minItems", "maxItems")}
    entry["interface"]["anyOf"] = [many["items"], many]
    scheduler = definitions["MultiConfig"]["properties"]["scheduler"]
    short = {"type": "string", **{key: name[key] for key in ("minLength", "maxLength", "examples")}}
    scheduler |= {"anyOf": [short, {"$ref": scheduler.pop("$ref")}], "default": DEFAULT_SCHEDULER}
    then = definitions["Budget"]["properties"]["then"]
    role = {"type": "string", "enum": list(END_ROLES)}
    then |= {"anyOf": [role, {"$ref": then.pop("$ref")}], "default": "backup"}
    listen, place = definitions["Listen"]["properties"], [{"type": "string"}, _ref("ServerAddress")]
    listen["own"]["anyOf"] = [*place, {"type": "null"}]
    listen["announce"]["items"] = listen["peers"]["additionalProperties"] = {"anyOf": place}
    for part in (schema, *definitions.values()):
        _tidy(part)
    sides: JSON = {"oneOf": [{"required": ["connection_priority"]}, {"required": ["listen"]}]}
    return {"$schema": DIALECT, "title": "MULTI configuration", **schema, **sides}


def _triple() -> JSON:
    places = [_ref(f"Entry/properties/{key}") for key in TRIPLE]
    return {
        "type": "array",
        "description": "An entry as in the paper: transport, IP version, interface or list of interfaces.",
        "prefixItems": places,
        "minItems": len(TRIPLE),
        "maxItems": len(TRIPLE),
    }


def _ref(name: str) -> JSON:
    return {"$ref": f"#/$defs/{name}"}


def _tidy(part: JSON) -> None:
    """Drop generated titles, join the lines of descriptions, leave defaults of sections to their fields."""
    part.pop("title", None)
    if "description" in part:
        part["description"] = " ".join(part["description"].split())
    for field in part.get("properties", {}).values():
        _tidy(field)
        if isinstance(field.get("default"), dict):
            field["default"] = {}


_complete(Config)  # built before the first configuration needs it
