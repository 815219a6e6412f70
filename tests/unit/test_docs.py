"""What the documents name exists: files of this repository, modules and classes of the package."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FILE = re.compile(r"^(?:multi|tests|benchmarks|examples|docs|configs|\.github|\.ci)/(?!results/)[\w./-]*(?:\.\w+|/)$")
DOTTED = re.compile(r"^multi(?:\.\w+)+$")
LOGGER = re.compile(r'getLogger\("([\w.]+)"\)')
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
    assert [link for link in links if not (document.parent / link).exists()] == []
