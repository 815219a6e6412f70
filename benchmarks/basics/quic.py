"""Throughput of one QUIC connection on loopback: `multi` with each engine against the engines' own asyncio APIs.

Two processes, the same certificate and verification, the same size of datagrams, 64 KiB writes, one direction. The
clock runs from the first write until the receiver has confirmed that the last byte came and that all were right. The
parties are measured in turn; a ratio is taken between neighbours and its median printed against what is promised.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks import pattern

WRITE = 64 * 1024
READ = 1 << 20
SIZES = (1452, 1350)  # bytes of UDP payload: a full Ethernet frame over IPv6, and the default of `multi`
PATIENCE = 120.0  # seconds one transfer may take

Reader = Any
Writer = Any


@dataclass(frozen=True)
class Party:
    name: str
    engine: str
    stock: bool = False
    against: str = ""
    promise: float = 0.0
    """At least so many times the rate of `against`."""


STOCK = "aioquic"
PARTIES = (
    Party(STOCK, "aioquic", stock=True),
    Party("multi, aioquic", "aioquic", against=STOCK, promise=1.3),
    Party("multi, qh3", "qh3", against=STOCK, promise=2.5),
    Party("multi, noq", "noq", against="multi, qh3", promise=0.9),
    Party("qh3", "qh3", stock=True, against=STOCK),
)


@dataclass(frozen=True)
class Transfer:
    party: Party
    size: int
    datagram: int
    certificates: Path


@dataclass(frozen=True)
class Outcome:
    mbps: float
    sender: float
    """Processor seconds of the sending process per second of the transfer."""
    receiver: float


class _Sums:
    """What the receiver tells the sender at the end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._checker = pattern.Checker()
        self._started = 0.0

    def feed(self, data: bytes) -> bool:
        """True when all has come."""
        self._started = self._started or process_time()
        self._checker.feed(data)
        return self._checker.received >= self._size

    def line(self) -> bytes:
        right = self._checker.damaged_at is None and self._checker.received == self._size
        used = process_time() - self._started
        return f"{'right' if right else 'damaged'} {self._checker.received} {used}\n".encode()


async def _receive(transfer: Transfer, reader: Reader, writer: Writer) -> None:
    sums = _Sums(transfer.size)
    while data := await reader.read(READ):
        if sums.feed(data):
            break
    writer.write(sums.line())
    await reader.read()


async def _send(transfer: Transfer, reader: Reader, writer: Writer) -> Outcome:
    started, used = perf_counter(), process_time()
    for offset in range(0, transfer.size, WRITE):
        writer.write(pattern.piece(offset, min(WRITE, transfer.size - offset)))
        if transfer.party.stock:
            await asyncio.sleep(0)  # `drain` waits for nothing there; reading must not wait for the last write
        else:
            await writer.drain()
    verdict, received, theirs = (await reader.readline()).decode().split()
    seconds = perf_counter() - started
    if verdict != "right" or int(received) != transfer.size:
        raise SystemExit(f"{transfer.party.name}: {received} bytes, {verdict}")
    return Outcome(transfer.size * 8 / seconds / 1e6, (process_time() - used) / seconds, float(theirs) / seconds)


# `multi`


def _multi_settings(transfer: Transfer) -> dict[str, Any]:
    return {"engine": transfer.party.engine, "max_datagram_size": transfer.datagram}


async def _serve_multi(transfer: Transfer, pipe: Connection) -> None:
    import multi

    finished = asyncio.Event()

    async def on_client(reader: Reader, writer: Writer) -> None:
        await _receive(transfer, reader, writer)
        writer.close()
        with suppress(ConnectionError):  # the client has all it wants
            await writer.wait_closed()
        finished.set()

    files = transfer.certificates
    config = {
        "listen": {"host": "127.0.0.1", "port": 0, "transports": ["quic"]},
        "ssl_config": {"cert": str(files / "server-cert.pem"), "key": str(files / "server-key.pem")},
        "quic_config": _multi_settings(transfer),
    }
    server = await multi.start_server(on_client, config)
    pipe.send(server.port)
    await finished.wait()
    server.close()


async def _send_multi(transfer: Transfer, port: int) -> Outcome:
    import multi

    config = {
        "connection_priority": [["quic", "ipv4", "any"]],
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "ssl_config": {"ca": str(transfer.certificates / "ca.pem")},
        "quic_config": _multi_settings(transfer),
    }
    async with multi.connect(config) as session:
        outcome = await _send(transfer, session.reader, session.writer)
        assert [connection.transport for connection in session.connections] == ["quic"]
        return outcome


# The engines' own APIs: aioquic and qh3 offer the same one


def _stock(transfer: Transfer, *, is_client: bool) -> tuple[Any, Any]:
    """The engine's `connect` or `serve`, and a configuration for it."""
    package = transfer.party.engine
    api = import_module(f"{package}.asyncio")
    suite = import_module(f"{package}.tls").CipherSuite.AES_256_GCM_SHA384  # what `multi` agrees on
    configuration = import_module(f"{package}.quic.configuration").QuicConfiguration(
        is_client=is_client,
        alpn_protocols=["bench"],
        max_datagram_size=transfer.datagram,
        cipher_suites=[suite],
    )
    return (api.connect if is_client else api.serve), configuration


