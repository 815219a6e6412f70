"""The import rules of the architecture, checked on the source: what is pure, and who may know whom.

The pure packages get bytes, facts and the time, and never fetch them. That is what lets the simulator
replay a run byte for byte, so the rule is an allow-list: a module of the standard library is forbidden
until it is known to be harmless.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "multi"

PURE = ("multi.errors", "multi.core", "multi.schedulers", "multi.paths", "multi.engine", "multi.sim")
PURE_STDLIB = {
    "__future__",
    "abc",
    "binascii",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "ipaddress",
    "itertools",
    "math",
    "operator",
    "re",
    "string",
    "struct",
    "types",
    "typing",
    "zlib",
}
PURE_EXTRAS = {  # who may import what besides
    "multi.core": {"cryptography"},
    "multi.sim": {"random"},  # only for seeded Random objects
    "multi.sim.random_run": {"multiprocessing", "sys", "time"},  # only for its command, which runs seeds on all cores
    "multi.schedulers.registry": {"importlib", "inspect", "pkgutil"},
}
IMPURE_CALLS = {"open", "input", "print", "__import__", "exec", "eval"}

TYPES = ("multi.errors", "multi.core.facts", "multi.core.ids", "multi.paths.links")
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "multi.errors": (),
    "multi.core": ("multi.core", "multi.errors"),
    "multi.schedulers": ("multi.schedulers", "multi.core", "multi.errors"),
    "multi.paths": ("multi.paths", "multi.core", "multi.errors"),
    "multi.engine": ("multi.engine", "multi.paths", "multi.schedulers", "multi.core", "multi.errors"),
    "multi.sim": (
        "multi.sim",
        "multi.engine",
        "multi.paths",
        "multi.schedulers",
        "multi.core",
        "multi.errors",
    ),
    "multi.config": ("multi.config", "multi.transports", "multi.schedulers", *TYPES),
    "multi.transports": ("multi.transports", "multi.config", "multi.net", *TYPES),
    "multi.net": ("multi.net", "multi.paths.signal", "multi.transports.base", "multi.config", *TYPES),
    "multi.aio": (
        "multi.aio",
        "multi.engine",
        "multi.paths",
        "multi.schedulers",
        "multi.core",
        "multi.errors",
        "multi.config",
        "multi.transports",
        "multi.net",
    ),
    "multi.testbed": ("multi.testbed", *TYPES),
    # The command line stands on top; `multi` itself and `python -m multi` only pass things on.
    "multi.cli": ("multi",),
    "multi.__main__": ("multi.cli",),
    "multi": ("multi",),
}


@dataclass(frozen=True)
class Source:
    """A module by its dotted name."""

    name: str
    tree: ast.Module
    is_package: bool = False


@dataclass(frozen=True)
class Import:
    """One imported thing: `from a.b import c` is a.b with the name c, `import a.b` is a.b with no name."""

    module: str
    name: str
    line: int

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def sources() -> Iterator[Source]:
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield Source(".".join(parts[:-1] if is_package else parts), ast.parse(path.read_text("utf-8")), is_package)


def imports(source: Source) -> Iterator[Import]:
    """Every import anywhere in the module, also in functions and under TYPE_CHECKING."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                drop = node.level - source.is_package
                base = source.name.split(".")[: len(source.name.split(".")) - drop]
                module = ".".join([*base, *([module] if module else [])])
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def layer(name: str) -> str:
    """The entry of MAY_IMPORT that governs a module."""
    return max((key for key in MAY_IMPORT if key == name or (key != PACKAGE and within(name, key))), key=len)


def violations(source: Source) -> list[str]:
    """What this module does that the architecture forbids, one line each."""
    found = []
    pure = any(within(source.name, package) for package in PURE)
    for item in imports(source):
        where = f"{source.name}:{item.line} imports {item.full}"
        if within(item.module, PACKAGE):
            allowed = MAY_IMPORT[layer(source.name)]
            # The name may be a module (from multi.core import facts) or not (from multi.core.facts import X).
            if not any(within(item.module, prefix) or item.full == prefix for prefix in allowed):
                found.append(f"{where}: {layer(source.name)} may know {', '.join(allowed) or 'nothing'}")
        elif pure and not pure_import(source.name, item):
            found.append(f"{where}: pure packages may not")
    if pure:
        found += impure_uses(source)
    return found


