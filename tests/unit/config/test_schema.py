"""The JSON Schema: complete, described, and of one mind with loading and with the documentation."""

from __future__ import annotations

import json
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from multi.config import json_schema, load_config
from multi.schedulers import scheduler_names
from multi.transports import transport_names
from multi.transports.base import transport_type

SCHEMA = json_schema()
CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.json"))
DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
SHIPPED = [name for name in transport_names() if transport_type(name).shipped]
SECTIONS = {
    "Top level": SCHEMA,
    "Entries: `connection_priority`": SCHEMA["$defs"]["Entry"],
    "`budget`": SCHEMA["$defs"]["Budget"],
    "`multi_config`": SCHEMA["$defs"]["MultiConfig"],
    **{f"`{name}_config`": SCHEMA["$defs"][transport_type(name).settings.__name__] for name in SHIPPED},
    "`steering`": SCHEMA["$defs"]["SteeringSpec"],
    "`ssl_config`": SCHEMA["$defs"]["SslConfig"],
    "`wifi_config`": SCHEMA["$defs"]["WifiConfig"],
    "`interfaces`": SCHEMA["$defs"]["InterfaceKinds"],
    "`auth`": SCHEMA["$defs"]["Auth"],
    "`listen`": SCHEMA["$defs"]["Listen"],
    "`control`": SCHEMA["$defs"]["Control"],
    "`trace`": SCHEMA["$defs"]["Trace"],
    "`limits`": SCHEMA["$defs"]["Limits"],
}
SCHEDULERS = scheduler_names(aliases=True)  # read before a test registers one of its own
FIELDS = [(title, key) for title, part in SECTIONS.items() for key in part["properties"]]


def valid(value: object, part: dict[str, Any]) -> bool:
    """Whether `value` fits a schema: as much of the standard as our schema uses."""
    if "$ref" in part:
        target: Any = SCHEMA
        for step in part["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return valid(value, target)
    if "anyOf" in part and not any(valid(value, one) for one in part["anyOf"]):
        return False
    if "oneOf" in part and sum(valid(value, one) for one in part["oneOf"]) != 1:
        return False
    if "enum" in part and value not in part["enum"]:
        return False
    if "const" in part and value != part["const"]:
        return False
    types: dict[str, type | tuple[type, ...]] = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
        "null": type(None),
    }
    if "type" in part and not isinstance(value, types[part["type"]]):
        return False
    match value:
        case bool():
            return part.get("type") not in ("integer", "number")
        case int() | float():
            return bool(part.get("minimum", value) <= value <= part.get("maximum", value))
        case str():
            long_enough = part.get("minLength", 0) <= len(value) <= part.get("maxLength", len(value))
            return long_enough and re.search(part.get("pattern", ""), value) is not None
        case list():
            count = part.get("minItems", 0) <= len(value) <= part.get("maxItems", len(value))
            places = part.get("prefixItems", [part.get("items", {})] * len(value))
            return count and all(valid(item, place) for item, place in zip(value, places, strict=True))
        case dict():
            properties, further = part.get("properties", {}), part.get("additionalProperties", {})
            return set(part.get("required", ())) <= set(value) and all(
                valid(item, properties[key]) if key in properties else further is not False and valid(item, further)
                for key, item in value.items()
            )
    return True


def section_of_documentation(title: str) -> str:
    _, _, rest = DOCUMENTATION.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_fits_the_schema(path: Path) -> None:
    assert valid(json.loads(path.read_text()), SCHEMA)


@pytest.mark.parametrize(
    "change",
    [
        {"remote_prt": 1},
        {"remote_port": 0},
        {"remote_port": "7788"},
        {"connection_priority": []},
        {"connection_priority": [["tcp", "ipv4"]]},
        {"connection_priority": [["tcp", "ipv5", "eth0"]]},
        {"connection_priority": [["tcp", "ipv4", []]]},
        {"connection_priority": [{"transport": "tcp", "ip": "any", "interface": "any", "rle": 1}]},
        {"listen": {}},
        {"multi_config": {"scheduler": {"n": 2}}},
        {"multi_config": {"scheduler": {"name": "RR", "n": "2"}}},
        {"tcp_config": {"nagle": 1}},
        {"ssl_config": {"tls": "TLSv1.2"}},
        {"limits": {"max_streams": 0}},
    ],
)
def test_schema_and_loading_refuse_the_same_mistakes(change: dict[str, Any]) -> None:
    config = {"connection_priority": [["tcp", "ipv4", "eth0"]], "remote_host": "a"}
    assert valid(config, SCHEMA)
    load_config(config)
    assert not valid(config | change, SCHEMA)
    with pytest.raises(ValueError):
        load_config(config | change)


@pytest.mark.parametrize(
    "entry",
    [
        ["tcp", "ipv4", "eth0"],
        ["mptcp", "ipv6", ["eth", "wifi"]],
        {"transport": "tcp", "ip": "any", "interface": "any"},
        {"transport": "tcp", "ip": "any", "interface": ["wifi"], "role": "backup", "remote_port": None},
    ],
)
def test_the_schema_accepts_triples_and_objects(entry: object) -> None:
    assert valid({"connection_priority": [entry], "remote_host": "a"}, SCHEMA)


def test_every_section_is_covered_by_these_tests() -> None:
    shown = [part for part in SECTIONS.values() if part is not SCHEMA]
    assert [name for name, part in SCHEMA["$defs"].items() if part not in shown] == [
        "BudgetEnd",
        "SchedulerSpec",
        "ServerAddress",
    ]


@pytest.mark.parametrize(("title", "key"), FIELDS)
def test_every_field_is_described_with_its_default(title: str, key: str) -> None:
    description = SECTIONS[title]["properties"][key]["description"]
    assert "\n" not in description
    assert any(word in description for word in ("Default", "No default", "Required"))


@pytest.mark.parametrize(("title", "key"), FIELDS)
def test_every_field_has_a_row_with_its_default_in_the_documentation(title: str, key: str) -> None:
    part = SECTIONS[title]
    rows = [line for line in section_of_documentation(title).splitlines() if line.startswith(f"| `{key}` |")]
    assert len(rows) == 1, f"`{key}` needs a row in docs/configuration.md, under {title}"
    field = part["properties"][key]
    required = key in part.get("required", ())
    default = "required" if required else f"`{json.dumps(field['default'])}`" if "default" in field else "none"
    assert rows[0].split(" | ")[2] == default
    assert rows[0].endswith(f" {field['description']} |"), "word for word the docstring"


def test_the_documentation_lists_every_scheduler_and_no_other() -> None:
    _, _, table = section_of_documentation("`multi_config`").partition("| name | parameters |")
    rows = takewhile(lambda line: line.startswith("|"), table.splitlines()[2:])
    documented = [name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[1])]
    assert set(documented) ^ set(SCHEDULERS) == set(), "the table under `multi_config` in docs/configuration.md"
    assert len(documented) == len(SCHEDULERS)


def test_the_schema_is_json_and_a_copy() -> None:
    first = json_schema()
    assert json.loads(json.dumps(first)) == first
    first["properties"].clear()
    assert json_schema()["properties"]