async def _serve_stock(transfer: Transfer, pipe: Connection) -> None:
    serve, configuration = _stock(transfer, is_client=False)
    configuration.load_cert_chain(
        str(transfer.certificates / "server-cert.pem"), str(transfer.certificates / "server-key.pem")
    )
    finished = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def on_stream(reader: Reader, writer: Writer) -> None:
        task = asyncio.ensure_future(_receive(transfer, reader, writer))
        tasks.add(task)
        task.add_done_callback(lambda _: finished.set())

    server = await serve("127.0.0.1", 0, configuration=configuration, stream_handler=on_stream)
    pipe.send(server._transport.get_extra_info("sockname")[1])
    await finished.wait()
    for task in tasks:
        await task
    server.close()


async def _send_stock(transfer: Transfer, port: int) -> Outcome:
    connect, configuration = _stock(transfer, is_client=True)
    configuration.load_verify_locations(cafile=str(transfer.certificates / "ca.pem"))
    configuration.server_name = "localhost"
    async with connect("127.0.0.1", port, configuration=configuration) as client:
        reader, writer = await client.create_stream()
        outcome = await _send(transfer, reader, writer)
        writer.write_eof()
        return outcome


# Processes


def _serve_process(transfer: Transfer, pipe: Connection) -> None:
    asyncio.run((_serve_stock if transfer.party.stock else _serve_multi)(transfer, pipe))


def _send_process(transfer: Transfer, port: int, results: Connection) -> None:
    send = _send_stock if transfer.party.stock else _send_multi
    results.send(asyncio.run(asyncio.wait_for(send(transfer, port), PATIENCE)))


def measure(transfer: Transfer) -> Outcome:
    """One transfer in two fresh processes."""
    context = multiprocessing.get_context("spawn")
    ports, port_end = context.Pipe(duplex=False)
    results, result_end = context.Pipe(duplex=False)
    server = context.Process(target=_serve_process, args=(transfer, port_end))
    server.start()
    port_end.close()
    try:
        client = context.Process(target=_send_process, args=(transfer, ports.recv(), result_end))
        client.start()
        result_end.close()
        try:
            outcome: Outcome = results.recv()
        except EOFError:
            raise SystemExit(f"{transfer.party.name}: the transfer failed") from None
        finally:
            client.join()
    finally:
        server.join(10.0)
        server.terminate()
    return outcome


def compare(parties: Sequence[Party], size: int, datagram: int, rounds: int, certificates: Path) -> None:
    """Measure the parties in turn and print a line for each."""
    outcomes: dict[str, list[Outcome]] = {party.name: [] for party in parties}
    for _ in range(rounds):
        for party in parties:
            outcomes[party.name].append(measure(Transfer(party, size, datagram, certificates)))
    print(f"{size >> 20} MiB in datagrams of {datagram} bytes, {rounds} runs of each in turn, Mbit/s")
    for party in parties:
        print(_line(party, outcomes))


def _line(party: Party, outcomes: dict[str, list[Outcome]]) -> str:
    own = outcomes[party.name]
    rates = [outcome.mbps for outcome in own]
    busy = [statistics.median(values) for values in ([o.sender for o in own], [o.receiver for o in own])]
    line = (
        f"  {party.name:15} median {statistics.median(rates):6.0f}  (min {min(rates):.0f}, max {max(rates):.0f})"
        f"  busy: sender {busy[0]:4.0%}, receiver {busy[1]:4.0%}"
    )
    if not party.against:
        return line
    pairs = zip(rates, (outcome.mbps for outcome in outcomes[party.against]), strict=True)
    ratio = statistics.median(ours / base for ours, base in pairs)
    line += f"  {ratio:5.2f} x {party.against}"
    if party.promise:
        held = "held" if ratio >= party.promise else f"short by {party.promise - ratio:.2f}"
        line += f"  (promised {party.promise:g}: {held})"
    return line


def _obstacle(engine: str) -> str:
    """Why it cannot be measured."""
    from multi.errors import TransportError
    from multi.transports.quic.engine import implementation

    try:
        implementation(engine)
    except TransportError as error:
        return str(error)
    return ""


def run(*, quick: bool) -> None:
    """Print medians, ratios and what is promised of them, for each size of datagrams."""
    from multi.lab.cert import write_development_certificates

    missing = {engine: reason for engine in {party.engine for party in PARTIES} if (reason := _obstacle(engine))}
    parties = [party for party in PARTIES if party.engine not in missing]
    for party in PARTIES:
        if party not in parties:
            print(f"  {party.name:15} not measured: {missing[party.engine]}")
    measured = {party.name for party in parties}
    parties = [party if party.against in measured else replace(party, against="") for party in parties]
    size, rounds = (16 << 20, 3) if quick else (64 << 20, 7)
    with tempfile.TemporaryDirectory(prefix="multi-quic-") as directory:
        write_development_certificates(Path(directory), ["localhost"])
        each = partial(compare, parties, size, rounds=rounds, certificates=Path(directory))
        for datagram in SIZES[:1] if quick else SIZES:
            each(datagram=datagram)


if __name__ == "__main__":
    run(quick="--quick" in sys.argv)
