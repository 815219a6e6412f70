"""Make the site: `make docs`, into `build/site`.

The site's sources are a copy of the pages below `build/pages`, where every link leads where it leads in the repository,
with reference pages beside them that are made here: of docstrings for the API and the events, of argparse for the
command line. Zensical makes HTML of that and refuses links and anchors that lead nowhere.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import multi
from multi import _exports
from multi.cli.parser import Parser, make_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
COPIED = ["*.md", "docs/**/*.md", "docs/**/*.png", "examples/*.py", "configs/*.json"]

SECTIONS = {
    "Opening and serving": ["multi.asyncio.api", "multi.workers", "multi.config"],
    "Session, server, streams": ["multi.asyncio"],
    "Errors and reasons": ["multi.errors", "multi.reasons"],
    "Events": ["multi.events"],
    "Schedulers": ["multi.schedulers"],
    "Transports": ["multi.transports"],
    "Values": ["multi.types", "multi.protocol"],
}


def exports() -> dict[str, str]:
    """Each public name and the module it comes from, in the order of `multi`."""
    assert _exports.__file__ is not None
    lines = [line.split() for line in Path(_exports.__file__).read_text("utf-8").splitlines()]
    return {words[3]: words[1] for words in lines if words[:1] == ["from"]}


def section_of(module: str) -> str:
    """The section whose module is the longest beginning of `module`."""
    fitting = {start: title for title, starts in SECTIONS.items() for start in starts if module.startswith(start)}
    return fitting[max(fitting, key=len)]


# --- examples  ---


def examples() -> dict[str, tuple[str, str]]:
    """For each public name the shortest function or class of `examples/` that uses it: (file, source)."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(ROOT.glob("examples/*.py")):
        source = path.read_text("utf-8")
        tree = ast.parse(source)
        imported = {
            alias.name for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "multi"
            for alias in node.names
        }  # fmt: skip
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                text = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
                for name in _used(node, imported):
                    if name not in found or len(text) < len(found[name][1]):
                        found[name] = (path.name, text)
    return found


def _used(tree: ast.AST, imported: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in imported:
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "multi":
            yield node.attr


# --- the API  ---


def api_page() -> str:
    shown = examples()
    lines = [
        "# Python API",
        "",
        "Everything that `import multi` offers. Times are seconds and sizes are bytes unless a name says otherwise.",
        "Each example is taken from a file in `examples/`, which the tests run.",
    ]
    for section in SECTIONS:
        lines += ["", f"## {section}"]
        for name, module in exports().items():
            if section_of(module) == section:
                lines += _entry(name, getattr(multi, name))
                if name in shown:
                    file, source = shown[name]
                    lines += [
                        "",
                        f'??? example "Example: `examples/{file}`"',
                        "",
                        *_indented(f"```python\n{source}\n```"),
                    ]
    return "\n".join(lines) + "\n"


def _entry(name: str, value: Any) -> list[str]:
    lines = ["", f"### {name}", ""]
    if inspect.isclass(value):
        lines += [*_signature("class " + name, value), *_docstring(value)]
        if issubclass(value, multi.Role | multi.Cause | multi.Family | multi.ConnectionState | multi.SessionState
                      | multi.HandoverState):  # fmt: skip
            lines += ["", "Values: " + ", ".join(f"`{member.name}`" for member in value) + "."]
        for member, what in inspect.getmembers_static(value):
            if not member.startswith("_") and _is_ours(value, member, what):
                text = inspect.getdoc(what) or ""
                if isinstance(what, property):
                    lines += ["", f"`{member}`", *_definition(text)]
                else:
                    lines += ["", f"`{'await ' if inspect.iscoroutinefunction(what) else ''}{member}"
                              f"{_parameters(what)}`", *_definition(text)]  # fmt: skip
    elif callable(value) and not hasattr(value, "__supertype__") and hasattr(value, "__name__"):
        lines += [*_signature(name, value), *_docstring(value)]
    else:
        described = _attribute_docs().get(name, "")
        lines += ["```python", f"{name} = {_plain(getattr(value, '__supertype__', value))}", "```", "", described]
    return lines


def _is_ours(owner: type, member: str, what: Any) -> bool:
    """A property or method that `multi` itself defines, with something to say: not what asyncio's classes bring."""
    if not (isinstance(what, property) or inspect.isfunction(what)) or not inspect.getdoc(what):
        return False
    definer = next(base for base in owner.__mro__ if member in vars(base))
    return definer.__module__.startswith("multi")


def _signature(name: str, value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        fields = [f"    {field.name}: {_plain(field.type)}" for field in dataclasses.fields(value)]
        return ["```python", f"{name}:", *(fields or ["    ..."]), "```"]
    if inspect.isclass(value) and (issubclass(value, tuple) or getattr(value, "_is_protocol", False)):
        fields = [f"    {field}: {_plain(kind)}" for field, kind in getattr(value, "__annotations__", {}).items()]
        return ["```python", f"{name}:", *(fields or ["    ..."]), "```"]
    prefix = "await " if inspect.iscoroutinefunction(value) else ""
    parameters = _parameters(value)
    return [
        "```python",
        prefix + name + (parameters.removesuffix(" -> None") if inspect.isclass(value) else parameters),
        "```",
    ]


def _parameters(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    return _plain(signature.replace(parameters=parameters))


def _plain(kind: object) -> str:
    """A type or signature as one writes it."""
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", "") if inspect.isclass(kind) else str(kind)
    text = re.sub(r"<object object at 0x[0-9a-f]+>", "...", text.replace("~", ""))
    return re.sub(r"\b(?:multi|asyncio|collections|typing|types)\.(?:\w+\.)*(?=\w)", "", text).replace("'", "")


def _docstring(value: Any) -> list[str]:
    text = inspect.getdoc(value) or ""
    text = re.sub(r"`?docs/([\w-]+)\.md`?", r"[\1](../\1.md)", text)
    return ["", text] if value.__doc__ and not text.startswith(f"{getattr(value, '__name__', '')}(") else []


def _definition(text: str) -> list[str]:
    return [f":   {line}" if number == 0 else f"    {line}" for number, line in enumerate(text.splitlines())]


def _indented(text: str) -> list[str]:
    return [f"    {line}" if line else "" for line in text.splitlines()]


def _attribute_docs() -> dict[str, str]:
    """The strings below assignments of values: what the types and constants say of themselves."""
    found = {}
    for module in set(exports().values()):
        file = sys.modules[module].__file__
        assert file is not None
        body = ast.parse(Path(file).read_text("utf-8")).body
        for before, after in pairwise(body):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                target = before.targets[0] if isinstance(before, ast.Assign) else before.target
                if isinstance(target, ast.Name) and isinstance(after.value, ast.Constant):
                    found[target.id] = inspect.cleandoc(str(after.value.value))
    return found


# --- the command line  ---


def cli_page() -> str:
    lines = [
        "# Command line",
        "",
        "`multi` alone lists its commands, `multi COMMAND --help` says what is below. Exit codes: 0 done, 1 failed,",
        "2 usage or configuration, 130 interrupted.",
        "",
        "CONFIG is a file, or for clients a URL: `multi://HOST:PORT?OPTION=VALUE`",
        "([options](../configuration.md#without-a-file)).",
    ]
    for words, parser in _commands(make_parser(), "multi"):
        lines += ["", f"{'##' if words.count(' ') == 1 else '###'} {words}", ""]
        lines += [_sentence(parser.description or ""), "", "```text", parser.format_usage().strip(), "```"]
        rows = [row for action in parser._actions if (row := _argument(action))]
        lines += ["", "| argument | |", "|---|---|", *rows] if rows else []
    return "\n".join(lines) + "\n"


def commands() -> list[str]:
    """The names of all commands, subcommands included."""
    return [words for words, _ in _commands(make_parser(), "multi")]


def _commands(parser: Parser, words: str) -> Iterator[tuple[str, Parser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                command.complete()
                yield f"{words} {name}", command
                yield from _commands(command, f"{words} {name}")


def _argument(action: argparse.Action) -> str:
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
        return ""
    allowed = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest
    value = "" if action.nargs == 0 else str(action.metavar or allowed)
    names = ", ".join(f"`{option} {value}`".replace(" `", "`") for option in action.option_strings) or f"`{value}`"
    return f"| {names} | {_sentence(action.help or '')} |".replace("\n", " ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- events  ---


def events_page() -> str:
    lines = [
        "# Events",
        "",
        "`async for event in session.events()` tells what happens to a session. Each subscription is its own: it",
        "begins with one `ConnectionChanged` for every connection there is, and ends with the session. `str(event)`",
        "is a sentence for people. A program that is too slow misses events and gets an `EventsDropped` that counts",
        "them; nothing else waits for it. A reason has a `cause` for programs: see [errors](errors.md#causes).",
    ]
    for name, module in exports().items():
        value = getattr(multi, name)
        if module == "multi.events" and dataclasses.is_dataclass(value):
            lines += ["", f"## {name}", "", *_signature("class " + name, value), *_docstring(value)]
    return "\n".join(lines) + "\n"


GENERATED = {
    "docs/reference/api.md": api_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/events.md": events_page,
}


def navigation() -> list[str]:
    """The pages that the navigation of the site names."""

    def below(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from below(inner)

    return list(below(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]))


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    for pattern in COPIED:
        for path in ROOT.glob(pattern):
            target = PAGES / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for name, page in GENERATED.items():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / name).write_text(page(), "utf-8")
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(ROOT / "zensical.toml")]
    done = subprocess.run(zensical, cwd=ROOT, check=False)
    print("the site is in build/site: open build/site/index.html" if done.returncode == 0 else "docs: not made")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
