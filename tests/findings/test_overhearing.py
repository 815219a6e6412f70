"""Who listens on the way, or ends TLS there with a certificate of his own, gets nothing out of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import multi
from multi.protocol.segment import SegmentType
from multi.types import ConnectionState
from tests.findings.attacks import Strangers, aborted_at_end, echoing, exchanged, first_segment, type_of
from tests.integration.support import HOST, Relay, Way, run, until

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

LISTENER = "127.66.1.1"
JOINING = "127.5.5.5"
SECRET = b"a request nobody else may read "


class TappedRelay(Relay):
    """A way to the server on which somebody hears JOIN, and says it himself before it arrives."""

    def __init__(self, port: int, strangers: Strangers, listening: bool) -> None:
        super().__init__(port)
        self._strangers = strangers
        self._listening = listening

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        if counted and type_of(join := await reader.read(65536)) is SegmentType.JOIN:
            if self._listening:
                await self._strangers.say(first_segment(join), LISTENER)
            writer.write(join)
        await super()._pump(reader, writer, counted)


async def joined(way: Way, listening: bool) -> list[str]:
    """Let a client join, and a listener repeat its JOIN; return whose connections the server then has."""
    async with (
        echoing(way) as server,
        Strangers(server.port) as strangers,
        TappedRelay(server.port, strangers, listening) as relay,
        aborted_at_end(await multi.connect(way.client(server.port))) as session,
    ):
        await exchanged(session)
        relay.source = JOINING
        entry = {"transport": "tcp", "ip": "ipv4", "interface": "any", "remote_port": relay.port}
        await session.add_connection(entry)
        (peer,) = server.sessions

        def active() -> list[str]:
            return [c.remote for c in peer.connections if c.state is ConnectionState.ACTIVE]

        await until(lambda: any(JOINING in remote for remote in active()), "the client joined")
        return active()


@pytest.mark.parametrize("way", ["tcp-plain", "tcp-sealed"])
def test_who_repeats_a_join_he_has_heard_joins_nothing(way: str, development_certificates: Path) -> None:
    active = run(joined(Way(development_certificates, way), listening=True))
    assert not [remote for remote in active if LISTENER in remote]


@pytest.mark.parametrize("way", ["tcp-plain", "tcp-sealed"])
def test_the_client_itself_joins(way: str, development_certificates: Path) -> None:
    assert len(run(joined(Way(development_certificates, way), listening=False))) == 2


# --- TLS that ends elsewhere ---


@asynccontextmanager
async def tls_that_only_listens(certificates: Path, heard: bytearray) -> AsyncIterator[int]:
    """A server of somebody else's; its port."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                heard.extend(data)
        writer.transport.abort()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server-cert.pem", certificates / "server-key.pem")
    context.set_alpn_protocols(["multi/1"])
    server = await asyncio.start_server(listen, HOST, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def say_a_secret(config: dict[str, object], heard: bytearray) -> None:
    """Open a session and write at once, as an application does that knows nothing of proofs."""
    async with aborted_at_end(await multi.connect(config)) as session:
        session.writer.write(SECRET * 1000)
        await until(lambda: SECRET in heard, "it is read")


def test_who_ends_unverified_tls_without_the_key_reads_nothing(development_certificates: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"id:{'ab' * 32}\n")
    keys.chmod(0o600)
    heard = bytearray()

    async def scenario() -> None:
        way = Way(development_certificates, "tcp-tls")
        async with tls_that_only_listens(development_certificates, heard) as port:
            auth = {"psk_file": str(keys), "psk_id": "id"}
            config = way.client(port, ssl_config={"verify": False}, auth=auth)
            with suppress(TimeoutError):
                await asyncio.wait_for(say_a_secret(config, heard), 1.5)
            if not heard:
                raise RuntimeError("the client did not even greet")

    run(scenario())
    assert heard.count(SECRET) == 0
