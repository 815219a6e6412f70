"""Where the command line does something else than a person expects, or does not say what helps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multi.lab.testbed import paper_links
from multi.lab.testbed.pytest_plugin import MakeTestbed, make_testbed
from tests.findings.bounded import given
from tests.integration.cli_runner import Files
from tests.integration.cli_runner import run_forked as run

__all__ = ["make_testbed"]

COMMANDS = ("serve", "get", "put", "check", "interfaces", "schema", "cert", "bench", "demo", "testbed")
CONTENT = "what the file holds\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def port(files: Files) -> Iterator[int]:
    """Of a server with one file, `letter`."""
    (files.served / "letter").write_text(CONTENT)
    with files.serving() as (_, port):
        yield port


# --- usage ---


def test_without_a_command_all_commands_are_listed() -> None:
    done = run()
    assert set(COMMANDS) <= set(re.findall(r"\w+", done.stdout + done.stderr))


def test_for_a_mistyped_command_the_right_one_is_suggested() -> None:
    done = run("chekc")
    given(done.returncode == 2, done.stderr)
    assert re.search(r"(did you|maybe you|perhaps you) mean\S*\W+check\b", done.stderr), done.stderr


def test_a_minus_as_output_is_standard_output(files: Files, port: int) -> None:
    done = run("get", files.client_config(port), "letter", "-o", "-", cwd=files.here)
    given(done.returncode == 0, done.stderr)
    made = [path.name for path in files.here.iterdir()]
    for name in made:
        (files.here / name).unlink()
    assert (done.stdout, made) == (CONTENT, [])


# --- messages ---


def test_an_error_comes_without_lines_of_the_quic_engine(files: Files, port: int) -> None:
    other = run("cert", files.root / "other-certs")
    given(other.returncode == 0, other.stderr)
    trusts = {"ca": "other-certs/ca.pem", "server_name": "localhost"}
    done = run("get", files.client_config(port, "quic", name="other.json", ssl_config=trusts), "letter", cwd=files.here)
    given(done.returncode == 1 and "certificate verify failed" in done.stderr, done.stderr)
    assert done.stderr.startswith("multi: "), done.stderr


def test_an_error_names_the_file_once(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    done = run("check", "broken.json", cwd=tmp_path)
    given(done.returncode == 2, done.stderr)
    assert done.stderr.count("broken.json") == 1, done.stderr


def test_check_names_an_unknown_server_once_per_line(tmp_path: Path) -> None:
    config = {"remote_host": "no-such-host.invalid", "connection_priority": [["tcp", "ipv4", "any"]]}
    (tmp_path / "client.json").write_text(json.dumps(config))
    done = run("check", "client.json", cwd=tmp_path)
    given("NOT usable" in done.stdout, done.stdout)
    rejections = [line for line in done.stdout.splitlines() if re.match(r" +no: ", line)]
    given(rejections, done.stdout)
    assert [line for line in rejections if line.count("no-such-host.invalid") > 1] == []


# --- what `check` does ---


@pytest.fixture
def foreign(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """`multi check` of a configuration that somebody else has written, and brings a module along."""
    (tmp_path / "planted.py").write_text('open("traces", "w").close()\nclass Scheduler: select = None\n')

    def check(scheduler: str) -> subprocess.CompletedProcess[str]:
        config = {
            "remote_host": "127.0.0.1",
            "connection_priority": [["tcp", "ipv4", "any"]],
            "multi_config": {"scheduler": scheduler},
        }
        (tmp_path / "foreign.json").write_text(json.dumps(config))
        return run("check", "foreign.json", cwd=tmp_path)

    return check


def test_checking_a_configuration_with_a_scheduler_of_ours_runs_to_its_end(
    foreign: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    assert foreign("adaptive").returncode == 0
    assert not (tmp_path / "traces").exists()


def test_checking_a_configuration_runs_no_module_it_names(
    foreign: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    assert "warning: multi_config.scheduler: planted:Scheduler is code" in foreign("planted:Scheduler").stdout
    assert not (tmp_path / "traces").exists()


def test_checking_a_configuration_calls_no_function_it_names(
    foreign: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    assert foreign("os:abort").returncode in (0, 1, 2)


def test_a_private_key_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    files = Files(tmp_path)
    config = files.server_config()
    usable = run("check", config)
    given(usable.returncode == 0 and "warning" not in usable.stdout, usable.stdout)
    (files.root / "certs" / "server-key.pem").chmod(0o666)
    done = run("check", config)
    said = done.stdout + done.stderr
    assert [line for line in said.splitlines() if "warning" in line and "key" in line], said


# --- testbeds ---


def test_the_list_of_testbeds_shows_a_blackhole(tmp_path: Path, make_testbed: MakeTestbed) -> None:
    make_testbed(paper_links()).close()  # skips where nothing is allowed
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)

    def testbed(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "multi", "testbed", *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {"XDG_RUNTIME_DIR": str(runtime)},
            timeout=20,
            check=True,
        )
        return done.stdout

    given("wifi" in testbed("up", "--name", "shown"))
    try:
        testbed("set", "shown", "wifi", "blackhole=on")
        assert "blackhole" in testbed("list")
    finally:
        testbed("down", "shown")
