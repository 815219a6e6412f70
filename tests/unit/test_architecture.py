"""The import rules of the architecture, checked on the source: what is pure, and who may know whom.

The pure packages get bytes, facts and the time, and never fetch them. That is what lets the simulator
replay a run byte for byte, so the rule is an allow-list: a module of the standard library is forbidden
until it is known to be harmless.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "multi"

VALUES = ("multi.errors", "multi.types")
PURE = (
    "multi.reasons",
    *VALUES,
    "multi.events",
    "multi.schedulers",
    "multi.multipath",
    "multi.paths",
    "multi.protocol",
    "multi.lab.sim",
)
PURE_STDLIB = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "difflib",
    "enum",
    "errno",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "ipaddress",
    "itertools",
    "math",
    "struct",
    "typing",
}
PURE_EXTRAS = {  # who may import what besides
    "multi.protocol": {"cryptography"},
    "multi.lab.sim": {"random"},  # only for seeded Random objects
    "multi.schedulers.registry": {"importlib", "inspect", "pkgutil"},
}
IMPURE_CALLS = {"open", "input", "print", "__import__", "exec", "eval"}

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    # The house from the ground up: a layer may import what stands above it here, and only what it uses.
    "multi.reasons": (),
    "multi.errors": ("multi.reasons",),
    "multi.types": (),
    "multi.events": ("multi.reasons", "multi.types"),
    "multi.schedulers": VALUES,
    "multi.multipath": ("multi.types", "multi.schedulers"),
    "multi.paths": ("multi.reasons", "multi.types", "multi.events"),
    "multi.protocol": ("multi.reasons", *VALUES, "multi.events", "multi.schedulers", "multi.paths"),
    "multi.discovery": ("multi.types",),
    "multi.linux": ("multi.types", "multi.discovery"),
    "multi.budgets": ("multi.discovery",),
    "multi.transports": (*VALUES, "multi.multipath", "multi.discovery", "multi.linux"),
    "multi.config": (*VALUES, "multi.schedulers", "multi.discovery", "multi.transports"),
    "multi.asyncio": (
        "multi.reasons",
        *VALUES,
        "multi.events",
        "multi.schedulers",
        "multi.paths",
        "multi.protocol",
        "multi.discovery",
        "multi.linux",
        "multi.transports",
        "multi.config",
        "multi.budgets",
    ),
    "multi.workers": (
        "multi.errors",
        "multi.types",
        "multi.linux",
        "multi.protocol",
        "multi.transports",
        "multi.config",
        "multi.asyncio",
    ),
    "multi.forward": (
        "multi.reasons",
        *VALUES,
        "multi.events",
        "multi.discovery",
        "multi.config",
        "multi.asyncio",
    ),
    "multi._exports": (
        "multi.reasons",
        *VALUES,
        "multi.events",
        "multi.schedulers",
        "multi.protocol",
        "multi.transports",
        "multi.config",
        "multi.asyncio",
        "multi.workers",
    ),
    "multi": ("multi._exports",),
    "multi.integrations": ("multi", "multi.asyncio"),
    "multi.lab": (
        "multi",
        "multi.reasons",
        *VALUES,
        "multi.events",
        "multi.schedulers",
        "multi.multipath",
        "multi.paths",
        "multi.protocol",
        "multi.linux",
        "multi.transports",
        "multi.config",
        "multi.asyncio",
        "multi.workers",
    ),
    "multi.cli": (
        *VALUES,
        "multi",
        "multi.discovery",
        "multi.transports",
        "multi.config",
        "multi.budgets",
        "multi.asyncio",
        "multi.workers",
        "multi.forward",
        "multi.lab",
    ),
    "multi.__main__": ("multi.cli",),
}


@dataclass(frozen=True)
class Import:
    """One imported thing: `from a.b import c` is a.b with the name c, `import a.b` is a.b with no name."""

    module: str
    name: str
    line: int

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True)
class Source:
    """What a module, by its dotted name, imports, and what it does that pure ones may not."""

    name: str
    imports: tuple[Import, ...]
    impure: tuple[str, ...]


def read(name: str, code: str, *, is_package: bool = False) -> Source:
    tree = ast.parse(code)
    pure = any(within(name, package) for package in PURE)
    impure = tuple(impure_uses(name, tree)) if pure else ()
    return Source(name, tuple(imports(name, tree, is_package=is_package)), impure)


@cache
def sources() -> list[Source]:
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        found.append(
            read(".".join(parts[:-1] if is_package else parts), path.read_text("utf-8"), is_package=is_package)
        )
    return found


def imports(name: str, tree: ast.Module, *, is_package: bool) -> Iterator[Import]:
    """Every import anywhere in the module, also in functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                drop = node.level - is_package
                base = name.split(".")[: len(name.split(".")) - drop]
                module = ".".join([*base, *([module] if module else [])])
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def layer(name: str) -> str:
    """The entry of MAY_IMPORT that governs a module, or that an imported name belongs to."""
    return max(
        (key for key in MAY_IMPORT if key == name or (key != PACKAGE and within(name, key))), key=len, default=PACKAGE
    )


