"""Short uses of what `multi` offers, one function each, over loopback. Run: python examples/tour.py"""

import asyncio
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

import multi
from multi.lab.cert import write_development_certificates

# --- configurations ---


def read_configuration(source: multi.ConfigLike) -> multi.Config:
    try:
        return multi.load_config(source)  # a file, a dict, a multi:// URL
    except multi.ConfigError as error:
        raise SystemExit(f"{error.key_path}: {error.message}") from None


# --- opening, and what can go wrong ---


async def ask(host: str, port: int, question: bytes) -> bytes:
    try:
        reader, writer = await multi.open_connection(host, port)
    except multi.NoUsableConnection as error:
        for candidate, reason in error.attempts:
            print(f"{candidate}: {reason}")
        raise
    writer.write(question + b"\n")
    reply = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return reply


async def ask_safely(host: str, port: int, question: bytes) -> bytes | None:
    try:
        return await ask(host, port, question)
    except multi.SessionRefused as error:
        print("refused:", error.reason)
    except multi.StreamReset as error:
        print("the peer reset the stream with code", error.code)
    except multi.SessionLost as error:
        busy = error.reason.cause is multi.Cause.RESOURCE_LIMIT
        print("lost:", error.reason, "(try later)" if busy else "")
    except multi.TransportError as error:
        print("no network:", error)
    except multi.DependencyError as error:
        print("something is not installed:", error)
    except multi.RemoteProtocolError as error:
        print("the peer does not keep to the protocol:", error)
    except multi.MultiError as error:  # whatever else `multi` raises on purpose
        print("failed:", error)
    return None


async def until_confirmed(session: multi.Session) -> None:
    while session.state is multi.SessionState.OPENING:
        await session.confirmed()  # raises SessionRefused or SessionLost


# --- serving ---


