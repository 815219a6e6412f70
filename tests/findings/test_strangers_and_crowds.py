"""What strangers, and honest crowds, can do to a server and to each other."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

import multi
from multi.asyncio.settings import peer_scheduler
from multi.events import SendBytes
from multi.lab.cert import write_development_certificates
from multi.lab.files.protocol import MAX_LINE, Get
from multi.lab.files.protocol import encode as line_of
from multi.lab.files.service import FileService
from multi.lab.files.tree import FileTree
from multi.protocol.handshake import Accept, ConnectionTerms, Hello, KeyPair, SessionKeys
from multi.protocol.payloads import Policy
from multi.protocol.segment import HEADER_LENGTH, SegmentType, encode
from multi.protocol.session import SessionCore
from multi.protocol.settings import Protect, SessionSettings
from multi.types import STREAM_ZERO, ConnectionFacts, ConnectionId, SessionId, Side
from tests.findings.bounded import run
from tests.integration.hostile import HandMade
from tests.integration.support import HOST, Way, serving

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

WAY = Way(Path())  # sealed TCP: no certificates
MIB = 1 << 20
TWO_WAYS = [["tcp", "ipv4", "127.0.0.2"], ["tcp", "ipv4", "127.0.0.3"]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    write_development_certificates(directory, [])
    return directory


# --- honest crowds ---

PATIENT = {"multi_config": {"open_timeout": 60.0}, "limits": {"handshake_timeout": 60.0}}
"""Both ends and all clients share a processor, which others may use."""


async def herd(size: int) -> Counter[str]:
    """What becomes of so many clients of one network that come at once."""

    async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def one(port: int) -> str:
        try:
            reader, writer = await multi.open_connection(WAY.client(port, connection_priority=TWO_WAYS, **PATIENT))
        except OSError:
            return "did not open"
        try:
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
            return "opened and died"
        return "was served"

    server = await multi.start_server(echo, WAY.server(limits={"handshake_timeout": 50.0}))
    try:
        return Counter(await asyncio.gather(*(one(server.port) for _ in range(size))))
    finally:
        server.abort()
        await server.wait_closed()


def test_a_few_clients_that_come_at_once_are_all_served() -> None:
    assert run(herd(20)) == {"was served": 20}


def test_no_session_that_was_opened_dies_because_many_come_at_once() -> None:
    for _ in range(5):  # how many die is a matter of chance; nearly always all of them but 16 to 32
        assert run(herd(60))["opened and died"] == 0


def test_a_herd_is_served() -> None:
    assert run(herd(200)) == {"was served": 200}


# --- keys ---

PASSWORD = b"correct horse battery"
NAME = b"sensors"


def hello(key: KeyPair, name: bytes) -> Hello:
    return Hello(os.urandom(32), key.public, 65536, 128, Policy(), ConnectionTerms(sealed=True), psk_id=name)


async def answer(port: int, session_id: SessionId, said: Hello) -> tuple[int, bytes]:
    """Type and payload of the segment with which a server answers a stranger's HELLO."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(encode(SegmentType.HELLO, session_id, said.encode()))
        header = await reader.readexactly(HEADER_LENGTH)
        payload = await reader.readexactly(int.from_bytes(header[4:8], "big") - HEADER_LENGTH)
        return header[1], payload
    finally:
        writer.transport.abort()


async def tried_offline(port: int, guesses: list[bytes]) -> list[bytes]:
    """Which guesses a stranger knows to be right after a single message to the server."""
    pair, session_id = KeyPair(os.urandom(32)), SessionId(os.urandom(16))
    said = hello(pair, NAME)
    kind, payload = await answer(port, session_id, said)
    if kind != SegmentType.ACCEPT:
        return []
    accept = Accept.decode(payload)
    shared = pair.agree(accept.key)
    right = []
    for guess in guesses:
        keys = SessionKeys(session_id, said.session_part(), accept.session_part(), shared, guess)
        if keys.hello_proof(b"S", said.terms.encode(), accept.choice.encode(), b"") == accept.proof:
            right.append(guess)
    return right


@asynccontextmanager
async def serving_with_key(
    monkeypatch: pytest.MonkeyPatch, key: bytes, *, strict: bool = False
) -> AsyncIterator[multi.Server]:
    monkeypatch.setenv("FINDINGS_PSK", f"{NAME.decode()}:{key.hex()}")
    server = await multi.start_server(lambda r, w: None, WAY.server(auth={"psk_env": "FINDINGS_PSK", "strict": strict}))
    try:
        yield server
    finally:
        server.abort()
        await server.wait_closed()


