"""Pre-shared keys: from a file or the environment, never told to anybody, and what is said when they do not fit."""

from __future__ import annotations

import logging
import ssl
import traceback
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.asyncio import server as server_module
from multi.asyncio.settings import session_settings
from multi.config import Config, load_config
from multi.config.keys import load_keys
from multi.transports.certificates import pin_of, stamp
from tests.integration.cli_runner import Files
from tests.integration.cli_runner import run_forked as run_command
from tests.integration.support import Inbox, Way, run, until

ALICE, BOB = "a1" * 32, "b2" * 48
VARIABLE = "MULTI_TEST_KEYS"
CLIENT: dict[str, Any] = {"connection_priority": [["tcp", "ipv4", "any"]], "remote_host": "127.0.0.1"}


def client(**auth: str) -> multi.Config:
    return load_config({**CLIENT, "auth": auth})


@pytest.mark.parametrize("separator", [",", "\n", "\r\n", " , ", ",\n,"])
def test_keys_of_the_environment_are_separated_by_commas_or_newlines(
    separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"alice:{ALICE}{separator}bob:{BOB}")
    assert load_keys(client(psk_env=VARIABLE)) == {b"alice": bytes.fromhex(ALICE), b"bob": bytes.fromhex(BOB)}
    settings = session_settings(client(psk_env=VARIABLE, psk_id="bob"))
    assert (settings.psk_id, settings.psk) == (b"bob", bytes.fromhex(BOB))
    assert BOB not in repr(settings)
    assert repr(bytes.fromhex(BOB)) not in repr(settings)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "auth.psk_env: the environment variable MULTI_TEST_KEYS is not set"),
        ("", "auth.psk_env: MULTI_TEST_KEYS holds no key"),
        (ALICE, "auth.psk_env: MULTI_TEST_KEYS entry 1 is not 'id:key'"),
        (f"alice:{ALICE},bob:{BOB}x", "auth.psk_env: MULTI_TEST_KEYS entry 2 is not 'id:key'"),
        (f"alice:{ALICE[:30]}", "auth.psk_env: MULTI_TEST_KEYS entry 1 is not 'id:key'"),
        (f"{'i' * 65}:{ALICE}", "auth.psk_env: MULTI_TEST_KEYS entry 1 is not 'id:key'"),
        (f"alice:{ALICE},alice:{BOB}", "auth.psk_env: MULTI_TEST_KEYS entry 2 has the id of an earlier one"),
        (f"alice:{ALICE}", "auth.psk_id: MULTI_TEST_KEYS holds no key 'bob'"),
    ],
)
def test_a_mistake_in_the_environment_is_named_and_no_key_is_shown(
    value: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(multi.ConfigError) as caught:
        session_settings(client(psk_env=VARIABLE, psk_id="bob"))
    assert str(caught.value).startswith(message)
    assert caught.value.key_path == message.partition(":")[0]
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert not any(key[:16] in told for key in (ALICE, BOB))


def test_keys_from_the_environment_open_a_session_and_appear_nowhere(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, f"alice:{ALICE},bob:{BOB}")
    auth = {"auth": {"psk_env": VARIABLE, "psk_id": "bob"}}

    async def scenario() -> None:
        way, inbox = Way(development_certificates), Inbox()
        server = await multi.start_server(inbox.on_client, way.server(auth={"psk_env": VARIABLE}))
        async with multi.connect(way.client(server.port, **auth)) as session:
            await session.confirmed()
            end = await inbox.session()
            assert end.writer.get_extra_info("psk_id") == "bob"
            shown = repr((session, server, end, vars(server), load_config(way.client(server.port, **auth))))
            assert BOB not in shown.replace(repr(server.__dict__.get("_keys")), "")
        server.abort()
        await server.wait_closed()

    with caplog.at_level(logging.DEBUG):
        run(scenario())
    assert not any(key in caplog.text for key in (ALICE, BOB))


def test_a_server_takes_up_changes_of_its_file_of_keys_and_sessions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "CERTIFICATES_LOOKED_AT", 0.02)
    way, keys, hers, his = Way(tmp_path), *(tmp_path / name for name in ("keys", "alice", "bob"))
    hers.write_text(f"alice:{ALICE}\n")
    his.write_text(f"bob:{BOB}\n")
    keys.write_text(hers.read_text())

    async def opens(port: int, has: Path) -> bool:
        few = {"multi_config": {"open_timeout": 1.0, "resume_timeout": 0.5}}
        try:
            async with multi.connect(way.client(port, auth={"psk_file": str(has)}, **few)) as session:
                await session.confirmed()
        except multi.SessionRefused:
            return False
        return True

    async def scenario() -> None:
        inbox = Inbox()
        server = await multi.start_server(inbox.on_client, way.server(auth={"psk_file": str(keys)}))
        async with multi.connect(way.client(server.port, auth={"psk_file": str(hers)})) as session:
            await session.confirmed()
            reader, _ = await inbox.next()
            assert not await opens(server.port, his)
            keys.write_text("no key")
            await until(lambda: "cannot be used, the old ones stay" in caplog.text)
            assert await opens(server.port, hers)
            his.replace(keys)
            his.write_text(keys.read_text())
            await until(lambda: "certificates and keys were renewed" in caplog.text)
            assert [await opens(server.port, has) for has in (hers, his)] == [False, True]
            session.writer.write(b"still there")
            assert await reader.readexactly(11) == b"still there"
        server.abort()
        await server.wait_closed()

    with caplog.at_level(logging.INFO, "multi.server"):
        run(scenario())
    assert not any(key in caplog.text for key in (ALICE, BOB))