async def shout(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    async for line in reader:
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def serve(port: int) -> multi.Server:
    server = await multi.start_server(shout, "127.0.0.1", port)
    reached = [limit for limit, count in server.statistics.items() if count]
    print("sessions now:", len(server.sessions), "limits reached:", *(reached or ["none"]))
    return server


def serve_on_all_cores() -> None:
    stopped_by = multi.run_server(shout, {"listen": {"port": 7788}, "workers": "auto"})
    print("ended by", stopped_by.name)


async def stop(server: multi.Server) -> None:
    await server.drain(10.0)  # clients hear multi.GoingAway, and the last session has ended within 10 s


def report(server: multi.Server) -> None:
    stats: multi.ServerStats = server.stats()
    for name, transport in stats.transports.items():
        print(f"{name}: {sent_twice(transport):.1%} of what was sent was sent again")


def sent_twice(transport: multi.TransportStats) -> float:
    return transport.reinjected / transport.bytes_sent if transport.bytes_sent else 0.0


def is_busy(session: multi.Session) -> bool:
    stats: multi.SessionStats = session.stats()
    return stats.in_flight > 0


# --- protocols and transports ---


class Shouting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, multi.SessionTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


class Collecting(asyncio.Protocol):
    def __init__(self) -> None:
        self.line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.line.done():
            self.line.set_result(data)


async def talk_by_protocol() -> bytes:
    server = await multi.create_server(Shouting, "127.0.0.1", 0)
    transport, protocol = await multi.create_connection(Collecting, "127.0.0.1", server.port)
    transport.write(b"by protocol")
    line = await protocol.line
    transport.close()
    server.close()
    await server.wait_closed()
    return line


async def encrypt_inside(transport: asyncio.Transport, protocol: asyncio.Protocol, ca: str) -> asyncio.Transport:
    context = ssl.create_default_context(cafile=ca)
    return await multi.start_tls(transport, protocol, context, server_hostname="localhost")


# --- what a session is doing ---


def describe(connection: multi.ConnectionInfo) -> str:
    usable = connection.state is multi.ConnectionState.ACTIVE and connection.role is multi.Role.ACTIVE
    family = "IPv6" if connection.family is multi.Family.IPV6 else "IPv4"
    how = f"{connection.transport} over {family}, {connection.interface or 'any interface'}"
    return f"{how}: {'carries data' if usable else connection.reason}, round trip {connection.rtt * 1000:.1f} ms"


def keep_in_reserve(session: multi.Session, connection: multi.ConnectionId) -> None:
    session.set_role(connection, multi.Role.BACKUP)


def on_connection(event: multi.ConnectionChanged) -> None:
    facts: multi.ConnectionFacts = event.facts
    print(f"{facts.transport} over {facts.interface or facts.local}: {event.state.value}")


def on_attempt(event: multi.AttemptFailed) -> None:
    candidate: multi.Candidate = event.candidate
    print(f"{candidate.transport} over {candidate.interface or 'any interface'} failed: {event.reason}")


def on_handover(event: multi.HandoverChanged) -> None:
    if event.state is multi.HandoverState.FAILED:
        print(f"still where we were, because {event.reason}")


def handle(event: multi.Event | multi.EventsDropped) -> None:
    match event:
        case multi.ConnectionChanged():
            on_connection(event)
        case multi.AttemptFailed():
            on_attempt(event)
        case multi.HandoverChanged():
            on_handover(event)
        case multi.SessionDetached(resume_timeout=seconds):
            print(f"no network; waiting for up to {seconds:g} s")
        case multi.SessionResumed(after=seconds):
            print(f"back after {seconds:.1f} s")
        case multi.NetworkChanged(interface=name, usable=usable) | multi.SignalChanged(interface=name, fading=usable):
            print(name, usable)
        case multi.RoleChanged(connection=number, role=role):
            print(f"connection {number} is {role.name.lower()}")
        case multi.SchedulerChanged(scheduler=scheduler):
            print("now scheduled by", scheduler)
        case multi.AddressesAnnounced(addresses=addresses):
            print("the server is also at", addresses)
        case multi.GoingAway(deadline=deadline):
            print(f"the server ends this session within {deadline:g} s: open another one")
        case multi.DatagramDropped(size=size, max_size=max_size):
            print(f"{size} bytes were too many, {max_size} fit")
        case multi.BudgetChanged(name=name, level=level, until=until):
            print(f"{level} % of what {name} may carry until {until} are used")
        case multi.EventsDropped(count=count):
            print(f"{count} events were missed")
        case multi.SessionConfirmed() | multi.Warned() | multi.SessionEnded():
            print(event)  # every event is also a sentence


async def watch(session: multi.Session) -> None:
    async for event in session.events():
        handle(event)


def why_it_ended(reason: multi.Reason) -> str:
    return "in order" if reason.orderly else f"{reason.cause.value}: {reason}"


# --- streams and datagrams ---


async def open_urgent(session: multi.Session) -> tuple[multi.StreamId, multi.SessionWriter]:
    _reader, writer = await session.open_stream(priority=0, deadline=0.2, steering="latency")
    stream: multi.StreamId = writer.get_extra_info("stream")
    return stream, writer


def send_position(socket: multi.DatagramSocket, position: bytes) -> multi.DatagramCounts:
    try:
        socket.send(position)
    except multi.DatagramTooLarge as error:
        socket.send(position[: error.max_size])
    except multi.LocalProtocolError:
        print("this peer takes no datagrams")
    return socket.counts


# --- a scheduler, and what a transport measures ---


@multi.register_scheduler("patient")
class Patient:
    """The nearest connection, even if that means waiting for it."""

    def select(
        self, request: multi.SendRequest, connections: Sequence[multi.ConnectionView]
    ) -> Sequence[multi.ConnectionView]:
        nearest = min(connections, key=lambda connection: connection.rtt)
        return [nearest] if nearest.credit > 0 else multi.WAIT


def use_scheduler(session: multi.Session, scheduler: multi.Scheduler) -> None:
    session.set_scheduler(scheduler)


def queued(sample: multi.TransportSample) -> float:
    """Seconds that what has not been sent yet will take."""
    return sample.not_sent / sample.rate if sample.rate else 0.0


class CompressedSettings(multi.TransportSection):
    """What `register_transport("compressed", settings=CompressedSettings)` puts into `compressed_config`."""

    level: int = 6


def proves_itself(tls: multi.TlsSettings) -> bool:
    """What a transport of your own may ask of `ssl_config`: has this side a certificate?"""
    return tls.cert is not None and tls.key is not None


async def main() -> None:
    server = await serve(0)
    print(await ask_safely("127.0.0.1", server.port, b"hello"))
    print(await talk_by_protocol())
    config = read_configuration(
        {"connection_priority": [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]],
         "remote_host": "127.0.0.1", "remote_port": server.port}
    )  # fmt: skip
    async with multi.connect(config) as session:
        watching = asyncio.create_task(watch(session))
        await until_confirmed(session)
        use_scheduler(session, Patient())
        session.writer.write(b"hello again\n")
        print(await session.reader.readline())
        print(send_position(session.datagrams(ttl=0.1), b"60.17, 24.94"))
        keep_in_reserve(session, session.connections[0].id)
        print(*map(describe, session.connections), sep="\n")
        print("busy" if is_busy(session) else "idle")
    await watching
    report(server)
    await stop(server)
    with tempfile.TemporaryDirectory() as directory:
        write_development_certificates(Path(directory), [])
        print(await over_tls(Path(directory)))


async def over_tls(directory: Path) -> bytes:
    """TLS inside a session, as for a service that begins in the clear (STARTTLS)."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "server-cert.pem", directory / "server-key.pem")

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        await writer.start_tls(context)
        await shout(reader, writer)

    server = await multi.start_server(on_client, "127.0.0.1", 0)
    transport, protocol = await multi.create_connection(Collecting, "127.0.0.1", server.port)
    inside = await encrypt_inside(transport, protocol, str(directory / "ca.pem"))
    inside.write(b"a secret in a secret\n")
    line = await protocol.line
    inside.close()
    server.close()
    await server.wait_closed()
    return line


if __name__ == "__main__":
    asyncio.run(main())
