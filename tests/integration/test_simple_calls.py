"""Sessions without a configuration: host and port, options, URLs; keys that a server makes for itself; `multi ping`."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.config import options
from multi.linux.mptcp_pm import mptcp_available
from tests.integration import cli_runner
from tests.integration.support import HOST, LOOPS, run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keys of servers go here, and each test is warned anew."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(options, "_warned", False)
    return iter([tmp_path / "state" / "multi"])


async def shouts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for line in reader:
        writer.write(line.upper())
    writer.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
    """The session, after it has carried something."""
    writer.write(b"hello\n")
    assert await reader.readline() == b"HELLO\n"
    session = writer.get_extra_info("session")
    writer.close()
    await writer.wait_closed()
    return session


@pytest.mark.parametrize("loop", LOOPS)
def test_host_and_port_are_enough(loop: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.config.options._warned", False)  # earlier tests are part of this program

    async def scenario() -> None:
        async with await multi.start_server(shouts, HOST, 0) as server:
            for _ in range(2):
                session = await answer(*await multi.open_connection(HOST, server.port))
                assert [(c.transport, c.sealed) for c in session.connections] == [("tcp", True)]
            async with multi.connect(HOST, server.port, interfaces=["127.0.0.1", "127.0.0.2"]) as session:
                assert session.scheduler == "adaptive"

    run(scenario(), loop)
    warned = [record.message for record in caplog.records if "nobody proves who the server is" in record.message]
    assert len(warned) == 1, "once for a program"
    assert "identity=True" in warned[0]


def test_options_say_what_keys_say() -> None:
    async def scenario() -> None:
        async with await multi.start_server(shouts, HOST, 0, transports="tcp", limits={"max_sessions": 5}) as server:
            given: dict[str, Any] = {
                "interfaces": "127.0.0.1,127.0.0.2",
                "scheduler": "RR",
                "wait": "all",
                "resume_timeout": 3,
                "ssl": None,  # as programs pass it on to asyncio when there is none
            }
            reader, writer = await multi.open_connection(HOST, server.port, **given)
            session = await answer(reader, writer)
            assert [c.local.partition(":")[0] for c in session.connections] == ["127.0.0.1", "127.0.0.2"]
            assert session.scheduler == "RR"

    run(scenario())


@pytest.mark.parametrize("transports", ["tcp", "quic", "mptcp", ["mpquic", "quic"]], ids=str)
def test_the_url_of_a_server_leads_to_what_it_listens_for(transports: str | list[str], state: Iterator[Path]) -> None:
    if transports == "mptcp" and not mptcp_available():
        pytest.skip("this kernel has no MPTCP")

    async def scenario() -> None:
        server = await multi.start_server(shouts, HOST, 0, identity=True, transports=transports)
        session = await answer(*await multi.open_connection(server.url))
        wanted = {"mptcp": "tcp"}.get(transports, transports) if isinstance(transports, str) else transports[0]
        assert [c.transport for c in session.connections] == [wanted]
        server.close()
        await server.wait_closed()

    run(scenario())


@pytest.mark.parametrize("transport", ["tcp", "quic"])
def test_a_server_makes_keys_once_and_clients_know_it_by_its_url(
    transport: str, state: Iterator[Path], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[str]:
        urls = []
        for _ in range(2):
            server = await multi.start_server(shouts, HOST, 0, identity=True)
            session = await answer(*await multi.open_connection(f"{server.url}&transports={transport}"))
            assert [(c.transport, c.secure) for c in session.connections] == [(transport, True)]
            urls.append(server.url)
            server.close()
            await server.wait_closed()
        return urls

    async def unbound() -> None:
        (await multi.start_server(shouts, HOST, 0, identity=True, start_serving=False)).close()

    run(unbound())
    assert capsys.readouterr().out == "", "there is no port yet"
    urls = run(scenario())
    assert urls[0].partition("?")[2] == urls[1].partition("?")[2], "the key is kept"
    assert f"clients reach this server by {urls[0]}\n" in capsys.readouterr().out
    assert not [record for record in caplog.records if "proves" in record.message]
    (directory,) = state
    for file in directory.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(file.name for file in directory.iterdir()) == ["server-cert.pem", "server-key.pem"]


def test_a_client_writes_no_keys_and_skips_no_verification(state: Iterator[Path]) -> None:
    async def scenario() -> None:
        async with await multi.start_server(shouts, HOST, 0, identity=True) as server:
            wrong = server.url.partition("?")[0] + "?pin=sha256/" + "A" * 43 + "="
            with pytest.raises(multi.NoUsableConnection, match="pin"):
                await multi.open_connection(wrong)
            with pytest.raises(multi.MultiError):
                await multi.open_connection(HOST, server.port)

    run(scenario())
    (directory,) = state
    assert len(list(directory.iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        ((HOST, 1), {"schedular": "RR"}, "did you mean scheduler=?"),
        ((HOST, 1), {"intrfaces": "any"}, "no option; allowed: abandon_timeout, ca, cert,"),
        ((HOST, 1), {"ssl": True}, "asyncio's; in its place there is ca="),
        ((HOST, 1), {"sock": 3}, "asyncio's; in its place there is nothing here"),
        ((HOST, 1), {"transports": "quic"}, "quic without ca= or pin="),
        ((HOST, 1), {"transports": "mpquic"}, "mpquic without ca= or pin="),
        ((HOST, 1), {"transports": "tcp,mpquick"}, 'did you mean "mpquic"?'),
        ((HOST, 1), {"interfaces": "celular"}, 'did you mean "cellular"?'),
        ((HOST, "7788"), {}, 'port: found "7788"'),
        ((HOST, True), {}, "port: found true"),
        ((None, 7788), {}, "host: found null"),
        (({"listen": {}},), {"scheduler": "RR"}, "allowed: with host and port"),
        (("multi://",), {}, "allowed: multi://HOST:PORT"),
        (("multi://host:port",), {}, "allowed: multi://HOST:PORT"),
        (("multi://host/path",), {}, "allowed: multi://HOST:PORT"),
        (("multi://host?ca=a&ca=b",), {}, "found ca twice"),
        (("multi://host?verify=false",), {}, "ssl_config.verify"),
    ],
)
def test_what_cannot_be_meant_is_said(arguments: tuple[Any, ...], given: dict[str, Any], message: str) -> None:
    with pytest.raises(multi.ConfigError) as caught:
        run(multi.open_connection(*arguments, **given))
    assert message in str(caught.value)


def test_urls_are_configurations() -> None:
    config = multi.load_config("multi://[::1]:99?interfaces=wifi,5g&transports=tcp,quic&ca=ca.pem&open_timeout=2.5")
    assert (config.remote_host, config.remote_port, config.multi_config.open_timeout) == ("::1", 99, 2.5)
    assert [(entry.transport, entry.interface) for entry in config.connection_priority] == [
        ("tcp", ("wifi",)),
        ("quic", ("wifi",)),
        ("tcp", ("cellular",)),
        ("quic", ("cellular",)),
    ]
    assert config.ssl_config is not None
    assert config.ssl_config.verify
    assert multi.load_config("multi://server.example").remote_port == 7788
    pin = "sha256/" + "+" * 42 + "A="
    pinned = multi.load_config(f"multi://server.example?pin={pin}")
    assert pinned.ssl_config is not None
    assert (pinned.ssl_config.pin, pinned.ssl_config.verify) == ((pin,), False)


def test_kinds_have_the_names_that_people_type() -> None:
    named = {"ethernet": "eth", "Wi-Fi": "wifi", "LTE": "cellular", "4g": "cellular", "5G": "cellular"}
    for name, kind in named.items():
        config = multi.load_config({"connection_priority": [["tcp", "any", name]], "remote_host": "h"})
        assert config.connection_priority[0].interface == (kind,)


# --- the command line ---


async def ping(url: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(cli_runner.run_forked, "ping", url)
    return done.returncode, done.stdout, done.stderr


def test_ping_measures_every_connection_and_says_what_a_session_would_do() -> None:
    async def scenario() -> None:
        async with await multi.start_server(shouts, HOST, 0) as server:
            code, out, err = await ping(f"multi://{HOST}:{server.port}?interfaces=127.0.0.1,127.0.0.2")
            assert code == 0, err
            lines = out.splitlines()
            assert [line.split(": open; round trip")[0] for line in lines[:2]] == [
                f"tcp over 127.0.0.{number} to {HOST}:{server.port}" for number in (1, 2)
            ]
            assert lines[-1] == (
                "a session sends over tcp over 127.0.0.1, tcp over 127.0.0.2: aggregate, scheduler adaptive"
            )
            code, out, err = await ping(f"multi://{HOST}:{server.port}?interfaces=127.0.0.1,nosuch0")
            assert code == 1
            assert "nosuch0" in out
            port = server.port
        code, out, err = await ping(f"multi://{HOST}:{port}")
        assert code == 1
        assert "refused" in out + err

    cli_runner.prepare_to_fork()
    run(scenario())


def test_interfaces_as_json() -> None:
    done = cli_runner.run("interfaces", "--json")
    assert done.returncode == 0
    found = {interface["name"]: interface for interface in json.loads(done.stdout)}
    assert found["lo"]["kind"] == "loopback"
    assert HOST in [address["address"] for address in found["lo"]["addresses"]]