def crossings(source: Source) -> Iterator[tuple[Import, str]]:
    """Imports of other layers, with the layer."""
    for item in source.imports:
        if within(item.module, PACKAGE):
            # The name may be a module (from multi import types) or not (from multi.types import X).
            target = max(layer(item.full), layer(item.module), key=len)
            if target != layer(source.name):
                yield item, target


def violations(source: Source) -> list[str]:
    """What this module does that the architecture forbids, one line each."""
    own = layer(source.name)
    found = [
        f"{source.name}:{item.line} imports {item.full}: {own} may know {', '.join(MAY_IMPORT[own]) or 'nothing'}"
        for item, target in crossings(source)
        if target not in MAY_IMPORT[own]
    ]
    if any(within(source.name, package) for package in PURE):
        found += [
            f"{source.name}:{item.line} imports {item.full}: pure packages may not"
            for item in source.imports
            if not within(item.module, PACKAGE) and not pure_import(source.name, item)
        ]
        found += source.impure
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def pure_import(module: str, item: Import) -> bool:
    top = item.module.split(".")[0]
    extras = [names for package, names in PURE_EXTRAS.items() if within(module, package)]
    if not any(top in names for names in (PURE_STDLIB, *extras)):
        return False
    return top != "random" or item.name in ("", "Random")


def impure_uses(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{name}:{node.lineno} calls {node.func.id}: pure packages may not"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr != "Random"
        ):
            yield f"{name}:{node.lineno} uses random.{node.attr}: only seeded random.Random objects"
        if (
            isinstance(node, ast.Call)
            and not node.args
            and not node.keywords
            and (
                (isinstance(node.func, ast.Attribute) and node.func.attr == "Random")
                or (isinstance(node.func, ast.Name) and node.func.id == "Random")
            )
        ):
            yield f"{name}:{node.lineno} makes a Random without a seed"


def test_no_module_breaks_the_import_rules() -> None:
    assert [line for source in sources() for line in violations(source)] == []


def test_no_rule_allows_what_nobody_does() -> None:
    used = {(layer(source.name), target) for source in sources() for _, target in crossings(source)}
    allowed = {(own, target) for own, targets in MAY_IMPORT.items() for target in targets}
    assert allowed - used == set()
    pure = [source for source in sources() if any(within(source.name, package) for package in PURE)]
    imported = {item.module.split(".")[0] for source in pure for item in source.imports}
    assert PURE_STDLIB - imported == set()


def test_layers_import_downwards_only() -> None:
    """Each layer stands in the table below all it may know."""
    order = list(MAY_IMPORT)
    assert [
        (own, target)
        for own, targets in MAY_IMPORT.items()
        for target in targets
        if order.index(target) >= order.index(own)
    ] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {source.name: source for source in sources()}
    graph = {
        name: {item.full if item.full in modules else item.module for item in source.imports} & set(modules) - {name}
        for name, source in modules.items()
    }
    assert circles(graph) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_every_package_has_a_rule() -> None:
    names = {source.name for source in sources() if source.name.count(".") == 1}
    assert names <= set(MAY_IMPORT)


OTHER_WORDS_FOR_BOUNDS = re.compile(
    r"^_?(MOST|LEAST|LONGEST|SHORTEST|LARGEST|SMALLEST|FEWEST)(_[A-Z_]+)?$|^[A-Z_]+_(LIMIT|MOST|LEAST|MAX|MIN)$"
)
NO_BOUNDS = {
    "CONNECTION_LIMIT",  # names in the configuration and in messages
    "DEFAULT_LIMIT",  # as asyncio calls the argument
    "_JUMP_IF_AT_LEAST",  # an instruction of the kernel's filters
}


