"""Datagrams over real connections: whole, once, beside streams, and told what fits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import multi
from tests.integration.support import WAYS, Way, multi_pair, run, until

ENGINES = [("aioquic", "aioquic"), ("qh3", "qh3"), ("aioquic", "qh3"), ("qh3", "aioquic")]


@pytest.mark.parametrize("name", WAYS)
def test_datagrams_beside_a_stream_that_is_busy(name: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, name)) as pair:
            await pair.session.confirmed()
            ours, theirs = pair.session.datagrams(ttl=5.0), pair.server_session.datagrams(ttl=5.0)
            pair.writer.write(bytes(4_000_000))
            reading = asyncio.create_task(pair.server_reader.readexactly(4_000_000))
            got = []
            for number in range(100):
                ours.send(b"%d" % number)
                theirs.send(b"answer %d" % number)
                got.append((await theirs.receive(), await ours.receive()))
            assert sorted(a for a, _ in got) == sorted(b"%d" % n for n in range(100))
            assert sorted(b for _, b in got) == sorted(b"answer %d" % n for n in range(100))
            await reading
            assert ours.counts.sent == theirs.counts.received == 100
            assert theirs.counts.duplicates == 0

    run(scenario())


@pytest.mark.parametrize(("client", "server"), ENGINES)
def test_quic_carries_them_in_frames_up_to_a_packet(client: str, server: str, development_certificates: Path) -> None:
    if "qh3" in (client, server):
        pytest.importorskip("qh3")

    async def scenario() -> None:
        way = Way(development_certificates, "quic")
        ends = multi_pair(way, server={"quic_config": {"engine": server}}, quic_config={"engine": client})
        async with ends as pair:
            await pair.session.confirmed()
            await pair.server_session.confirmed()
            for sender, receiver in (
                (pair.session, pair.server_session),
                (pair.server_session, pair.session),
            ):
                datagrams, other = sender.datagrams(ttl=5.0), receiver.datagrams()
                most = datagrams.max_size
                assert 1200 < most < 1350
                with pytest.raises(multi.DatagramTooLarge, match=f"{most} at most"):
                    datagrams.send(bytes(most + 1))
                sent = []
                for number in range(150):
                    sent.append(bytes([number]) * (most - number % 3))
                    datagrams.send(sent[-1])
                    # No more at a time than a busy machine has room for.
                    await until(lambda: other.counts.received > number - 10, "nearly all have come")  # noqa: B023 - at once
                got = [await other.receive() for _ in range(other.counts.received)]
                assert set(got) <= set(sent)
                assert len(set(got)) == len(got)

    run(scenario())


def test_with_another_connection_quic_has_no_say_in_what_fits(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, "tcp-tls")
        both = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp", "quic"]}}
        entries = [["tcp", "ipv4", "127.0.0.1"], ["quic", "ipv4", "127.0.0.1"]]
        all_first = {"wait": "all"}
        async with multi_pair(way, server=both, connection_priority=entries, multi_config=all_first) as pair:
            await pair.session.confirmed()
            ours, theirs = pair.session.datagrams(ttl=5.0, copies=2), pair.server_session.datagrams()
            assert ours.max_size == 65_535
            large = bytes(range(250)) * 240
            ours.send(large)
            assert await theirs.receive() == large
            await until(lambda: sum(c.state.value == "active" for c in pair.session.connections) == 2)
            for number in range(20):
                ours.send(b"%d" % number)
                assert await theirs.receive() == b"%d" % number
            assert ours.counts.copied >= 15
            await until(lambda: theirs.counts.duplicates >= 15)

    run(scenario())


def test_sealed_quic_carries_them_among_the_other_segments(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, "quic")
        async with multi_pair(way, server={"protect": "always"}, protect="always") as pair:
            await pair.session.confirmed()
            ours, theirs = pair.session.datagrams(ttl=5.0), pair.server_session.datagrams()
            ours.send(bytes(20_000))
            assert await theirs.receive() == bytes(20_000)

    run(scenario())


def test_where_the_peer_takes_none_the_caller_hears_so(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi.protocol.authenticator._extensions", lambda _settings: ())

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            await pair.session.confirmed()
            for session in (pair.session, pair.server_session):
                with pytest.raises(multi.LocalProtocolError, match="the peer takes no datagrams"):
                    session.datagrams()

    run(scenario())


def test_who_waits_hears_the_end_of_the_session(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            await pair.session.confirmed()
            ours, theirs = pair.session.datagrams(), pair.server_session.datagrams()

            async def everything() -> list[bytes]:
                return [data async for data in theirs]

            waiting = asyncio.create_task(everything())
            cancelled = asyncio.create_task(theirs.receive())
            await asyncio.sleep(0)
            cancelled.cancel()
            ours.send(b"one")
            ours.send(memoryview(b"two"))
            await until(lambda: theirs.counts.received == 2)
            pair.writer.close()
            pair.server_writer.close()
            await pair.writer.wait_closed()
            assert await waiting == [b"one", b"two"]
            with pytest.raises(multi.SessionLost):
                await theirs.receive()
            with pytest.raises(multi.MultiError):
                ours.send(b"late")

    run(scenario())


@pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": "1"}, {"ttl": float("inf")}, {"copies": 3}, {"copies": True}])
def test_what_is_asked_for_is_checked(wrong: dict[str, object], development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            with pytest.raises(multi.LocalProtocolError, match=next(iter(wrong))):
                pair.session.datagrams(**wrong)  # type: ignore[arg-type]

    run(scenario())


def test_only_bytes_are_datagrams(development_certificates: Path) -> None:
    """A number became as many bytes of zero."""

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            await pair.session.confirmed()
            sending: Any = pair.session.datagrams().send
            for wrong in (5, "text", None, [1]):
                with pytest.raises(TypeError, match="bytes-like"):
                    sending(wrong)

    run(scenario())
