"""What an application calls first: light to import, and honest about packages that are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import asyncio, sys, time

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

MISSING = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Missing())
import multi

SERVER = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}

async def echo(reader, writer):
    writer.write(await reader.readline())
    writer.close()

async def conversation(entries, **more):
    server = await multi.start_server(echo, SERVER)
    config = {"connection_priority": entries, "remote_host": "127.0.0.1", "remote_port": server.port, **more}
    try:
        async with multi.connect(config) as session:
            session.writer.write(b"there and back\\n")
            return await session.reader.readline(), session
    finally:
        server.close()

TCP, QUIC = ["tcp", "ipv4", "any"], ["quic", "ipv4", "any"]
"""


def run(missing: str, program: str) -> str:
    """What `program` prints where packages cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + program, missing], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("missing", ["aioquic,service_identity,qh3", "pyroute2", "netifaces", "rich,uvloop"])
def test_a_session_over_tcp_needs_no_package_that_it_does_not_use(missing: str) -> None:
    assert run(missing, "print(asyncio.run(conversation([TCP]))[0])") == "b'there and back\\n'\n"


def test_an_attempt_says_which_package_it_lacks_and_the_others_go_on() -> None:
    said = run(
        "aioquic",
        """
print(asyncio.run(conversation([QUIC, TCP], protect="auto"))[0])
try:
    asyncio.run(conversation([QUIC], ssl_config={"verify": False}))
except multi.NoUsableConnection as error:
    print(error)
""",
    )
    first, *failure = said.splitlines()
    assert first == "b'there and back\\n'"
    assert "transport quic needs a package that cannot be imported: No module named 'aioquic" in "".join(failure)


@pytest.mark.parametrize("missing", ["pydantic", "cryptography"])
def test_what_every_session_needs_is_missed_in_one_sentence(missing: str) -> None:
    said = run(
        missing,
        """
for opening in (conversation([TCP]), multi.open_connection("127.0.0.1", 7788)):
    try:
        asyncio.run(opening)
    except multi.DependencyError as error:
        print(error)
""",
    )
    sentence = f"a session needs a package that cannot be imported: No module named '{missing}"
    assert [line.startswith(sentence) for line in said.splitlines()] == [True, True]


def test_a_configuration_is_read_without_what_encrypts() -> None:
    program = "print(multi.load_config({'connection_priority': [TCP], 'remote_host': 'a'}).remote_host)"
    assert run("cryptography,aioquic", program) == "a\n"
