"""`multi schema`: the JSON Schema of configurations, for editors."""

from __future__ import annotations

import argparse

from multi.cli.arguments import Subparsers, add_command


def add_parser(commands: Subparsers) -> None:
    add_command(commands, "schema", run, "print the JSON Schema of configurations")


def run(_parsed: argparse.Namespace) -> int:
    import json

    from multi.config import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