def test_of_a_file_of_keys_without_an_end_only_so_much_is_read(tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(multi.ConfigError, match=r"auth.psk_file: cannot read .*endless: more than 16777216 bytes"):
        load_keys(client(psk_file=str(endless)))


@pytest.mark.parametrize("way", ["tcp-sealed", "tcp-tls", "quic"])
@pytest.mark.parametrize("who", ["client", "server", "another id", "another key"])
def test_keys_that_do_not_fit_are_a_clear_error(
    way: str,
    who: str,
    development_certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(VARIABLE, f"alice:{ALICE}")
    monkeypatch.setenv("OTHER_ID", f"bob:{ALICE}")
    monkeypatch.setenv("OTHER_KEY", f"alice:{BOB}")
    wants = {"auth": {"psk_env": VARIABLE}}
    server_has: dict[str, Any] = {} if who == "client" else wants
    client_has: dict[str, Any] = {
        "client": wants,
        "server": {},
        "another id": {"auth": {"psk_env": "OTHER_ID"}},
        "another key": {"auth": {"psk_env": "OTHER_KEY"}},
    }[who]

    async def scenario() -> str:
        described, inbox = Way(development_certificates, way), Inbox()
        server = await multi.start_server(inbox.on_client, described.server(**server_has))
        patient = {"multi_config": {"open_timeout": 2.0, "resume_timeout": 0.5}}
        with pytest.raises((multi.SessionRefused, multi.SessionLost, multi.NoUsableConnection)) as caught:
            async with multi.connect(described.client(server.port, **client_has, **patient)) as session:
                await session.confirmed()
        server.abort()
        await server.wait_closed()
        return str(caught.value)

    with caplog.at_level(logging.INFO):
        said = run(scenario())
    print(way, who, said)
    assert "pre-shared key" in said
    assert ALICE not in said + caplog.text


@pytest.mark.parametrize("name", ["sensors", "a" * 64])
def test_a_key_that_was_made_can_be_used_and_is_another_each_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [run_command("psk", name).stdout for _ in range(2)]
    assert made[0] != made[1]
    monkeypatch.setenv(VARIABLE, made[0])
    ((found, key),) = load_keys(load_config({**CLIENT, "auth": {"psk_env": VARIABLE, "strict": True}})).items()
    assert (found, len(key)) == (name.encode(), 32)


@pytest.mark.parametrize(
    "name", ["", "a:b", "a,b", "a b", "#a", "a\n", "\N{LATIN SMALL LETTER E WITH ACUTE}", "a" * 65]
)
def test_what_cannot_be_the_name_of_a_key_is_refused(name: str) -> None:
    made = run_command("psk", name)
    assert (made.returncode, made.stdout) == (2, "")
    assert "allowed: at most 64 ASCII letters" in made.stderr


def test_a_key_file_that_others_can_read_is_a_warning(
    development_certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.psk"
    path.write_text(f"alice:{ALICE}\n")
    path.chmod(0o644)
    auth = {"auth": {"psk_file": str(path)}}

    async def scenario() -> None:
        way, inbox = Way(development_certificates), Inbox()
        server = await multi.start_server(inbox.on_client, way.server(**auth))
        assert caplog.text.count("can be read by others") == 1  # the server's
        async with multi.connect(way.client(server.port, **auth)) as session:
            async for event in session.events():
                if isinstance(event, multi.Warned):
                    assert event.message == f"auth.psk_file: {path} can be read by others; use mode 0600"
                    break
        server.abort()
        await server.wait_closed()

    run(scenario())
    assert caplog.text.count("can be read by others") == 2
    path.chmod(0o600)
    caplog.clear()
    run(scenario_without_warning(Way(development_certificates), auth))
    assert not caplog.text


async def scenario_without_warning(way: Way, auth: dict[str, Any]) -> None:
    server = await multi.start_server(Inbox().on_client, way.server(**auth))
    async with multi.connect(way.client(server.port, **auth)) as session:
        await session.confirmed()
    server.abort()
    await server.wait_closed()


@pytest.mark.parametrize("key", ["cert", "key", "ca", "client_ca"])
def test_missing_certificate_file_is_named_with_its_key(key: str, development_certificates: Path) -> None:
    way = Way(development_certificates, "tcp-tls")
    own = way.server()["ssl_config"]
    listening = way.server() | {"ssl_config": own | {key: "absent.pem"}}
    dialling = way.client(9) | {"ssl_config": own | {key: "absent.pem"}}
    named = rf"ssl_config\.{key}: cannot read .*absent\.pem: no such file"

    async def scenario() -> None:
        if key != "ca":
            with pytest.raises(multi.ConfigError, match=named):
                await multi.start_server(lambda reader, writer: None, listening)
        if key != "client_ca":
            with pytest.raises(multi.ConfigError, match=named):
                await multi.open_connection(dialling)

    run(scenario())


def test_files_that_are_not_used_may_be_missing(development_certificates: Path) -> None:
    way = Way(development_certificates, "tcp-tls")
    listening, dialling = way.server(), way.client(0)
    listening["ssl_config"] = listening["ssl_config"] | {"ca": "absent.pem"}
    unused = [
        dialling["ssl_config"] | {"client_ca": "absent.pem"},
        dialling["ssl_config"] | {"cert": "absent.pem"},
        {"verify": False, "ca": "absent.pem"},
    ]

    async def scenario() -> None:
        server = await multi.start_server(Inbox().on_client, listening)
        for ssl_config in unused:
            async with multi.connect(dialling | {"remote_port": server.port, "ssl_config": ssl_config}):
                pass
        server.abort()
        await server.wait_closed()

    run(scenario())


@pytest.mark.parametrize("section", ["tcp_config", "mptcp_config"])
def test_a_server_does_not_start_with_congestion_control_that_no_connection_could_have(
    section: str, development_certificates: Path
) -> None:
    config = Way(development_certificates).server(**{section: {"congestion": "none-such"}})
    config["listen"]["transports"] = ["tcp", "mptcp"]

    async def scenario() -> None:
        with pytest.raises(multi.TransportError, match=rf"{section}\.congestion: .*'none-such' is not available"):
            await multi.start_server(lambda reader, writer: None, config)

    run(scenario())


def test_what_the_host_does_not_do_is_said_by_sessions_and_servers(
    development_certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    way, wanted = Way(development_certificates, "mptcp"), {"mptcp_config": {"scheduler": "none-such"}}

    async def scenario() -> None:
        server = await multi.start_server(Inbox().on_client, way.server(**wanted))
        assert "mptcp_config.scheduler 'none-such' is not in force" in caplog.text
        async with multi.connect(way.client(server.port, **wanted)) as session:
            async for event in session.events():
                if isinstance(event, multi.Warned):
                    assert "mptcp_config.scheduler 'none-such' is not in force" in event.message
                    break
        server.abort()
        await server.wait_closed()

    run(scenario())


def test_check_shows_pins_and_what_is_doubtful_about_keys(tmp_path: Path) -> None:
    files = Files(tmp_path)
    server_cert = (tmp_path / "certs/server-cert.pem").read_bytes()
    pin = pin_of(ssl.PEM_cert_to_DER_cert(server_cert.decode()))
    path = tmp_path / "keys.psk"
    path.write_text(f"alice:{ALICE}\n")
    path.chmod(0o644)
    shown = run_command("check", files.server_config(auth={"psk_file": "keys.psk"}))
    assert shown.returncode == 0
    assert f"ssl_config.cert: pin {pin}" in shown.stdout
    assert f"warning: auth.psk_file: {path} can be read by others" in shown.stdout
    ssl_config = {"verify": False, "pin": [pin]}
    shown = run_command("check", files.client_config(7788, ssl_config=ssl_config, auth={"psk_env": "NOT_SET"}))
    assert shown.returncode == 1
    assert "server verified by its pin alone" in shown.stdout
    assert "auth.psk_env: the environment variable NOT_SET is not set" in shown.stdout
    assert ALICE not in shown.stdout + shown.stderr


def test_cert_prints_the_pin_of_the_servers_certificate(tmp_path: Path) -> None:
    shown = run_command("cert", tmp_path / "pki")
    certificate = ssl.PEM_cert_to_DER_cert((tmp_path / "pki/server-cert.pem").read_text())
    assert f"\n  {pin_of(certificate)}\n" in shown.stdout


def test_a_file_of_keys_that_is_being_written_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CERTIFICATES_LOOKED_AT", 0.02)
    way, keys = Way(tmp_path), tmp_path / "keys"
    keys.write_text(f"alice:{ALICE}\nbob:{BOB}\n")
    pieces = [f"alice:{BOB}\n", f"bob:{ALICE[:32]}", f"{ALICE[32:]}\n"]
    read: list[dict[bytes, bytes]] = []

    def look_and_write(path: Path) -> object:
        """A piece is written after each look, and the first one empties the file."""
        found = stamp(path)
        if pieces:
            with path.open("w" if len(pieces) == 3 else "a") as file:
                file.write(pieces.pop(0))
        return found

    def noted(config: Config) -> dict[bytes, bytes]:
        read.append(load_keys(config))
        return read[-1]

    async def scenario() -> None:
        server = await multi.start_server(Inbox().on_client, way.server(auth={"psk_file": str(keys)}))
        monkeypatch.setattr(server_module, "stamp", look_and_write)
        monkeypatch.setattr(server_module, "load_keys", noted)
        await until(lambda: read, "it is read")
        server.abort()
        await server.wait_closed()

    run(scenario())
    assert read == [{b"alice": bytes.fromhex(BOB), b"bob": bytes.fromhex(ALICE)}]
