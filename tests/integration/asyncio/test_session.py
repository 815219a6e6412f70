"""Sessions over several real connections: sharing, losing, handing over, streams, events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import multi
from multi import ConnectionChanged, ConnectionState, Role
from multi.asyncio import resolution
from multi.asyncio.driver import SessionDriver
from multi.paths import slots
from multi.protocol import connection
from multi.protocol.sender import Sender
from multi.protocol.session import SessionCore
from multi.reasons import Cause, Reason
from multi.transports.base import SteeredChannel
from multi.transports.tcp.channel import StreamChannel
from multi.types import Family, Interface, InterfaceAddress, Kind, StreamId
from tests.integration.support import (
    HOST,
    LOOPS,
    Inbox,
    Relay,
    Way,
    collect,
    event_of,
    multi_pair,
    pattern,
    run,
    until,
)

MIB = 1024 * 1024
CHUNK = 64 * 1024
ACTIVE = ConnectionState.ACTIVE
OVER_IPV6 = {"transport": "tcp", "ip": "ipv6", "interface": "::1", "remote_host": "::1"}
OVER_IPV4 = {"transport": "tcp", "ip": "ipv4", "interface": "127.0.0.1"}


@dataclass
class World:
    """A server of both families, and the way to it."""

    server: multi.Server
    inbox: Inbox
    way: Way

    def config(self, *entries: Any, **more: Any) -> dict[str, Any]:
        return self.way.client(self.server.port, connection_priority=list(entries) or [OVER_IPV4], **more)

    def over(self, relay: Relay, transport: str = "tcp", **more: Any) -> dict[str, Any]:
        entry = {"transport": transport, "ip": "ipv4", "interface": "any"}
        return entry | {"remote_host": HOST, "remote_port": relay.port} | more


@asynccontextmanager
async def world(certificates: Path, name: str = "tcp-sealed", **more: Any) -> AsyncIterator[World]:
    way, inbox = Way(certificates, name), Inbox()
    listen = {"host": "::", "port": 0, "transports": ["tcp", "mptcp", *(["quic"] if way.has_tls else [])]}
    server = await multi.start_server(inbox.on_client, way.server(listen=listen, **more))
    try:
        yield World(server, inbox, way)
    finally:
        server.abort()
        await server.wait_closed()


def active(session: multi.Session) -> list[multi.ConnectionInfo]:
    return [info for info in session.connections if info.state is ACTIVE]


async def transfer(writer: multi.SessionWriter, reader: multi.SessionReader, data: bytes) -> None:
    """All of `data` arrives whole."""

    async def send() -> None:
        for start in range(0, len(data), CHUNK):
            writer.write(data[start : start + CHUNK])
            await writer.drain()

    sending = asyncio.ensure_future(send())
    assert await reader.readexactly(len(data)) == data
    await sending


# --- several connections ---


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_of_all_transports_carry_data_at_once(loop: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates, "tcp-tls") as w:
            entries = [[name, "ipv4", "any"] for name in ("tcp", "quic", "mptcp")]
            config = w.config(*entries, multi_config={"wait": "all", "scheduler": "RR"})
            async with multi.connect(config) as session:
                reader, writer = await w.inbox.next()
                assert sorted(info.transport for info in active(session)) == ["mptcp", "quic", "tcp"]
                data = pattern(8 * MIB)
                await asyncio.gather(transfer(session.writer, reader, data), transfer(writer, session.reader, data))
                other = writer.get_extra_info("session")
                for end in (session, other):
                    for info in end.connections:
                        assert info.bytes_sent > 0, info
                        assert info.bytes_received > 0, info
                        assert info.state is ACTIVE
                        assert info.secure
                        assert not info.sealed
                assert {info.local for info in session.connections} == {info.remote for info in other.connections}

    run(scenario(), loop)


@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-plain", "tcp-tls"])
def test_nothing_is_lost_when_one_connection_is_reset_half_way(name: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates, name) as w, Relay(w.server.port) as relay:
            config = w.config(OVER_IPV4, w.over(relay), multi_config={"wait": "all", "scheduler": "RR"})
            async with multi.connect(config) as session:
                reader, writer = await w.inbox.next()
                relay.budget = MIB
                data = pattern(8 * MIB)
                await asyncio.gather(transfer(session.writer, reader, data), transfer(writer, session.reader, data))
                assert relay.exhausted.is_set()
                ended = [info for info in session.connections if info.state is ConnectionState.LOST]
                assert len(ended) == 1
                assert ended[0].remote.endswith(f":{relay.port}")
                assert ended[0].reason
                assert ended[0].bytes_sent > 0
                await until(lambda: len(active(session)) == 2, "the relay's connection is dialled again")

    run(scenario())


def test_total_loss_is_survived_when_the_network_comes_back(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with (
            world(development_certificates) as w,
            Relay(w.server.port) as relay,
            multi.connect(w.config(w.over(relay))) as session,
        ):
            reader, _ = await w.inbox.next()
            events = session.events()
            relay.budget = MIB
            data = pattern(4 * MIB)
            moving = asyncio.ensure_future(transfer(session.writer, reader, data))
            await relay.exhausted.wait()
            await relay.close()
            async for event in events:
                if isinstance(event, multi.SessionDetached):
                    break
            await relay.open()
            await moving
            async for event in events:
                if isinstance(event, multi.SessionResumed):
                    assert event.after < 2
                    break

    run(scenario())


@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-tls"])
def test_restarted_server_is_noticed_quickly(name: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with (
            world(development_certificates, name) as first,
            world(development_certificates, name) as second,
            Relay(first.server.port) as relay,
        ):
            _, writer = await multi.open_connection(first.config(first.over(relay)))
            session = writer.get_extra_info("session")
            await session.confirmed()
            relay.target = second.server.port
            started = asyncio.get_running_loop().time()
            relay.cut()
            with pytest.raises(multi.SessionLost, match="session gone"):
                await session.reader.read(1)
            assert asyncio.get_running_loop().time() - started < 4
            with pytest.raises(multi.SessionLost, match="session gone"):
                await writer.drain()
            with pytest.raises(multi.SessionLost, match="session gone"):
                await writer.wait_closed()

    run(scenario())


# --- handover, roles, schedulers ---


@pytest.mark.parametrize("by", ["address", "id"])
def test_handover_moves_a_transfer_without_reinjection(by: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w:
            config = w.config(OVER_IPV4, OVER_IPV6, multi_config={"wait": "all", "mode": "switch"})
            async with multi.connect(config) as session:
                reader, _ = await w.inbox.next()
                old, new = active(session)
                moving = asyncio.ensure_future(transfer(session.writer, reader, pattern(16 * MIB)))
                await until(lambda: session.connections[0].bytes_sent > MIB, "the first carries")
                await session.handover("::1" if by == "address" else new.id)
                await moving
                await until(lambda: len(active(session)) == 1, "the old connection is drained")
                assert active(session)[0].id == new.id
                assert session.connections[0].state is ConnectionState.CLOSED
                assert session.connections[0].id == old.id
                assert session.connections[1].bytes_sent > 0
                assert session.bytes_reinjected == 0

    run(scenario())


def test_handover_opens_the_new_connection_before_the_old_one_is_drained(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w, Relay(w.server.port) as relay:
            await relay.close()
            late = w.over(relay, interface="127.0.0.1")
            async with multi.connect(w.config(OVER_IPV6, late)) as session:
                await session.confirmed()
                events = session.events()
                await relay.open()
                await session.handover("127.0.0.1")
                order = []
                async for event in events:
                    if isinstance(event, ConnectionChanged):
                        order.append((event.facts.family is Family.IPV4, event.state))
                        if event.state is ConnectionState.DRAINING:
                            break
                assert order.index((True, ACTIVE)) < order.index((False, ConnectionState.DRAINING))

    run(scenario())


def test_handover_to_what_does_not_work_keeps_the_old_connection(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w:
            async with Relay(1) as nowhere:
                port = nowhere.port
            dead = OVER_IPV4 | {"remote_port": port}
            async with multi.connect(w.config(OVER_IPV6, dead)) as session:
                reader, _ = await w.inbox.next()
                with pytest.raises(multi.TransportError, match=r"handover to 127\.0\.0\.1 failed: .*refused"):
                    await session.handover("127.0.0.1")
                with pytest.raises(multi.LocalProtocolError, match=r"no connection leads over 'wifi'; known: "):
                    await session.handover("wifi")
                with pytest.raises(multi.LocalProtocolError, match="no connection leads over ''"):
                    await session.handover("")
                await transfer(session.writer, reader, pattern(MIB))
                assert [info.remote for info in active(session)] == [f"[::1]:{w.server.port}"]

    run(scenario())


def test_handover_to_an_interface_without_a_route_says_so(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found under its kind, asked for by its name."""
    address = InterfaceAddress("198.51.100.2", Family.IPV4, 24)
    wifi = Interface("wlan7", 7, Kind.WIFI, addresses=(address,))

    async def found(*_: object, **__: object) -> tuple[Interface, ...]:
        return (wifi,)

    monkeypatch.setattr(resolution, "interfaces_known", lambda *_: (wifi,))
    monkeypatch.setattr(resolution, "interfaces_async", found)

    async def scenario() -> None:
        async with world(development_certificates) as w:
            over_wifi = {"transport": "tcp", "ip": "ipv4", "interface": "wifi", "remote_host": "203.0.113.1"}
            async with multi.connect(w.config(OVER_IPV6, over_wifi)) as session:
                with pytest.raises(multi.TransportError, match="handover to wlan7 failed: no ipv4 route through wlan7"):
                    await session.handover("wlan7")

    run(scenario())


