"""What the README and the page of the command line show works as it stands."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import multi
from multi.cli.parser import make_parser
from tests.integration.cli_runner import Files, started, wait_for_line
from tests.integration.cli_runner import run_forked as run

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "how-to" / "command-line.md").read_text()
NETWORKS = (ROOT / "docs" / "how-to" / "choose-networks.md").read_text()
ENDLESS = ("serve", "forward", "connect", "demo", "testbed", "bench", "top")
"""Commands that go on until they are ended, take the better part of a minute, or look at such a one: tests of their own
run them."""


def first_block(page: str, language: str = "") -> str:
    found = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def commands() -> list[list[str]]:
    """The words of every `multi ...` on the page of the command line, ssh's ProxyCommand among them."""
    lines = first_block(COMMAND_LINE).splitlines()
    proxied = [re.sub(r".*ProxyCommand='(.*?)'.*", r"\1", line).replace("%h:%p", "localhost:22") for line in lines]
    return [shlex.split(line, comments=True) for line in proxied]


def test_client_and_server_of_the_readme_run() -> None:
    code = first_block(README, "python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'HELLO OVER TWO CONNECTIONS\\n'\n"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_of_the_readme_uses_what_there_is(code: str) -> None:
    tree = compile(code, "README.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    owners = {"multi": multi, "connection": multi.ConnectionInfo}
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    for node in used:
        assert isinstance(node.value, ast.Name)
        if node.value.id in owners:
            assert hasattr(owners[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


def test_the_first_configuration_that_is_shown_loads_without_a_warning() -> None:
    assert multi.load_config(json.loads(first_block(NETWORKS, "json"))).warnings() == ()


def test_every_command_that_is_shown_is_understood_and_every_command_is_there() -> None:
    parser = make_parser()
    for program, *arguments in commands():
        assert program == "multi"
        parser.parse_args(arguments[: arguments.index(">")] if ">" in arguments else arguments)
    known = set(re.findall(r"^    (\w+) ", parser.format_help(), re.MULTILINE))
    assert {words[1] for words in commands()} ^ known == set(), "the page is docs/how-to/command-line.md"


def test_commands_run_in_the_order_they_are_shown_in(tmp_path: Path) -> None:
    files = Files(tmp_path)
    shutil.rmtree(tmp_path / "certs")  # the first of them makes these
    files.server_config()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "big.iso").write_bytes(bytes(100_000))
    (tmp_path / "photo.raw").write_bytes(b"photo")
    with ExitStack() as stack:
        for _, *arguments in commands():
            if arguments[:2] == ["serve", "server.json"] and "--dir" in arguments:
                server = stack.enter_context(started(*arguments, cwd=tmp_path))
                port = int(wait_for_line(server, r"^serving files on .* port (\d+) ")[1])
                files.client_config(port, "tcp", "mptcp")
            elif arguments[0] not in ENDLESS:
                if arguments[0] == "trace":
                    assert run("ls", "client.json", "--trace", "traces", cwd=tmp_path).returncode == 0
                    (trace,) = (tmp_path / "traces").glob("*.sqlog")
                    trace.rename(tmp_path / arguments[1])
                words, _, target = " ".join(arguments).partition(" > ")
                done = run(*words.split(), cwd=tmp_path)
                assert done.returncode == 0, f"{words}: {done.stderr}"
                assert done.stdout
                if target:
                    (tmp_path / target).write_text(done.stdout)
    assert (tmp_path / "big.iso").read_bytes() == bytes(100_000)
    assert (tmp_path / "files" / "photo.raw").read_bytes() == b"photo"
