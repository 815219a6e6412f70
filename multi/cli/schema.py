"""`multi schema`: the JSON Schema of configurations."""

from __future__ import annotations

import json

from multi.cli.parser import Parser
from multi.config import json_schema


def add_arguments(parser: Parser) -> None:
    parser.runs(print_schema)


def print_schema() -> int:
    """`multi schema`: the JSON Schema of configurations, for editors. Returns 0."""
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