def test_handover_to_an_alternative_that_is_not_used_says_so(development_certificates: Path) -> None:
    """It said that it had worked, and everything went on over the other one."""

    async def scenario() -> None:
        async with world(development_certificates) as w:
            used, unused = (entry | {"group": "either"} for entry in (OVER_IPV6, OVER_IPV4))
            async with multi.connect(w.config(used, unused)) as session:
                reader, _ = await w.inbox.next()
                with pytest.raises(multi.TransportError, match="failed: an alternative is used instead, tcp over ::1"):
                    await session.handover("127.0.0.1")
                await session.handover("::1")
                await transfer(session.writer, reader, pattern(MIB))

    run(scenario())


def test_cancelled_handover_leaves_the_old_connection(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w, Relay(w.server.port) as relay:
            relay.flowing.clear()  # it accepts and forwards nothing
            silent = w.over(relay, interface="127.0.0.1")
            async with multi.connect(w.config(OVER_IPV6, silent)) as session:
                reader, _ = await w.inbox.next()
                moving = asyncio.ensure_future(session.handover("127.0.0.1"))
                await asyncio.sleep(0.05)
                assert not moving.done()
                moving.cancel()
                assert isinstance((await asyncio.gather(moving, return_exceptions=True))[0], asyncio.CancelledError)
                relay.flowing.set()
                await transfer(session.writer, reader, pattern(MIB))
                await until(lambda: len(active(session)) == 2, "the other one joins all the same")
                assert not [i for i in session.connections if i.state is ConnectionState.DRAINING]

    run(scenario())


def test_a_cancelled_handover_is_reported_at_once(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w, Relay(w.server.port) as relay:
            relay.flowing.clear()  # it accepts and forwards nothing
            silent = w.over(relay, interface="127.0.0.1")
            async with multi.connect(w.config(OVER_IPV6, silent)) as session:
                await w.inbox.next()
                moving = asyncio.ensure_future(session.handover("127.0.0.1"))
                await asyncio.sleep(0.3)
                events = session.events()
                moving.cancel()
                cancelled_at = asyncio.get_running_loop().time()
                async for event in events:
                    if isinstance(event, multi.HandoverChanged):
                        assert (event.state, event.reason) == (multi.HandoverState.FAILED, "it was cancelled")
                        break
                assert asyncio.get_running_loop().time() < cancelled_at + 2.0, "not when dialling is given up"

    run(scenario())


def test_a_handover_under_way_ends_with_its_session(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w, Relay(w.server.port) as relay:
            relay.flowing.clear()  # it accepts and forwards nothing
            silent = w.over(relay, interface="127.0.0.1")
            session = await multi.connect(w.config(OVER_IPV6, silent))
            await w.inbox.next()
            moving = asyncio.ensure_future(session.handover("127.0.0.1"))
            await asyncio.sleep(0.05)
            session.abort("enough")
            with pytest.raises(multi.SessionLost, match="enough"):
                await asyncio.wait_for(moving, 2.0)

    run(scenario())


def test_own_abort_is_no_error(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w:
            async with multi.connect(w.config()) as session:
                other = await w.inbox.session()
                session.abort("enough")
                with pytest.raises(multi.SessionLost, match="enough"):
                    await session.reader.read()
            await session.wait_closed()
            with pytest.raises(multi.SessionLost, match="enough"):
                await other.wait_closed()
            other.abort("too late")  # that is not what ended it
            with pytest.raises(multi.SessionLost, match="enough"):
                await other.wait_closed()

    run(scenario())


@pytest.mark.parametrize("error", [ConnectionError(), ConnectionError("lost upstream"), ValueError("a bug")], ids=str)
def test_an_application_that_fails_ends_its_session_for_a_reason(
    error: Exception, development_certificates: Path
) -> None:
    text = "the server's application failed"  # nothing of what went wrong there is the client's business

    async def scenario() -> None:
        ended: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # a bug is reported to it

        async def watch(session: multi.Session) -> None:
            async for event in session.events():
                if isinstance(event, multi.SessionEnded):
                    ended.set_result(event.reason)

        async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
            watching.append(asyncio.ensure_future(watch(writer.get_extra_info("session"))))
            await reader.read(1)
            raise error

        watching: list[asyncio.Future[None]] = []
        way = Way(development_certificates)
        async with await multi.start_server(on_client, way.server()) as server:
            session = await multi.connect(way.client(server.port))
            session.writer.write(b"!")
            with pytest.raises(multi.SessionLost, match=text) as caught:
                await session.reader.read()
            assert caught.value.reason.cause is Cause.PEER_ABORTED
            reason = await ended
            assert (reason.cause, reason) == (Cause.APPLICATION, text)
            await asyncio.gather(*watching)

    run(scenario())


def test_a_handler_that_was_cancelled_is_not_taken_for_a_server_that_stops(development_certificates: Path) -> None:
    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        await reader.read(1)
        raise asyncio.CancelledError  # as of a task of its own that it has waited for

    async def scenario() -> None:
        way = Way(development_certificates)
        async with await multi.start_server(on_client, way.server()) as server:
            session = await multi.connect(way.client(server.port))
            session.writer.write(b"!")
            with pytest.raises(multi.SessionLost, match="the server's handler was cancelled"):
                await session.reader.read()
            assert server.is_serving()

    run(scenario())


def test_a_close_that_is_cut_short_says_so(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w:
            session = await multi.connect(w.config())
            await w.inbox.next()
            session.writer.write(pattern(30 * MIB))  # nobody reads it
            closing = asyncio.ensure_future(session.close())
            await asyncio.sleep(0.05)
            assert not closing.done()
            session.abort("enough")
            with pytest.raises(multi.SessionLost, match="enough"):
                await closing

    run(scenario())


def test_switch_mode_keeps_the_second_as_backup_and_promotes_it(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SUSPECT_SLACK", 30.0)  # the first is not taken for dead where the machine is busy

    async def scenario() -> None:
        async with world(development_certificates) as w, Relay(w.server.port) as relay:
            config = w.config(w.over(relay), OVER_IPV6, multi_config={"wait": "all", "mode": "switch"})
            async with multi.connect(config) as session:
                reader, writer = await w.inbox.next()
                assert [info.role for info in session.connections] == [Role.ACTIVE, Role.BACKUP]
                await transfer(session.writer, reader, pattern(MIB))
                assert session.connections[1].bytes_sent == 0
                other = writer.get_extra_info("session")
                await until(lambda: sorted(i.role for i in other.connections) == [Role.ACTIVE, Role.BACKUP], "roles")
                await relay.close()
                await transfer(session.writer, reader, pattern(MIB))
                assert [info.role for info in active(session)] == [Role.ACTIVE]
                await relay.open()
                await until(lambda: len(active(session)) == 2, "the relay is back")

    run(scenario())


def test_roles_can_be_set_from_both_ends(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w:
            config = w.config(OVER_IPV4, OVER_IPV6, multi_config={"wait": "all"})
            async with multi.connect(config) as session:
                reader, writer = await w.inbox.next()
                other = writer.get_extra_info("session")
                await until(lambda: len(active(other)) == 2, "both joined")
                session.set_role(0, "backup")
                await until(lambda: other.connections[0].role is Role.BACKUP, "the server knows")

                def sent() -> tuple[int, int]:
                    return session.connections[0].bytes_sent, other.connections[0].bytes_sent

                for _ in range(3):  # on a busy machine the other may fall silent, and then the backup helps out
                    before = sent()
                    await transfer(session.writer, reader, pattern(MIB))
                    await transfer(writer, session.reader, pattern(MIB))
                    if sent() == before:
                        break
                assert sent() == before
                with pytest.raises(multi.LocalProtocolError, match="none of 'active', 'primary'"):
                    session.set_role(0, "master")
                with pytest.raises(multi.LocalProtocolError, match="no connection 99"):
                    session.set_role(99, Role.ACTIVE)

    run(scenario())


def test_scheduler_can_be_set_by_name_and_as_object(development_certificates: Path) -> None:
    class OnlyTheLast:
        def select(
            self, request: multi.SendRequest, connections: Sequence[multi.ConnectionView]
        ) -> Sequence[multi.ConnectionView]:
            return [c for c in connections if c.credit > 0][-1:]

    async def scenario() -> None:
        async with world(development_certificates) as w:
            config = w.config(OVER_IPV4, OVER_IPV6, multi_config={"wait": "all", "reinject": "rescue"})
            async with multi.connect(config) as session:
                reader, writer = await w.inbox.next()
                other = writer.get_extra_info("session")
                await until(lambda: len(active(session)) == len(active(other)) == 2, "both joined")
                session.set_scheduler("RR")
                await event_of(other, lambda e: isinstance(e, multi.SchedulerChanged) and e.scheduler == "RR")
                assert (session.scheduler, other.scheduler) == ("RR", "RR")
                await transfer(session.writer, reader, pattern(4 * MIB))
                assert all(info.bytes_sent for info in active(session))
                session.set_scheduler(OnlyTheLast())
                assert (session.scheduler, other.scheduler) == ("OnlyTheLast", "RR")
                with pytest.raises(multi.ConfigError, match="no_such"):
                    session.set_scheduler("no_such")
                await transfer(session.writer, reader, pattern(MIB))
                session.set_scheduler({"name": "top_throughput", "n": 1})
                assert session.scheduler == "top_throughput"
                for wrong in (OnlyTheLast, None, object()):
                    with pytest.raises(TypeError, match="an object with `select`"):
                        session.set_scheduler(wrong)  # type: ignore[arg-type] # that is the test
                with pytest.raises(multi.ConfigError, match="no such parameter"):
                    session.set_scheduler({"name": "top_throughput", "m": 1})

    run(scenario())


def test_steering_is_configured_and_changed_live_on_both_sides(development_certificates: Path) -> None:
    """`standby` keeps everything on the entry of the largest weight, whichever that is, in both directions."""

    async def scenario() -> None:
        async with world(development_certificates) as w:
            first, second = {**OVER_IPV4, "weight": 2.0}, OVER_IPV6
            async with multi.connect(
                w.config(first, second, multi_config={"wait": "all"}, steering="redundant")
            ) as session:
                reader, writer = await w.inbox.next()
                other = writer.get_extra_info("session")
                assert (session.scheduler, other.scheduler) == ("steering.redundant", "steering.redundant")
                await transfer(session.writer, reader, pattern(MIB))
                assert all(info.bytes_sent for info in session.connections)
                session.set_steering("standby", max_rtt_ms=5000, max_loss=0.9)
                await event_of(
                    other, lambda e: isinstance(e, multi.SchedulerChanged) and e.scheduler == "steering.standby"
                )
                before = [info.bytes_sent - info.reinjected for info in other.connections]
                await transfer(writer, session.reader, pattern(MIB))
                moved = [
                    info.bytes_sent - info.reinjected - was for info, was in zip(other.connections, before, strict=True)
                ]
                best = next(i for i, info in enumerate(other.connections) if ":" not in info.local.rpartition(":")[0])
                assert moved[best] > 0.9 * MIB
                assert all(0.0 <= info.loss <= 1.0 for info in other.connections)
                with pytest.raises(multi.ConfigError, match='mode: found "fast"'):
                    session.set_steering("fast")
                with pytest.raises(multi.ConfigError, match="max_loss: found 2"):
                    session.set_steering("latency", max_loss=2)
                assert session.scheduler == "steering.standby"

    run(scenario())


def test_a_stream_and_a_group_of_streams_are_steered_by_themselves_on_both_sides(
    development_certificates: Path,
) -> None:
    async def scenario() -> None:
        async with (
            world(development_certificates) as w,
            multi.connect(w.config(OVER_IPV4, OVER_IPV6, multi_config={"wait": "all"})) as session,
        ):
            _, writer = await w.inbox.next()
            other = writer.get_extra_info("session")
            found = other.streams()

            async def opened(
                **steering: Any,
            ) -> tuple[multi.SessionWriter, multi.SessionReader, multi.SessionWriter]:
                _, near = await session.open_stream(**steering)
                near.write(b"x")
                reader, far = await anext(found)
                assert await reader.readexactly(1) == b"x"
                return near, reader, far

            def modes(*ends: multi.SessionWriter) -> list[str | None]:
                return [end.get_extra_info("steering") for end in ends]

            near, reader, far = await opened(steering={"mode": "redundant", "max_loss": 0.5})
            usual, _, far_usual = await opened()
            assert modes(near, far, usual, far_usual) == ["redundant", "redundant", None, None]
            before = [info.bytes_sent for info in session.connections]
            near.write(pattern(1000))
            assert await reader.readexactly(1000) == pattern(1000)
            sent = [info.bytes_sent - was for info, was in zip(session.connections, before, strict=True)]
            assert all(size >= 1000 for size in sent)

            session.set_steering("standby", streams=[near, usual])
            await until(lambda: modes(near, far, usual, far_usual) == ["standby"] * 4)
            session.set_steering(None, streams=[near])
            await until(lambda: modes(near, far, usual, far_usual) == [None, None, "standby", "standby"])
            transport, _ = await session.create_stream(asyncio.Protocol, steering="latency")
            assert transport.get_extra_info("steering") == "latency"

            assert session.scheduler == other.scheduler == "adaptive"
            with pytest.raises(multi.ConfigError, match='found "fast"'):
                await session.open_stream(steering="fast")
            with pytest.raises(multi.LocalProtocolError, match="only streams"):
                session.set_steering(None)
            with pytest.raises(multi.LocalProtocolError, match="another session"):
                session.set_steering("latency", streams=[far])

    run(scenario())


@pytest.mark.parametrize("answer", ["raises", "nonsense"])
def test_a_scheduler_that_fails_is_replaced_and_the_session_goes_on(
    answer: str, development_certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class adaptive:
        def select(self, request: multi.SendRequest, connections: Sequence[multi.ConnectionView]) -> Any:
            if answer == "raises":
                raise RuntimeError("no idea")

    async def scenario() -> None:
        async with world(development_certificates) as w, multi.connect(w.config(OVER_IPV4, OVER_IPV6)) as session:
            reader, _ = await w.inbox.next()
            await until(lambda: len(active(session)) == 2, "there is something to choose from")
            session.set_scheduler(adaptive())
            events = session.events()
            await transfer(session.writer, reader, pattern(MIB))
            async for event in events:
                if isinstance(event, multi.SchedulerChanged) and event.reason:
                    reason = event.reason
                    break
            assert "adaptive failed: " in reason
            assert __file__ in reason or answer == "nonsense"
            assert "scheduler adaptive failed: " in caplog.text

    run(scenario())


def test_connections_can_be_added_and_removed_but_not_the_last(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w:
            async with Relay(1) as nowhere:
                port = nowhere.port
            async with multi.connect(w.config(OVER_IPV4)) as session:
                reader, _ = await w.inbox.next()
                await session.confirmed()
                with pytest.raises(multi.LocalProtocolError, match="last usable"):
                    await session.remove_connection(0)
                (added,) = await session.add_connection(OVER_IPV6)
                assert [info.id for info in active(session)] == [0, added]
                with pytest.raises(multi.NoUsableConnection, match="refused") as caught:
                    await session.add_connection(OVER_IPV6 | {"remote_port": port})
                assert len(caught.value.attempts) == 1
                with pytest.raises(multi.ConfigError):
                    await session.add_connection(["tcp", "ipv5", "any"])
                with pytest.raises(multi.ConfigError, match=r'interface: found "wfi".* did you mean "wifi"'):
                    await session.add_connection(["tcp", "ipv4", "wfi"])
                with pytest.raises(multi.LocalProtocolError, match="none of 'active', 'primary', 'secondary'"):
                    session.set_role(0, 1)  # type: ignore[arg-type] # that is the test
                with pytest.raises(TypeError, match="allowed: a kind, an interface"):
                    await session.handover(["wifi"])  # type: ignore[arg-type] # that is the test
                moving = asyncio.ensure_future(transfer(session.writer, reader, pattern(4 * MIB)))
                await asyncio.sleep(0)
                await session.remove_connection(0)
                assert session.connections[0].state is ConnectionState.CLOSED
                await moving
                with pytest.raises(multi.LocalProtocolError, match="last usable"):
                    await session.remove_connection(added)
                with pytest.raises(multi.LocalProtocolError):
                    await session.remove_connection(77)

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_an_entry_may_be_added_while_the_session_looks_at_its_networks(loop: str) -> None:
    """A look had the entries in hand when one more came, and ended the session with an internal error."""

    async def scenario() -> None:
        inbox = Inbox()
        server = await multi.start_server(inbox.on_client, {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}})
        config = {
            "connection_priority": [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]],
            "remote_host": HOST,
            "remote_port": server.port,
        }
        async with multi.connect(config) as session:
            await session.confirmed()
            for added in ("127.0.0.3", "127.0.0.4"):
                await asyncio.sleep(0.5)  # the last look is over
                session.block("127.0.0.2")  # looks, in the next turn of the loop
                assert await asyncio.create_task(session.add_connection(["tcp", "ipv4", added]))
                session.unblock("127.0.0.2")
            session.writer.write(b"as before")
            reader, _ = await inbox.next()
            assert await reader.readexactly(9) == b"as before"
        server.close()
        await server.wait_closed()

    run(scenario(), loop)


def test_of_entries_that_were_added_nothing_stays_when_their_connections_are_removed() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        server = await multi.start_server(inbox.on_client, {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}})
        config = {
            "connection_priority": [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]],
            "multi_config": {"wait": "all"},
            "remote_host": HOST,
            "remote_port": server.port,
        }
        async with multi.connect(config) as session:
            await session.confirmed()
            resolver, paths = session._resolver, session._core.paths
            assert resolver is not None
            assert paths is not None
            for _ in range(5):
                (added,) = await session.add_connection(["tcp", "ipv4", "127.0.0.3"])
                assert len(resolver.entries) == 3
                await session.remove_connection(added)
                with pytest.raises(multi.NoUsableConnection):
                    await session.add_connection(["tcp", "ipv6", "127.0.0.3"])
            assert list(resolver.entries) == [0, 1]
            assert len(paths.slots) == 2
            assert not paths._unwanted
            await session.remove_connection(1)
            session.block("127.0.0.2")
            session.unblock("127.0.0.2")
            await asyncio.sleep(0.3)
            assert [info.id for info in active(session)] == [0], "what was removed is not dialled again"
            assert list(resolver.entries) == [0, 1]
        server.close()
        await server.wait_closed()

    run(scenario())


def test_cancelled_add_connection_wants_it_no_more(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w, Relay(w.server.port) as relay:
            relay.flowing.clear()
            async with multi.connect(w.config(OVER_IPV6)) as session:
                await session.confirmed()
                adding = asyncio.ensure_future(session.add_connection(w.over(relay)))
                await until(lambda: len(session.connections) == 2, "it authenticates")
                adding.cancel()
                assert isinstance((await asyncio.gather(adding, return_exceptions=True))[0], asyncio.CancelledError)
                await until(lambda: len(active(session)) == 1 and len(session.connections) == 2, "one is left")
                await event_of(session, lambda e: isinstance(e, ConnectionChanged))
                assert session.connections[1].state in (ConnectionState.LOST, ConnectionState.CLOSED)

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_silence_is_noticed_by_a_loop_that_is_never_idle(loop: str, development_certificates: Path) -> None:
    """What is received is handled before timers are looked at: that may not put them off again and again."""

    async def scenario() -> None:
        async with (
            world(development_certificates) as w,
            Relay(w.server.port) as relay,
            multi.connect(w.config(w.over(relay))) as session,
        ):
            await session.confirmed()
            other = await w.inbox.session()
            await other.confirmed()  # or it forgets the client while the relay holds the proof
            events = session.events()
            busy = True

            def turn() -> None:
                if busy:
                    session._driver.pump()
                    session._driver.loop.call_soon(turn)

            relay.flowing.clear()
            session.writer.write(b"never answered")
            turn()
            async for event in events:
                if isinstance(event, ConnectionChanged) and event.state is ConnectionState.SUSPECT:
                    reason = event.reason
                    break
            assert reason == "no progress"
            busy = False
            relay.flowing.set()

    run(scenario(), loop)


def test_network_changed_suspends_and_brings_back(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RETRY_FIRST", 300.0)  # by itself it would not be dialled in time

    async def scenario() -> None:
        async with (
            world(development_certificates) as w,
            Relay(w.server.port) as relay,
            multi.connect(w.config(OVER_IPV6, w.over(relay), multi_config={"wait": "all"})) as session,
        ):
            events = session.events()
            session.network_changed(usable=False)
            suspects = 0
            async for event in events:
                suspects += isinstance(event, ConnectionChanged) and event.state is ConnectionState.SUSPECT
                if suspects == 2:
                    break
            await until(lambda: len(active(session)) == 2, "both are heard again")
            await relay.close()
            await until(lambda: len(active(session)) == 1, "one is gone")
            await relay.open()
            session.network_changed(usable=True)
            await until(lambda: len(active(session)) == 2, "dialled at once")

    run(scenario())


def test_connections_that_span_networks_hear_what_the_application_knows(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Mock(spec=SteeredChannel)

    async def scenario() -> None:
        async with world(development_certificates) as w, multi.connect(w.config(OVER_IPV6)) as session:
            monkeypatch.setattr(SessionDriver, "steered_channels", lambda _: [(Mock(), channel)])
            session.network_changed("wlan0", usable=False)
            channel.network_lost.assert_called_once_with("wlan0", "")
            session.network_changed("wlan0")
            channel.network_lost.assert_called_once()

    run(scenario())


def test_one_connection_is_asked_for_a_sign_of_life(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with (
            world(development_certificates) as w,
            multi.connect(w.config(OVER_IPV6, OVER_IPV4, multi_config={"wait": "all"})) as session,
        ):
            await session.confirmed()
            await asyncio.sleep(0.1)  # nothing else is under way
            asked, other = session.connections
            session.ping(asked.id)
            session.ping(99)  # there is none: nothing happens
            await until(lambda: session.connections[0].bytes_received > asked.bytes_received, "the answer")
            assert session.connections[1].bytes_received == other.bytes_received

    run(scenario())


# --- streams ---


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ["tcp-sealed", "quic"])
def test_many_streams_at_once_arrive_whole(name: str, loop: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, name), server={"limits": {"max_streams": 8}}) as pair:

            async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
                while data := await reader.read(50_000):
                    writer.write(data)
                    await writer.drain()
                writer.close()
                await writer.wait_closed()

            async def serve() -> None:
                async with asyncio.TaskGroup() as group:
                    async for reader, writer in pair.server_session.streams():
                        group.create_task(echo(reader, writer))

            async def ask(number: int) -> None:
                reader, writer = await pair.session.open_stream(priority=number % 8)
                data = pattern(10_000 + 7_000 * (number % 13), number)
                writer.write(data)
                writer.write_eof()
                assert await reader.read() == data
                writer.close()
                await writer.wait_closed()

            serving = asyncio.ensure_future(serve())
            await asyncio.gather(*(ask(number) for number in range(60)))
            pair.writer.close()
            await pair.writer.wait_closed()
            await serving

    run(scenario(), loop)


def test_opening_waits_while_the_peer_allows_no_more_streams(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates), server={"limits": {"max_streams": 2}}) as pair:
            opened = [await pair.session.open_stream() for _ in range(2)]
            third = asyncio.ensure_future(pair.session.open_stream())
            await asyncio.sleep(0.05)
            assert not third.done()
            opened[0][1].write(b"done")
            opened[0][1].close()
            async for reader, writer in pair.server_session.streams():
                assert await reader.read() == b"done"
                writer.close()
                break
            opened.append(await third)
            waiting = asyncio.ensure_future(pair.session.open_stream())
            await asyncio.sleep(0)
            pair.writer.transport.abort()
            assert isinstance(await collect(waiting), multi.SessionLost)

    run(scenario())


def test_those_who_wait_for_a_stream_get_one_in_turn_and_are_not_all_woken_for_each(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    open_stream = SessionCore.open_stream

    def counted(core: SessionCore, priority: int, deadline: float = 0.0, *, now: float) -> StreamId | None:
        asked.append(priority)
        return open_stream(core, priority, deadline, now=now)

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates), server={"limits": {"max_streams": 4}}) as pair:

            async def serve() -> None:
                async for reader, writer in pair.server_session.streams():
                    assert await reader.read() == b"done"
                    writer.close()

            serving = asyncio.ensure_future(serve())
            opened: list[int] = []

            async def use(number: int) -> None:
                reader, writer = await pair.session.open_stream()
                opened.append(number)
                writer.write(b"done")
                writer.close()
                if number < 100:
                    latecomers.append(asyncio.ensure_future(use(200 + number)))  # just when there may be room
                assert await reader.read() == b""

            latecomers: list[asyncio.Future[None]] = []
            monkeypatch.setattr(SessionCore, "open_stream", counted)
            waiting = [asyncio.ensure_future(use(number)) for number in range(200)]
            await asyncio.sleep(0)
            for gives_up in waiting[150::2]:
                gives_up.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await asyncio.gather(*latecomers)
            assert len(asked) < 4 * len(opened), "only who is next asks"
            assert opened[:175] == [*range(150), *range(151, 200, 2)]
            assert len(opened) == 275

            pair.writer.transport.abort()
            await serving

    run(scenario())


def test_the_last_read_of_a_stream_makes_room_for_another_at_once(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates), server={"limits": {"max_streams": 1}}) as pair:
            reader, writer = await pair.session.open_stream()
            writer.write(b"done")
            writer.write_eof()
            other_reader, other_writer = await anext(pair.server_session.streams())
            other_writer.write_eof()
            assert await reader.read() == b""
            await asyncio.sleep(0.1)  # everything is acknowledged
            assert await other_reader.read() == b"done"
            _, another = await asyncio.wait_for(pair.session.open_stream(), 2.0)
            another.close()

    run(scenario())


def test_a_stream_that_nobody_holds_any_more_ends_and_makes_room(development_certificates: Path) -> None:
    async def scenario() -> list[bytes]:
        read = []
        async with multi_pair(Way(development_certificates), server={"limits": {"max_streams": 1}}) as pair:
            coming = pair.server_session.streams()
            for number in range(4):
                pair_of_stream = await pair.session.open_stream()
                pair_of_stream[1].write(b"%d" % number)
                del pair_of_stream
                reader, writer = await anext(coming)
                writer.write(b"never read")
                read.append(await reader.read())
                del reader, writer
        return read

    with pytest.warns(ResourceWarning, match="unclosed <SessionTransport stream=2 open"):
        assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [b"0", b"1", b"2", b"3"]


def test_streams_of_higher_priority_overtake(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            _, bulk = await pair.session.open_stream(priority=7)
            _, urgent = await pair.session.open_stream(priority=0)
            bulk.write(bytes(4 * MIB))
            urgent.write(b"now")
            streams = pair.server_session.streams()
            bulk_reader, _ = await anext(streams)
            urgent_reader, _ = await anext(streams)
            reading = asyncio.ensure_future(bulk_reader.readexactly(4 * MIB))
            assert await urgent_reader.readexactly(3) == b"now"
            assert not reading.done()
            await reading
            with pytest.raises(multi.LocalProtocolError, match="priority 8"):
                await pair.session.open_stream(priority=8)

    run(scenario())


def test_channels_hear_at_which_pace_a_small_window_is_enough(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: set[float] = set()
    monkeypatch.setattr(StreamChannel, "pace", lambda channel, rate: said.add(rate))

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            while 0.0 not in said:
                pair.writer.write(bytes(100_000))
                await asyncio.sleep(0.01)
            monkeypatch.setattr(Sender, "pace", lambda sender, connection: 5e6)
            while 5e6 not in said:
                pair.writer.write(bytes(100_000))
                await asyncio.sleep(0.01)

    run(scenario())


def test_less_waits_below_a_session_while_one_stream_is_more_urgent(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []
    monkeypatch.setattr(StreamChannel, "queue_less", lambda channel, less: said.append(less))

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            _, alike = await pair.session.open_stream()
            alike.write(b"x")
            assert said == []
            reader, urgent = await pair.session.open_stream(priority=0)
            urgent.write(b"now")
            streams = pair.server_session.streams()
            pairs = [await anext(streams) for _ in range(2)]
            theirs, answer = pairs[1]
            assert await theirs.readexactly(3) == b"now"
            assert said == [True, True], "at both ends"
            answer.close()
            urgent.close()
            assert (await reader.read(), await theirs.read()) == (b"", b"")
            await until(lambda: said == [True, True, False, False])

    run(scenario())


@pytest.mark.parametrize("name", ["tcp-sealed", "quic"])
def test_reset_reaches_both_ends_and_closing_the_reader_the_writer(name: str, development_certificates: Path) -> None:
    async def write_on(writer: multi.SessionWriter) -> None:
        while True:
            writer.write(bytes(CHUNK))
            await writer.drain()

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, name)) as pair:
            _, writer = await pair.session.open_stream()
            writer.write(b"some")
            far_reader, far_writer = await anext(pair.server_session.streams())
            assert await far_reader.readexactly(4) == b"some"
            writer.reset(42)
            with pytest.raises(multi.StreamReset) as caught:
                await far_reader.read(1)
            assert caught.value.code == 42
            assert not far_reader.at_eof()
            assert isinstance(far_reader.exception(), multi.StreamReset)
            with pytest.raises(multi.StreamReset) as caught:  # nobody reads what it writes
                await write_on(far_writer)
            assert caught.value.code == 42
            far_writer.close()

            _, writer = await pair.session.open_stream()
            writer.write(b"x")
            _, far_writer = await anext(pair.server_session.streams())
            far_writer.close()
            with pytest.raises(multi.StreamReset):
                await write_on(writer)
            pair.writer.write(b"the session lives on")
            assert await pair.server_reader.readexactly(20) == b"the session lives on"

    run(scenario())


def test_wait_closed_of_a_stream_raises_when_the_peer_refused_what_was_written(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            _, writer = await pair.session.open_stream()
            writer.write(bytes(4 * MIB))  # far beyond the window
            _, far_writer = await anext(pair.server_session.streams())
            far_writer.close()
            writer.write_eof()
            with pytest.raises(multi.StreamReset):
                await writer.wait_closed()

    run(scenario())


def test_two_iterators_over_streams_share_them(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            waiting = [asyncio.ensure_future(anext(pair.server_session.streams())) for _ in range(2)]
            await asyncio.sleep(0)
            opened = [await pair.session.open_stream() for _ in range(2)]
            for _, writer in opened:
                writer.write(b"x")
            assert len(await asyncio.gather(*waiting)) == len(opened)
            rest = asyncio.ensure_future(anext(pair.server_session.streams(), None))
            pair.writer.close()
            assert await rest is None

    run(scenario())


def test_no_stream_can_be_opened_on_a_closing_session(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            pair.writer.close()
            with pytest.raises((multi.LocalProtocolError, multi.SessionLost)):
                await pair.session.open_stream()
            await pair.writer.wait_closed()
            with pytest.raises(multi.SessionLost):
                await pair.session.open_stream()

    run(scenario())


# --- events ---


def test_each_subscription_starts_with_the_connections_and_ends_with_the_session(
    development_certificates: Path,
) -> None:
    async def scenario() -> None:
        async with world(development_certificates) as w:
            config = w.config(OVER_IPV4, OVER_IPV6, multi_config={"wait": "all"})
            async with multi.connect(config) as session:
                early = session.events()
                late_events = session.events()
                first = [await anext(early), await anext(early)]
                assert [(e.connection, e.state) for e in first if isinstance(e, ConnectionChanged)] == [
                    (0, ACTIVE),
                    (1, ACTIVE),
                ]
                session.set_role(1, Role.BACKUP)
                assert await anext(early) == multi.RoleChanged(session.connections[1].id, Role.BACKUP, False)
            assert [type(e) for e in [e async for e in early]][-1] is multi.SessionEnded
            seen = [e async for e in late_events]
            assert isinstance(seen[2], multi.RoleChanged)
            assert isinstance(seen[-1], multi.SessionEnded)
            assert seen[-1].reason.orderly
            assert [e async for e in session.events()] == []

    run(scenario())


def test_slow_subscriber_is_told_how_much_it_missed(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            slow, other = pair.session.events(), pair.session.events()
            assert isinstance(await anext(other), ConnectionChanged)
            for number in range(1500):
                pair.session.set_role(0, Role.ACTIVE if number % 2 else Role.BACKUP)
                assert isinstance(await anext(other), multi.RoleChanged)
            dropped = await anext(slow)
            assert isinstance(dropped, multi.EventsDropped)
            assert dropped.count == 501
            assert isinstance(await anext(slow), multi.RoleChanged)

    run(scenario())