def test_a_password_is_warned_of_because_strangers_can_guess_it_offline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[bytes]:
        async with serving_with_key(monkeypatch, PASSWORD) as server:
            return await tried_offline(server.port, [b"password", PASSWORD, b"letmein"])

    assert run(scenario()) == [PASSWORD]
    assert "auth: keys of less than 32 bytes may be guessed (`multi psk` makes new ones): 'sensors'" in caplog.text


def test_who_is_strict_takes_no_password_as_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with pytest.raises(multi.ConfigError, match=r"auth\.strict: keys of less than 32 bytes .*: 'sensors'"):
            async with serving_with_key(monkeypatch, PASSWORD, strict=True):
                pass
        async with serving_with_key(monkeypatch, hashlib.sha256(PASSWORD).digest(), strict=True):
            pass

    run(scenario())


def test_no_stranger_learns_the_names_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[int]:
        async with serving_with_key(monkeypatch, hashlib.sha256(PASSWORD).digest()) as server:
            kinds = []
            for name in (NAME, b"nobody!"):
                said = hello(KeyPair(os.urandom(32)), name)
                kinds.append((await answer(server.port, SessionId(os.urandom(16)), said))[0])
            return kinds

    known, unknown = run(scenario())
    assert known == unknown


# --- logs ---

ALPN = "multi/1"
FORGED = "bye\n2031-01-01 00:00:00 multi.server INFO: session of the administrator \x1b[2J"


