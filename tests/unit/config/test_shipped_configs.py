"""The shipped example configurations: all load, are documented, and mean what is said there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from multi.cli.parser import make_parser
from multi.config import load_config
from multi.transports.mptcp.settings import MptcpSettings
from multi.transports.quic.settings import QuicSettings
from multi.transports.tcp.settings import TcpSettings
from multi.types import Role

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.json"))
DOCUMENTATION = (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_loads_without_a_warning(path: Path) -> None:
    assert load_config(path).warnings() == ()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_documented(path: Path) -> None:
    assert f"| `{path.name}` |" in DOCUMENTATION


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.stem != "paper_figure2"], ids=lambda path: path.stem)
def test_every_shipped_config_says_what_to_fill_in(path: Path) -> None:
    config = load_config(path)
    assert config.comment is not None
    text = path.read_text()
    if any(placeholder in text for placeholder in ("server.example", "2001:db8:", "192.0.2.")):
        assert "remote_host" in config.comment
    for file in re.findall(r"[\w-]+\.(?:pem|psk|json)", text.replace(config.comment, "")):
        assert file in config.comment
    for file in re.findall(r"[\w-]+\.json", config.comment):
        assert (path.parent / file).exists()
    for command in re.findall(r"`multi ([^`]*)`", config.comment):
        arguments = command.partition(" >")[0].replace("DIR", ".").split()
        if len(arguments) > 1:
            make_parser().parse_args(arguments)


def test_a_comment_is_any_text_and_changes_nothing() -> None:
    client = {"connection_priority": [["tcp", "any", "any"]], "remote_host": "a"}
    commented = load_config({**client, "comment": "two\nlines " * 100})
    assert commented.model_copy(update={"comment": None}) == load_config(client)
    assert commented.warnings() == ()


def test_there_are_configs_for_both_sides() -> None:
    assert {load_config(path).is_server for path in CONFIGS} == {True, False}


def test_figure_2_of_the_paper_loads_with_the_meaning_it_has_there() -> None:
    config = load_config(ROOT / "configs" / "paper_figure2.json")
    assert [(e.transport, e.ip, e.interface) for e in config.connection_priority] == [
        ("mptcp", "ipv6", ("eth", "wifi")),
        ("quic", "ipv6", ("cellular",)),
        ("tcp", "ipv6", ("cellular",)),
    ]
    assert (config.multi_config.connect, config.multi_config.scheduler.name) == ("seq", "RR")
    assert (config.remote_host, config.remote_port, config.session_id) == ("mcserver", 7788, "random")
    assert config.transport_settings().section("mptcp", MptcpSettings).scheduler == "RR"
    assert config.wifi_config.power_savings is False
    settings = config.transport_settings()
    assert settings.section("quic", QuicSettings).idle_timeout == 5
    tcp = settings.section("tcp", TcpSettings)
    assert (tcp.nagle, tcp.idle_timeout) == (False, 10)
    assert settings.tls is not None
    assert settings.tls.ca == ROOT / "configs" / "cert_name"


def test_figure_2_loads_with_the_keys_of_the_paper_alone() -> None:
    figure = json.loads((ROOT / "configs" / "paper_figure2.json").read_text())
    for key in ("remote_port", "interfaces"):
        del figure[key]
    assert load_config(figure).remote_port == 7788


def test_the_backup_config_keeps_the_mobile_network_in_reserve() -> None:
    backup = load_config(ROOT / "configs" / "backup_cellular.json").connection_priority[-1]
    assert (backup.interface, backup.role, backup.cost) == (("cellular",), Role.BACKUP, 10)
    assert backup.max_rate == 625_000


def test_the_json_examples_of_the_documentation_are_json() -> None:
    blocks = [part.partition("```")[0] for part in DOCUMENTATION.split("```json")[1:]]
    assert len(blocks) >= 8
    for block in blocks:
        json.loads(block)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"multi_config": {"conect": "seq"}}, "multi_config.conect: unknown key"),
        ({"remote_port": 70000}, "remote_port: found 70000; allowed: a whole number from 1 to 65535"),
        ({"ssl_config": {"tls": "TLSv1.2"}}, 'ssl_config.tls: found "TLSv1.2"'),
        ({"multi_config": {"scheduler": {"name": "top_throughput", "m": 1}}}, "multi_config.scheduler.m: "),
        ({"listen": {}}, 'listen: found together with "connection_priority"'),
    ],
)
def test_the_error_examples_of_the_documentation_are_real(change: dict[str, object], message: str) -> None:
    config = {"connection_priority": [["tcp", "any", "any"]], "remote_host": "a", **change}
    with pytest.raises(ValueError) as caught:
        load_config(config)
    assert str(caught.value).startswith(message)
    assert str(caught.value) in DOCUMENTATION
