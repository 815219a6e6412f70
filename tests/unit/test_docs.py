"""What the documents name exists: files of this repository, modules and classes; and the site is whole."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import multi
from docs import build
from multi.reasons import Cause

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FILE = re.compile(r"^(?:multi|tests|benchmarks|examples|docs|configs|\.github|\.ci)/(?!results/)[\w./-]*(?:\.\w+|/)$")
DOTTED = re.compile(r"^multi(?:\.\w+)+$")
LOGGER = re.compile(r'getLogger\("([\w.]+)"\)')
EXCERPT = re.compile(r"```python\n# (examples/\w+\.py)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


def quoted(document: Path) -> Iterator[str]:
    """What stands in backticks, outside of blocks of code."""
    text = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)
    return (match.group(1) for match in re.finditer(r"`([^`\n]+)`", text))


def exists(name: str) -> bool:
    """`name` is a module or package of `multi`, or a name in one."""
    try:
        importlib.import_module(name)
        return True
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        try:
            return hasattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError:
            return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_a_document_names_is_there(document: Path) -> None:
    named = [word for word in quoted(document) if FILE.match(word) and "NAME" not in word]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_and_class_a_document_names_is_there(document: Path) -> None:
    loggers = {name for path in ROOT.glob("multi/**/*.py") for name in LOGGER.findall(path.read_text("utf-8"))}
    named = [word for word in quoted(document) if DOTTED.match(word) and word not in loggers]
    assert [name for name in named if not exists(name)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text("utf-8"))
    generated = {ROOT / name for name in build.GENERATED}
    missing = [link for link in links if not (document.parent / link).exists()]
    assert [link for link in missing if (document.parent / link).resolve() not in generated] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_code_said_to_be_of_an_example_stands_there(document: Path) -> None:
    for name, code in EXCERPT.findall(document.read_text("utf-8")):
        assert code.strip("\n") in (ROOT / name).read_text("utf-8")


def test_the_navigation_of_the_site_leads_to_every_page() -> None:
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")} | set(build.GENERATED)
    assert sorted(build.navigation()) == sorted({*pages, "README.md", "CHANGELOG.md", "CONTRIBUTING.md"}), (
        "the navigation is in zensical.toml"
    )


def test_every_exported_name_has_an_example_and_stands_in_the_reference() -> None:
    assert [*build.exports(), "__version__"] == multi.__all__  # type: ignore[attr-defined] # made when it is asked for
    assert sorted(set(build.exports()) - set(build.examples())) == [], "a function in examples/tour.py will do"
    headings = re.findall(r"^### (\w+)$", build.api_page(), re.MULTILINE)
    assert sorted(headings) == sorted(build.exports())


def test_the_reference_has_every_command_with_its_arguments() -> None:
    page = build.cli_page()
    assert re.findall(r"^##+ (multi .*)$", page, re.MULTILINE) == build.commands()
    assert "| `--forward-to RULES` | Forward for clients" in page
    assert "--speed" not in page, "an argument that is hidden"


def test_every_error_and_every_cause_has_an_explanation() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    errors = {name for name, module in build.exports().items() if module == "multi.errors"}
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) >= errors
    causes = page.split("## Causes")[1]
    assert sorted(re.findall(r"^\| `(\w+)` \|", causes, re.MULTILINE)) == sorted(cause.name for cause in Cause)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 120