def quic_stranger(port: int, *, greets: bool) -> None:
    """Say goodbye with a forged line, in the middle of the handshake or after MULTI's HELLO."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE, server_name="localhost"
    )
    engine = QuicConnection(configuration=configuration)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((HOST, port))
        sock.settimeout(0.1)

        def go_on(rounds: int) -> None:
            for _ in range(rounds):
                for data, _address in engine.datagrams_to_send(now=time.time()):
                    sock.send(data)
                with suppress(TimeoutError):
                    while True:
                        engine.receive_datagram(sock.recv(65536), (HOST, port), now=time.time())

        engine.connect((HOST, port), now=time.time())
        if greets:
            go_on(3)
            engine.send_stream_data(0, first_words())
            engine.send_stream_data(4, b"\x01")
            go_on(1)
            engine.close(error_code=99, reason_phrase=FORGED)
        else:
            for data, _address in engine.datagrams_to_send(now=time.time()):
                sock.send(data)
            engine.receive_datagram(sock.recv(65536), (HOST, port), now=time.time())
            engine.close(error_code=0x10, frame_type=0, reason_phrase=FORGED)
        go_on(1)


def first_words() -> bytes:
    """HELLO as a client says it over QUIC."""
    core = SessionCore(
        Side.CLIENT,
        SessionId(os.urandom(16)),
        SessionSettings(protect=Protect.AUTO),
        entropy=os.urandom,
        make_scheduler=peer_scheduler,
        now=0.0,
    )
    first = ConnectionId(0)
    core.connection_opened(first, ConnectionFacts("quic", lanes=3, secure=True, channel_binding=bytes(32)), now=0.0)
    core.set_credit(first, MIB, now=0.0)
    return b"".join(bytes(b) for e in core.effects() if isinstance(e, SendBytes) for b in e.buffers)


@pytest.mark.parametrize("greets", [False, True], ids=["in the handshake", "after HELLO"])
def test_a_stranger_cannot_forge_lines_in_the_log(
    greets: bool, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name.startswith("multi")]

    async def scenario() -> None:
        async with serving(Way(certificates, "quic")) as (server, _):
            await asyncio.to_thread(quic_stranger, server.port, greets=greets)
            for _ in range(50):
                if any("administrator" in message for message in said()):
                    break
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.INFO, "multi"):
        run(scenario())
    assert [message for message in said() if not message.isprintable()] == []


# --- segments ---


async def late_data(sequence: int) -> None:
    """A client ends a stream as one should, and then says once more what belongs to it, at this place."""

    async def ends_every_stream(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        async for stream_reader, stream_writer in writer.get_extra_info("session").streams():
            await stream_reader.read()
            stream_writer.close()

    server = await multi.start_server(ends_every_stream, WAY.server(protect="never"))
    try:
        client = await HandMade.at(server.port, protect=Protect.NEVER)
        await client.confirm()
        core = client.core
        stream = core.open_stream(3, now=0.0)
        assert stream is not None
        core.write(stream, b"abc", now=0.0)
        core.finish(stream, now=0.0)
        client.flush()
        while stream in core.receiver.streams or stream in core.sender.streams:
            core.receive(ConnectionId(0), memoryview(await client.reader.read(65536)), now=0.0)
            core.read(stream, -1, now=0.0)
            client.flush()
        client.send(encode(SegmentType.DATA, client.session_id, b"xy", sequence=sequence, stream=stream))
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.5):
                while await client.reader.read(65536):
                    pass
        client.writer.transport.abort()
    finally:
        server.abort()
        await server.wait_closed()


@pytest.mark.parametrize(
    "sequence",
    [
        pytest.param(1, id="a repeat"),
        pytest.param((1 << 64) - 1, id="beyond every stream"),
    ],
)
def test_no_segment_leads_to_an_internal_error(sequence: int, caplog: pytest.LogCaptureFixture) -> None:
    run(late_data(sequence))
    assert "internal error" not in caplog.text


# --- memory ---


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    """The directory of a sparse file larger than what a server may keep."""
    (tmp_path / "served").mkdir()
    with (tmp_path / "served" / "big").open("wb") as file:
        file.truncate(64 * MIB)
    return tmp_path / "served"


async def gets_in(port: int, within: float) -> bool:
    """Whether an honest client from elsewhere is served in time; it tries again when it is refused."""
    config = WAY.client(port, connection_priority=[["tcp", "ipv4", "127.99.1.1"]])
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while loop.time() < end:
        with suppress(ConnectionError, OSError, TimeoutError):
            async with asyncio.timeout_at(end), multi.connect(config) as session:
                await session.confirmed()
                return True
        await asyncio.sleep(0.1)
    return False


async def served_beside(idlers: int, directory: Path) -> bool:
    """Whether somebody is served while so many clients of another network have asked for a file and do not read it."""
    with FileTree(directory) as tree:
        service = FileService(tree, allow_put=False, log=lambda line: None)
        config = WAY.server(limits={"max_memory": 16 * MIB})
        server = await multi.start_server(service.serve, config, limit=MAX_LINE)
        clients = []
        try:
            for number in range(idlers):
                client = await HandMade.at(server.port, f"127.7.7.{number + 1}")
                clients.append(client)
                with suppress(AssertionError):  # refused: there is no room for more of them
                    await client.confirm()
                    request = line_of(Get("big", 0, hashlib.sha256().hexdigest()))
                    client.core.write(STREAM_ZERO, request, now=0.0)
                    client.flush()
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.2)
            return await gets_in(server.port, 10.0)  # nothing that holds it up ends before
        finally:
            for client in clients:
                client.writer.transport.abort()
            server.abort()
            await server.wait_closed()


def test_a_client_is_served_beside_one_that_does_not_read(big_file: Path) -> None:
    assert run(served_beside(1, big_file))


def test_a_client_is_served_beside_many_of_another_network_that_do_not_read(big_file: Path) -> None:
    assert run(served_beside(30, big_file))


# --- turns ---


def client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@asynccontextmanager
async def said_hello(port: int, sources: list[str], hello: bytes) -> AsyncIterator[list[socket.socket]]:
    """Connections that have said so, in this order, before the server's loop turns again."""
    opened: list[socket.socket] = []
    try:
        for source in sources:
            sock = socket.socket()
            opened.append(sock)
            sock.bind((source, 0))
            sock.connect((HOST, port))
            sock.sendall(hello)
        yield opened
    finally:
        for sock in opened:
            sock.close()


FLOOD = 240  # connections, all of which are taken in one turn of the event loop
NETWORKS = 8  # so that each has fewer than a server allows


async def answered_before(place: int, directory: Path) -> int:
    """How many TLS handshakes of a flood a server has answered when it answers one from elsewhere, which came there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    sources = [f"127.77.{number % NETWORKS}.1" for number in range(FLOOD)]
    sources.insert(place, "127.99.1.1")
    counted: list[int] = []
    async with (
        serving(Way(directory, "tcp-tls")) as (server, _),
        said_hello(server.port, sources, client_hello(context)) as sockets,
    ):
        poll = select.poll()
        for sock in sockets:
            poll.register(sock, select.POLLIN)

        def wait() -> None:
            if select.select([sockets[place]], [], [], 10)[0]:
                counted.append(len(poll.poll(0)) - 1)

        waiting = threading.Thread(target=wait)  # beside the event loop, whose turn may be long
        waiting.start()
        await asyncio.to_thread(waiting.join)
    return counted[0]


def test_a_tls_handshake_that_came_first_is_done_first(certificates: Path) -> None:
    assert run(answered_before(0, certificates)) < FLOOD / 2


def test_tls_handshakes_of_a_flood_take_turns_with_the_one_of_another_source(certificates: Path) -> None:
    assert run(answered_before(FLOOD, certificates)) < FLOOD / 2