def pure_import(module: str, item: Import) -> bool:
    top = item.module.split(".")[0]
    extras = [names for package, names in PURE_EXTRAS.items() if within(module, package)]
    if not any(top in names for names in (PURE_STDLIB, *extras)):
        return False
    return top != "random" or item.name in ("", "Random")


def impure_uses(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{source.name}:{node.lineno} calls {node.func.id}: pure packages may not"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr != "Random"
        ):
            yield f"{source.name}:{node.lineno} uses random.{node.attr}: only seeded random.Random objects"
        if (
            isinstance(node, ast.Call)
            and not node.args
            and not node.keywords
            and (
                (isinstance(node.func, ast.Attribute) and node.func.attr == "Random")
                or (isinstance(node.func, ast.Name) and node.func.id == "Random")
            )
        ):
            yield f"{source.name}:{node.lineno} makes a Random without a seed"


def test_no_module_breaks_the_import_rules() -> None:
    checked = list(sources())
    assert {layer(source.name) for source in checked} >= {
        "multi.core",
        "multi.schedulers",
        "multi.transports",
    }
    assert [line for source in checked for line in violations(source)] == []


def test_every_package_has_a_rule() -> None:
    packages = {source.name for source in sources() if source.is_package and source.name.count(".") == 1}
    assert packages <= set(MAY_IMPORT)


def test_the_allow_list_names_only_the_standard_library() -> None:
    assert sys.stdlib_module_names >= PURE_STDLIB


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("multi.core.session", "import asyncio"),
        ("multi.core.session", "import os.path"),
        ("multi.core.session", "from time import monotonic"),
        ("multi.core.session", "import logging"),
        ("multi.core.session", "import importlib"),
        ("multi.core.session", "from random import Random"),
        ("multi.core.session", "def f():\n    import secrets"),
        ("multi.core.session", "if TYPE_CHECKING:\n    from socket import socket"),
        ("multi.core.session", "import pydantic"),
        ("multi.core.session", "open('x')"),
        ("multi.core.session", "from multi.schedulers import create_scheduler"),
        ("multi.core.session", "from multi import schedulers"),
        ("multi.core.session", "from ..schedulers import create_scheduler"),
        ("multi.core.session", "import multi"),
        ("multi.schedulers.rr", "import pkgutil"),
        ("multi.schedulers.rr", "import cryptography"),
        ("multi.schedulers.rr", "from multi.paths import links"),
        ("multi.paths.manager", "from multi.engine import Engine"),
        ("multi.paths.manager", "from multi.net import interfaces"),
        ("multi.engine", "from multi.transports.base import Channel"),
        ("multi.engine", "from multi.aio import driver"),
        ("multi.sim.link", "import time"),
        ("multi.sim.link", "import random\nrandom.random()"),
        ("multi.sim.link", "import random\nrandom.Random()"),
        ("multi.sim.link", "from random import choice"),
        ("multi.sim.link", "from random import Random\nRandom()"),
        ("multi.transports.tcp", "from multi.core.session import Session"),
        ("multi.transports.tcp", "from multi.core import session"),
        ("multi.transports.tcp", "from multi.core import connection, facts"),
        ("multi.transports.tcp", "import multi.engine"),
        ("multi.net.routes", "from multi.engine import Engine"),
        ("multi.net.routes", "from multi.transports import tcp"),
        ("multi.config.models", "from multi.aio import client"),
        ("multi.errors", "from multi.core import ids"),
        ("multi.aio.client", "from multi.cli import main"),
    ],
)
def test_the_checker_catches(module: str, code: str) -> None:
    assert violations(Source(module, ast.parse(code)))


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("multi.core.sealing", "from cryptography.hazmat.primitives.ciphers import aead"),
        (
            "multi.core.segment",
            "import struct\nfrom collections.abc import Iterator\nfrom multi.core import ids",
        ),
        ("multi.schedulers.registry", "import pkgutil"),
        ("multi.engine", "from multi.paths import manager\nfrom multi.core.session import Session"),
        ("multi.sim.link", "import random\nr = random.Random(7)\nr.random()"),
        ("multi.sim.link", "from random import Random\nr = Random(7)"),
        ("multi.transports.tcp", "import socket\nfrom multi.core import facts, ids"),
        ("multi.net.routes", "from multi.transports import base"),
        (
            "multi.aio.client",
            "import asyncio\nfrom multi.core.session import Session\nimport multi.transports",
        ),
        ("multi", "from multi.aio.client import connect"),
    ],
)
def test_the_checker_lets_pass(module: str, code: str) -> None:
    assert violations(Source(module, ast.parse(code))) == []
