"""Several streams and datagrams in one session, both ends in one program. Run: python examples/streams.py"""

import asyncio

import multi


async def answer(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    async for line in reader:
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    """The server's side: stream 0 comes as arguments, the others from the session behind it."""
    session: multi.Session = writer.get_extra_info("session")
    async with asyncio.TaskGroup() as group:
        group.create_task(answer(reader, writer))
        async for more_reader, more_writer in session.streams():
            group.create_task(answer(more_reader, more_writer))


async def client(port: int) -> None:
    async with multi.connect("127.0.0.1", port) as session:
        urgent_reader, urgent_writer = await session.open_stream(priority=0)  # 0 is first, 7 last, 3 usual
        bulk_reader, bulk_writer = await session.open_stream(priority=7)
        bulk_writer.write(b"a lot of data, later\n")
        urgent_writer.write(b"a few words, now\n")
        print(await urgent_reader.readline(), await bulk_reader.readline())
        for writer in (urgent_writer, bulk_writer):
            writer.close()
            await writer.wait_closed()


async def main() -> None:
    async with await multi.start_server(on_client, "127.0.0.1", 0) as server:
        await client(server.port)


if __name__ == "__main__":
    asyncio.run(main())
