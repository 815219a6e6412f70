"""A transport of your own: TCP through asyncio's transports, with a count of the bytes that travel.

Run it to see a session over it. To use it, import this module in client and server and say "counted" where the
configuration names a transport. What every transport keeps to is in `multi/transports/base.py`.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import multi

BUFFER = 256 * 1024  # bytes that may wait for the network
carried = {"sent": 0, "received": 0}


class Channel(asyncio.Protocol):
    """One connection: asyncio calls the first methods, the session those below."""

    def __init__(self, accept: multi.AcceptCallback | None = None) -> None:
        self._accept = accept
        self._sink: multi.ChannelSink | None = None
        self._closing, self._written = False, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(BUFFER - 1)  # `resume_writing` comes whenever there was no credit
        transport.pause_reading()  # until there is a sink
        local, remote = ("{}:{}".format(*transport.get_extra_info(name)) for name in ("sockname", "peername"))
        self.info = multi.ChannelInfo("counted", family=multi.Family.IPV4, local=local, remote=remote)
        if self._accept:
            self._accept(self)

    def data_received(self, data: bytes) -> None:
        carried["received"] += len(data)
        if self._sink and not self._closing:
            self._sink.data_received(memoryview(data), 0)
            self._sink.batch_finished()

    def resume_writing(self) -> None:
        if self._sink:
            self._sink.writable()

    def connection_lost(self, error: Exception | None) -> None:
        if self._sink:
            self._sink.connection_lost(multi.TransportError(str(error)) if error else None)

    def start(self, sink: multi.ChannelSink) -> None:
        self._sink = sink
        self._transport.resume_reading()

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], lane: int) -> None:
        size = sum(map(len, buffers))
        carried["sent"] += size
        self._written += size
        self._transport.writelines(buffers)

    def flush(self) -> None:
        pass  # asyncio sends at once

    def credit(self) -> int:
        return max(0, BUFFER - self._transport.get_write_buffer_size())

    def sample(self) -> multi.TransportSample:
        waiting = self._transport.get_write_buffer_size()
        return multi.TransportSample(bytes_acked=self._written - waiting, unacked=waiting, not_sent=waiting)

    def close(self) -> None:
        self._closing = True
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(1.0, self._transport.abort)  # if the peer does not end too

    def abort(self) -> None:
        self._sink = None
        self._transport.abort()


@multi.register_transport("counted")
class Counted(multi.Transport):
    name = "counted"

    async def dial(self, candidate: multi.Candidate, settings: multi.TransportSettings) -> multi.Channel:
        loop, remote = asyncio.get_running_loop(), (candidate.remote_address, candidate.remote_port)
        local = (candidate.local_address, 0) if candidate.local_address else None
        try:
            return (await loop.create_connection(Channel, *remote, local_addr=local))[1]
        except OSError as error:
            raise multi.TransportError(f"cannot connect: {error.strerror}") from error

    async def listen(
        self, host: str, port: int, settings: multi.TransportSettings, accept: multi.AcceptCallback
    ) -> multi.Listener:
        try:
            server = await asyncio.get_running_loop().create_server(lambda: Channel(accept), host, port)
            sock = server.sockets[0]
            listener: multi.Listener = SimpleNamespace(address=sock.getsockname()[:2], sock=sock, close=server.close)
            return listener
        except OSError as error:
            raise multi.TransportError(f"cannot listen on port {port}: {error.strerror}") from error


async def main() -> None:
    async def greet(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(b"hello, " + await reader.read())
        writer.close()

    listen = {"host": "127.0.0.1", "port": 0, "transports": ["counted"]}
    async with await multi.start_server(greet, {"listen": listen}) as server:
        config = {"connection_priority": [["counted", "ipv4", "any"]], "remote_host": "127.0.0.1"}
        async with multi.connect(config | {"remote_port": server.port}) as session:
            session.writer.write(b"world")
            session.writer.write_eof()
            print((await session.reader.read()).decode())
    print(f"{carried['sent']} bytes sent, {carried['received']} received, at both ends together")


if __name__ == "__main__":
    asyncio.run(main())