def assigned_in(node: ast.stmt) -> list[str]:
    """The names that a statement gives values, several at once too."""
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def test_bounds_are_called_max_or_min() -> None:
    names = {
        name: path.relative_to(ROOT)
        for path in (ROOT / PACKAGE).rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        for name in assigned_in(node)
        if OTHER_WORDS_FOR_BOUNDS.match(name)
    }
    assert {name: path for name, path in names.items() if name not in NO_BOUNDS} == {}
    assert set(names) >= NO_BOUNDS, "allowed, and nobody uses it"


def test_modules_have_the_test_file_of_their_name() -> None:
    """In the place where the module is, below `unit` or, where it needs sockets, `integration`."""
    without = []
    for folder in ("protocol", "paths", "asyncio", "transports"):
        for module in (ROOT / PACKAGE / folder).rglob("*.py"):
            place = module.relative_to(ROOT / PACKAGE).with_name(f"test_{module.name}")
            if module.name != "__init__.py" and not list((ROOT / "tests").glob(f"*/{place}")):
                without.append(str(place))
    assert not without, "below tests/unit or tests/integration"


def test_the_allow_list_names_only_the_standard_library() -> None:
    assert sys.stdlib_module_names >= PURE_STDLIB


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("multi.protocol.session", "import asyncio"),
        ("multi.protocol.session", "import os.path"),
        ("multi.protocol.session", "from time import monotonic"),
        ("multi.protocol.session", "import logging"),
        ("multi.protocol.session", "import importlib"),
        ("multi.protocol.session", "from random import Random"),
        ("multi.protocol.session", "def f():\n    import secrets"),
        ("multi.protocol.session", "if TYPE_CHECKING:\n    from socket import socket"),
        ("multi.protocol.session", "import pydantic"),
        ("multi.protocol.session", "open('x')"),
        ("multi.protocol.session", "from multi.asyncio import driver"),
        ("multi.protocol.session", "from multi import transports"),
        ("multi.protocol.session", "from ..transports import base"),
        ("multi.protocol.session", "import multi"),
        ("multi.schedulers.rr", "import pkgutil"),
        ("multi.schedulers.rr", "import cryptography"),
        ("multi.schedulers.rr", "from multi.paths import slots"),
        ("multi.paths.manager", "from multi.protocol.session import Session"),
        ("multi.paths.manager", "from multi.discovery import interfaces"),
        ("multi.lab.sim.link", "import time"),
        ("multi.lab.sim.link", "import random\nrandom.random()"),
        ("multi.lab.sim.link", "import random\nrandom.Random()"),
        ("multi.lab.sim.link", "from random import choice"),
        ("multi.lab.sim.link", "from random import Random\nRandom()"),
        ("multi.transports.tcp.transport", "from multi.protocol.session import Session"),
        ("multi.transports.tcp.transport", "from multi.protocol import session"),
        ("multi.linux.policy_routes", "from multi.transports import tcp"),
        ("multi.config.model", "from multi.asyncio import client"),
        ("multi.types", "from multi.errors import MultiError"),
        ("multi.asyncio.client", "from multi.lab import files"),
        ("multi.asyncio.client", "from multi.cli import main"),
        ("multi.lab.demo.roaming", "from multi.cli import main"),
    ],
)
def test_the_checker_catches(module: str, code: str) -> None:
    assert violations(read(module, code))


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("multi.protocol.sealing", "from cryptography.hazmat.primitives.ciphers import aead"),
        ("multi.protocol.segment", "import struct\nfrom collections.abc import Iterator\nfrom multi import types"),
        ("multi.schedulers.registry", "import pkgutil"),
        ("multi.protocol.session", "from multi.paths import manager\nfrom multi.protocol.streams import Streams"),
        ("multi.lab.sim.link", "import random\nr = random.Random(7)\nr.random()"),
        ("multi.lab.sim.link", "from random import Random\nr = Random(7)"),
        ("multi.transports.tcp.transport", "import socket\nfrom multi.types import Candidate"),
        ("multi.asyncio.client", "import asyncio\nfrom multi.protocol.session import Session\nimport multi.transports"),
        ("multi._exports", "from multi.asyncio.client import connect"),
    ],
)
def test_the_checker_lets_pass(module: str, code: str) -> None:
    assert violations(read(module, code)) == []
