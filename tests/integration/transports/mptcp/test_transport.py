"""MPTCP: fallback in both directions, one port for TCP and MPTCP, kernels without it."""

from __future__ import annotations

import asyncio
import logging

import pytest

import multi
from multi.errors import TransportError
from multi.linux import mptcp_pm
from multi.linux.mptcp_pm import mptcp_available
from multi.transports import transport
from multi.transports.base import Channel, TransportSettings
from multi.transports.mptcp import transport as mptcp
from multi.transports.mptcp.transport import MptcpChannel
from multi.types import Candidate, Family
from tests.integration.certificates import certificates_in
from tests.integration.transports.test_contract import Recorder

SETTINGS = TransportSettings()
NO_SUCH_PROTOCOL = 261


needs_mptcp = pytest.mark.skipif(not mptcp_available(), reason="this kernel has no MPTCP")


class Meeting:
    """A listener of one transport and a client of another, both with recorders."""

    async def open(
        self,
        server: str,
        client: str,
        server_settings: TransportSettings = SETTINGS,
        client_settings: TransportSettings = SETTINGS,
    ) -> None:
        self.accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        self.listener = await transport(server).listen("127.0.0.1", 0, server_settings, self.accepted.set_result)
        port = self.listener.address[1]
        candidate = Candidate(client, Family.IPV4, "localhost", "127.0.0.1", port)
        self.channel = await transport(client).dial(candidate, client_settings)
        self.peer = await self.accepted
        self.sink, self.peer_sink = Recorder(), Recorder()
        self.sink.attach(self.channel)
        self.peer_sink.attach(self.peer)

    async def exchange(self) -> None:
        self.channel.write([b"ping"], 0)
        self.channel.flush()
        assert await self.peer_sink.until_received(4) == b"ping"
        self.peer.write([b"pong"], 0)
        self.peer.flush()
        assert await self.sink.until_received(4) == b"pong"

    def end(self) -> None:
        self.channel.abort()
        self.peer.abort()
        self.listener.close()


@needs_mptcp
async def test_both_ends_speak_mptcp() -> None:
    meeting = Meeting()
    await meeting.open("mptcp", "mptcp")
    await meeting.exchange()
    for channel in (meeting.channel, meeting.peer):
        assert isinstance(channel, MptcpChannel)
        assert channel.sample().rtt > 0
        assert channel.info.transport == "mptcp"
        assert channel.info.detail == "1 subflow"
        assert not channel.info.fell_back
    meeting.end()


@needs_mptcp
async def test_plain_client_of_an_mptcp_listener_is_reported_as_tcp() -> None:
    meeting = Meeting()
    await meeting.open("mptcp", "tcp")
    await meeting.exchange()
    assert meeting.peer.info.transport == "tcp"
    assert not isinstance(meeting.peer, MptcpChannel)
    meeting.end()


@needs_mptcp
@pytest.mark.parametrize("client", ["mptcp", "tcp"])
async def test_a_server_of_mptcp_alone_serves_what_arrives_as_tcp(client: str) -> None:
    """As MPTCP does where a middlebox strips its options."""

    async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(await reader.read(-1))
        writer.close()

    listen = {"host": "127.0.0.1", "port": 0, "transports": ["mptcp"]}
    async with await multi.start_server(echo, {"listen": listen}) as server:
        entries = [[client, "ipv4", "127.0.0.1"]]
        config = {"connection_priority": entries, "remote_host": "127.0.0.1", "remote_port": server.port}
        async with multi.connect(config) as session:
            session.writer.write(b"ping")
            session.writer.write_eof()
            assert await session.reader.read(-1) == b"ping"


@needs_mptcp
async def test_fallback_to_tcp_is_kept_and_reported() -> None:
    meeting = Meeting()
    await meeting.open("tcp", "mptcp")
    await meeting.exchange()
    channel = meeting.channel
    assert isinstance(channel, MptcpChannel)
    sample = channel.sample()
    assert sample.bytes_acked == 4
    assert sample.rtt > 0
    assert channel.info.fell_back
    assert channel.info.transport == "mptcp"
    assert "fell back to TCP" in channel.info.detail
    meeting.end()


@needs_mptcp
async def test_detail_tells_of_tls_and_of_subflows(tmp_path_factory: pytest.TempPathFactory) -> None:
    files = certificates_in(tmp_path_factory.getbasetemp() / "certificates")
    meeting = Meeting()
    await meeting.open("mptcp", "mptcp", files.server_settings(), files.client_settings())
    await meeting.exchange()
    assert meeting.channel.info.detail.startswith("TLSv1.3, ")
    assert meeting.channel.info.detail.endswith("; 1 subflow")
    meeting.end()


async def test_dial_without_mptcp_in_the_kernel_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mptcp_pm, mptcp):
        monkeypatch.setattr(module, "IPPROTO_MPTCP", NO_SUCH_PROTOCOL)
    candidate = Candidate("mptcp", Family.IPV4, "localhost", "127.0.0.1", 9)
    with pytest.raises(TransportError, match="this kernel has no MPTCP"):
        await transport("mptcp").dial(candidate, SETTINGS)


async def test_listener_without_mptcp_in_the_kernel_serves_tcp_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (mptcp_pm, mptcp):
        monkeypatch.setattr(module, "IPPROTO_MPTCP", NO_SUCH_PROTOCOL)
    meeting = Meeting()
    with caplog.at_level(logging.WARNING, "multi.transports"):
        await meeting.open("mptcp", "tcp")
    assert "listening for plain TCP instead" in caplog.text
    await meeting.exchange()
    assert meeting.peer.info.transport == "tcp"
    meeting.end()
