"""Passing connections on to another worker, which may not take them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading

import pytest

from multi.asyncio.rare_warnings import INTERVAL, RareWarnings
from multi.workers import worker
from multi.workers.counts import SharedCounts, shared_memory
from multi.workers.worker import TAKEN_AT_ONCE, UNSEEN, PassingOn, pass_on

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are for Linux")


def test_a_worker_that_takes_nothing_holds_nobody_up_and_fills_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(worker, "_warnings", RareWarnings(worker.logger, lambda: now))
    inbox, outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def flood() -> None:
        while not caplog.records:
            pass_on(outbox, outbox, UNSEEN)

    with inbox, outbox:
        flooding = threading.Thread(target=flood, daemon=True)
        flooding.start()
        flooding.join(10)
        assert not flooding.is_alive()
        for _ in range(100):
            pass_on(outbox, outbox, UNSEEN)
        assert len(caplog.records) == 1
        now = INTERVAL
        pass_on(outbox, outbox, UNSEEN)
    assert "could not be passed on" in caplog.messages[0]
    assert "(100 more" in caplog.messages[1]


def test_what_is_passed_on_is_taken_in_order_and_many_in_a_turn() -> None:
    inbox, outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taken: list[tuple[bytes, str | None]] = []

    def take(sock: socket.socket, client: str | None) -> None:
        with sock:
            taken.append((sock.recv(1), client))

    async def scenario() -> None:
        memory = shared_memory(1)
        steering = PassingOn(b"1234567", 0, inbox, [outbox], SharedCounts(memory, 1, 0, b""))
        os.close(memory)  # it is mapped
        steering.start(take)
        for number in range(TAKEN_AT_ONCE + 1):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                theirs.send(bytes([number]))
                pass_on(outbox, ours, UNSEEN if number else b"p192.0.2.1:7")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(taken) == TAKEN_AT_ONCE
        await asyncio.sleep(0)
        assert taken == [(bytes([n]), None if n else "192.0.2.1:7") for n in range(TAKEN_AT_ONCE + 1)]
        steering.stop()

    with inbox, outbox:
        asyncio.run(scenario())


def test_a_connection_that_comes_before_anybody_listens_is_closed() -> None:
    """Where QUIC listens first, its datagrams are taken already; the client need not wait for an answer."""
    inbox, outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, accepted = socket.socketpair()

    async def scenario() -> None:
        memory = shared_memory(1)
        steering = PassingOn(b"1234567", 0, inbox, [outbox], SharedCounts(memory, 1, 0, b""))
        os.close(memory)
        steering.take_datagrams(7788, lambda data, arrival: None)
        with accepted:
            pass_on(outbox, accepted, UNSEEN)
        client.setblocking(False)
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), 5) == b""
        steering.stop()

    with inbox, outbox, client:
        asyncio.run(scenario())
