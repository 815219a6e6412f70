"""JSON Schema of the configuration file, for editors and for `multi schema`. The texts are those of the
models."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from multi.config.entry import TRIPLE
from multi.config.models import Config

__all__ = ["json_schema"]

JSON = dict[str, Any]
"""A JSON object; its shape is given by the JSON Schema standard."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> JSON:
    """JSON Schema (draft 2020-12) of the file format: every key with description, range and default.

    It cannot express everything: names registered by an application and files are checked when loading.
    """
    return copy.deepcopy(_schema())


@cache
def _schema() -> JSON:
    schema = Config.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    properties = schema["properties"]
    properties["connection_priority"]["items"] = {"anyOf": [_triple(), _ref("Entry")]}
    properties["connection_priority"].pop("default")  # the empty list only stands for "not given"
    scheduler = definitions["MultiConfig"]["properties"]["scheduler"]
    name = definitions["SchedulerSpec"]["properties"]["name"]
    scheduler.pop("$ref")
    scheduler |= {"anyOf": [{"type": "string"}, _ref("SchedulerSpec")], "default": "adaptive"}
    scheduler["anyOf"][0] |= {key: name[key] for key in ("minLength", "maxLength", "examples")}
    definitions["Entry"]["properties"]["role"]["default"] = "active"
    interface = definitions["Entry"]["properties"]["interface"]
    many = {key: interface.pop(key) for key in ("type", "items", "minItems", "maxItems")}
    interface["anyOf"] = [many["items"], many]
    for part in (schema, *definitions.values()):
        _tidy(part)
    sides: JSON = {"oneOf": [{"required": ["connection_priority"]}, {"required": ["listen"]}]}
    return {"$schema": DIALECT, "title": "MULTI configuration", **schema, **sides}


def _triple() -> JSON:
    places = [{"$ref": f"#/$defs/Entry/properties/{field}"} for field in TRIPLE]
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
