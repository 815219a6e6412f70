"""The shipped configurations that need no network but loopback: a server and its client, as a person would run them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.cli_runner import run_forked as run
from tests.integration.cli_runner import started, wait_for_line
from tests.integration.support import free_port

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def on_another_port(path: Path, port: int) -> Path:
    """The file as it stands but for the port: somebody may have 7788 on this machine."""
    config = json.loads(path.read_text())
    if "listen" in config:
        config["listen"]["port"] = port
    else:
        config["remote_port"] = port
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("server", "client", "prepare", "transports"),
    [
        ("server.json", "tcp_only.json", (), ("tcp",)),
        ("server_with_certificate.json", "loopback_three_transports.json", ("cert", "."), ("tcp", "quic", "mptcp")),
    ],
)
def test_server_and_client_for_one_machine_run(
    tmp_path: Path, server: str, client: str, prepare: tuple[str, ...], transports: tuple[str, ...]
) -> None:
    configs = shutil.copytree(CONFIGS, tmp_path / "configs")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(b"content")
    if prepare:
        assert run(*prepare, cwd=configs).returncode == 0
    port = free_port()
    with started("serve", on_another_port(configs / server, port), "--dir", tmp_path / "served") as process:
        wait_for_line(process, rf"^serving .* port {port} ")
        done = run("get", on_another_port(configs / client, port), "file", "-o", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "copy").read_bytes() == b"content"
    for transport in transports:
        assert f": {transport} over " in done.stdout
