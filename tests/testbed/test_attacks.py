"""Attacks on real links, while an honest transfer runs and has to come through as it was sent.

An attacker in the path sits in the relay of a link (`attacker`) or between two TCP connections (`attack_ends.relay`);
one beside it has a link, an address and Session IDs he has read off the wire (`strangers`). docs/security.md lists what
is expected of each. Printed with each test: what the honest client noticed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from multi.lab.testbed import Direction, Host, LinkSpec, Testbed, TestbedError, call
from multi.lab.testbed.pytest_plugin import started
from multi.protocol.handshake import RefuseCode
from multi.protocol.session import UNKNOWN_SAID
from multi.transports.certificates import pin_of
from tests.findings import delays
from tests.testbed.attack_ends import NEEDLE
from tests.testbed.attacker import (
    CHALLENGE,
    HELLO,
    JOIN,
    REFUSE,
    Meter,
    QuicForger,
    Refuser,
    Resetter,
    Rewriter,
    Vandal,
    Wire,
    spoofed,
)
from tests.testbed.packets import TCP, UDP

LINKS = (
    LinkSpec.symmetric("wifi", "wlan0", Direction(rate_mbps=40, delay_ms=2), kind="wifi"),
    LinkSpec.symmetric("cellular", "wwan0", Direction(rate_mbps=20, delay_ms=10), kind="cellular"),
    LinkSpec.symmetric("attacker", "att0", Direction(rate_mbps=40, delay_ms=2), kind="eth"),
)
SERVER = "10.77.0.1"
PLAIN, SECURE, OPEN, KEYED, RELAY = 7788, 7789, 7790, 7791, 7900
MIB = 1 << 20
BOTH = ["wlan0", "wwan0"]
LITTLE = dict.fromkeys(("max_send_buffer", "max_stream_window", "max_session_window"), MIB // 2)  # soon back
LIMITS = LITTLE | {"handshake_timeout": 1.5}
PATIENCE = 15.0  # seconds for whatever an end is told to do
NOTICED = 4_000  # ms; a gap nobody would excuse, on shared processors and with an attacker at work


class End:
    """A process on a host that does what it is told; see `attack_ends`."""

    def __init__(self, host: Host) -> None:
        command = [sys.executable, "-m", "tests.testbed.attack_ends"]
        self._process = host.popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=call.environment()
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {0: Future()}
        self.ready = self._waiting[0]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, succeeded, value = json.loads(line)
            waiting = self._waiting.pop(number)
            if succeeded:
                waiting.set_result(value)
            else:
                waiting.set_exception(AssertionError(value))
        for left in self._waiting.values():
            left.set_exception(AssertionError("the process has ended"))

    def do(self, name: str, *arguments: Any, **named: Any) -> asyncio.Task[Any]:
        """Have a function of `attack_ends` or `strangers` called; await what it returns."""
        number = next(self._numbers)
        self._waiting[number] = Future()
        waiting = asyncio.wrap_future(self._waiting[number])
        assert self._process.stdin is not None
        print(json.dumps([number, name, arguments, named]), file=self._process.stdin, flush=True)

        async def answer() -> Any:
            try:
                return await asyncio.wait_for(asyncio.shield(waiting), PATIENCE)
            except TimeoutError:
                raise AssertionError(f"{name} did not return") from None

        return asyncio.ensure_future(answer())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class Stage:
    """A testbed, the ends on it, and the certificates of two authorities that do not know each other."""

    def __init__(self, testbed: Testbed, directory: Path) -> None:
        self.testbed = testbed
        self.certificates, self.others = directory / "ours", directory / "others"
        self.key = directory / "psk.json"
        self.start()

    def start(self) -> None:
        self.client, self.server = End(self.testbed.client), End(self.testbed.server)
        self.stranger, self.between = End(self.testbed.client), End(self.testbed.server)
        self.ends = (self.client, self.server, self.stranger, self.between)
        for end in self.ends:
            end.ready.result(20)

    def end(self) -> None:
        for end in self.ends:
            end.end()

    def config(self, *entries: tuple[str, str, int], port: int = PLAIN, **more: Any) -> dict[str, Any]:
        """(transport, interface, port) each; both networks with TCP where nothing is said."""
        wanted = entries or (("tcp", "wlan0", port), ("tcp", "wwan0", port))
        return {
            "connection_priority": [
                {"transport": transport, "ip": "ipv4", "interface": interface, "remote_port": to}
                for transport, interface, to in wanted
            ],
            "remote_host": SERVER,
            "remote_port": port,
            "interfaces": {"wifi": ["wlan0"], "cellular": ["wwan0"]},
            "limits": LITTLE,
        } | more

    @property
    def trusting(self) -> dict[str, Any]:
        return {"ssl_config": {"ca": str(self.certificates / "ca.pem")}}

    def listen(self, port: int, *transports: str, secure: bool = False, **more: Any) -> dict[str, Any]:
        files = {name: str(self.certificates / f"server-{name}.pem") for name in ("cert", "key")}
        tls = {"ssl_config": files} if secure else {}
        return {"listen": {"host": "::", "port": port, "transports": list(transports)}, "limits": LIMITS} | tls | more

    async def honest(self, config: dict[str, Any], name: str = "transfer", active: list[str] | None = None) -> float:
        """A session with a transfer under way; returns the seconds it took to open."""
        took: float = await self.client.do("begin", name, config, BOTH if active is None else active)
        return took

    async def finished(
        self, server: str, name: str = "transfer", *, others: int = 0, quiet: bool = False
    ) -> dict[str, Any]:
        """End the transfer: all is back, the server has seen the same bytes once, and nobody else any."""
        facts: dict[str, Any] = await self.client.do("finish", name)
        seen = await self.server.do("seen", server)
        mine = [record for record in seen if record["id"] == facts["id"]]
        assert [(r["bytes"], r["sha256"]) for r in mine if r["bytes"]] == [(facts["sent"], facts["sha256"])]
        assert facts["gap_ms"] < NOTICED, facts
        if quiet:
            assert not facts["events"].get("lost"), facts
        return facts


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("attacks")
    making = [
        subprocess.Popen(
            [sys.executable, "-m", "multi", "cert", str(directory / name), "--name", SERVER], stdout=subprocess.DEVNULL
        )
        for name in ("ours", "others")
    ]
    with started(LINKS) as testbed:
        stage = Stage(testbed, directory)
        try:
            for process in making:
                assert process.wait(20) == 0
            yield stage
        finally:
            stage.end()


@pytest_asyncio.fixture
async def stage(theatre: Stage) -> AsyncIterator[Stage]:
    yield theatre
    for link in theatre.testbed.links.values():
        link.intercept(None)
        link.blackhole(False)
    try:
        for end in theatre.ends:
            await end.do("clear")
    except (AssertionError, OSError):
        # A test that has failed must not fail the next ones.
        theatre.end()
        theatre.start()
        raise


@pytest_asyncio.fixture
async def plain(stage: Stage) -> AsyncIterator[str]:
    """A server without certificates."""
    await stage.server.do("serve", "plain", stage.listen(PLAIN, "tcp"))
    yield "plain"


@pytest_asyncio.fixture
async def secure(stage: Stage) -> AsyncIterator[str]:
    """A server with TLS and QUIC."""
    await stage.server.do("serve", "secure", stage.listen(SECURE, "tcp", "quic", secure=True))
    yield "secure"


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Any:
    def told(facts: dict[str, Any] | None = None, **more: object) -> None:
        words = [f"{key} {value}" for key, value in more.items()]
        if facts is not None:
            events = {k: v for k, v in facts["events"].items() if k in ("lost", "attempt failed", "active", "suspect")}
            words.insert(0, f"{facts['sent'] / MIB:.1f} MiB, longest gap {facts['gap_ms']} ms, {events}")
            words.append(f"reasons {sorted(set(facts['reasons']))}")
        with capsys.disabled():
            print(f"\n  {request.node.name}: {'; '.join(words)}", end=" ")

    return told


# --- somebody who knows the Session ID ---


MORE = "a wrong proof and more"


async def stolen(stage: Stage) -> tuple[str, str]:
    """A session that is under way: its ID and one of its JOINs with a ticket, read off the wire."""
    for name in ("wifi", "cellular"):
        stage.testbed.links[name].intercept(Wire)
    await stage.honest(stage.config())
    said = [up for name in ("wifi", "cellular") for up, _down in recorded(stage, name)]
    join = next(up for up in said if up[1] == JOIN)
    assert next(up for up in said if up[1] == HELLO)[8:24] == join[8:24]
    length = int.from_bytes(join[4:8], "big")
    return join[8:24].hex(), join[32:length].hex()


async def test_a_stolen_session_id_and_a_stolen_ticket_open_nothing(stage: Stage, plain: str, tell: Any) -> None:
    session, heard = await stolen(stage)
    answers = await stage.stranger.do("steal", PLAIN, session, heard, "att0", without=MORE)
    facts = await stage.finished(plain, quiet=True)
    tell(facts, answers={name: (a["ms"], [len(x) // 2 for x in a["answers"]]) for name, a in answers.items()})
    malformed = {"a JOIN that is garbage", "JOIN and a PROVE that is cut short", "JOIN and DATA"}
    unknown = {"a JOIN of an unknown session", "a JOIN of another origin"}
    refusals = {answer for name in answers.keys() - malformed - unknown for answer in answers[name]["answers"]}
    assert len(refusals) == 1, answers
    assert len(min(refusals)) == 2 * 37
    assert {len(answer) for name in unknown for answer in answers[name]["answers"]} == {2 * 69}, "with a reset token"
    assert {answer for name in malformed for answer in answers[name]["answers"]} == {""}
    assert len(await stage.server.do("seen", plain)) == 1, "no session for anybody else"


async def test_what_follows_a_wrong_proof_harms_nobody(stage: Stage, plain: str, tell: Any) -> None:
    session, heard = await stolen(stage)
    answers = await stage.stranger.do("steal", PLAIN, session, heard, "att0", only=MORE)
    facts = await stage.finished(plain, quiet=True)
    tell(facts, answers=answers)


async def test_joins_without_number_do_not_keep_the_client_out(stage: Stage, plain: str, tell: Any) -> None:
    await stage.honest(stage.config())
    session = (await stage.client.do("facts", "transfer"))["id"]

    async def back_after() -> float:
        """Seconds until what was lost over WiFi is there again, once it may."""
        await asyncio.sleep(1.1)  # what is lost sooner is taken for a refusal, and dialled later
        stage.testbed.links["wifi"].intercept(Resetter)
        await stage.client.do("until", "transfer", active=["wwan0"])
        stage.testbed.links["wifi"].intercept(None)
        took: float = await stage.client.do("until", "transfer", active=BOTH)
        return took

    calm, flooded, joins = [], [], 0
    for _ in range(3):  # the first decides where it is good: anybody may be late once on a busy machine
        calm.append(await back_after())
        flood = stage.stranger.do("join_flood", PLAIN, session, "att0", 2.5)
        flooded.append(await back_after())
        joins += await flood
        if statistics.median(flooded) - statistics.median(calm) < delays.MORE:
            break
    facts = await stage.finished(plain)
    tell(facts, without=[f"{t:.2f} s" for t in calm], back_after=[f"{t:.2f} s" for t in flooded], joins=joins)
    assert joins > 100
    assert statistics.median(flooded) - statistics.median(calm) < delays.MORE


async def test_a_recording_opens_nothing(stage: Stage, plain: str, tell: Any) -> None:
    for name in ("wifi", "cellular"):
        stage.testbed.links[name].intercept(Wire)
    await stage.honest(stage.config())
    await stage.client.do("until", "transfer", received=MIB)
    tapes = [up for name in ("wifi", "cellular") for up, _down in recorded(stage, name)]
    assert sorted(tape[1] for tape in tapes) == [HELLO, JOIN]
    answers = await asyncio.gather(
        *(
            stage.stranger.do("replay", PLAIN, tape.hex(), "att0", pieces=pieces)
            for tape in tapes
            for pieces in (False, True)
        )
    )
    facts = await stage.finished(plain, quiet=True)
    after = await asyncio.gather(
        *(stage.stranger.do("replay", PLAIN, tape.hex(), "att0", pieces=False) for tape in tapes)
    )
    seen = await stage.server.do("seen", plain)
    tell(facts, answers=[kinds(a) for a in answers], after_the_end=[kinds(a) for a in after])
    assert {kind for answer in answers for kind in kinds(answer)} <= {CHALLENGE, REFUSE}, answers
    assert sum(record["bytes"] for record in seen) == facts["sent"], seen


async def test_a_recording_of_an_unprotected_session_opens_nothing_while_it_lives(stage: Stage, tell: Any) -> None:
    await stage.server.do("serve", "open", stage.listen(OPEN, "tcp", protect="never"))
    for name in ("wifi", "cellular"):
        stage.testbed.links[name].intercept(Wire)
    await stage.honest(stage.config(port=OPEN, protect="never"))
    await stage.client.do("until", "transfer", received=MIB)
    tapes = [up for name in ("wifi", "cellular") for up, _down in recorded(stage, name)]
    answers = await asyncio.gather(
        *(stage.stranger.do("replay", OPEN, tape.hex(), "att0", pieces=False) for tape in tapes)
    )
    facts = await stage.finished("open", quiet=True)
    seen = await stage.server.do("seen", "open")
    tell(facts, answers=[kinds(a) for a in answers])
    assert {kind for answer in answers for kind in kinds(answer)} <= {CHALLENGE, REFUSE}, answers
    assert sum(record["bytes"] for record in seen) == facts["sent"], seen


# --- somebody in the middle ---


async def test_a_relay_with_another_certificate_is_not_believed(stage: Stage, secure: str, tell: Any) -> None:
    others = [str(stage.others / f"server-{name}.pem") for name in ("cert", "key")]
    await stage.between.do("relay", RELAY, SECURE, listen_tls=others, dial_tls=True)
    through, direct = ("tcp", "wlan0", RELAY), ("tcp", "wwan0", SECURE)
    verified = await stage.client.do("attempt", stage.config(through, **stage.trusting))
    assert "NoUsableConnection" in verified
    assert "certificate" in verified
    pin = pin_of(ssl.PEM_cert_to_DER_cert((stage.certificates / "server-cert.pem").read_text()))
    pinned: dict[str, Any] = {"ssl_config": {"verify": False, "pin": [pin]}}
    wrong = await stage.client.do("attempt", stage.config(through, **pinned))
    assert "NoUsableConnection" in wrong
    assert "pin" in wrong
    assert not await stage.client.do("attempt", stage.config(direct, **pinned))
    # Nobody verifies: the first HELLO is anybody's, but a JOIN is bound to the certificate it came through.
    blind: dict[str, Any] = {"ssl_config": {"verify": False}}
    await stage.honest(stage.config(direct, through, **blind), active=["wwan0"])
    await stage.client.do("until", "transfer", received=MIB)
    facts = await stage.finished(secure)
    words = [error.splitlines()[-1].strip() for error in (verified, wrong)]
    tell(facts, errors=words, relay=await stage.between.do("relayed", RELAY))
    assert facts["carried"] == ["wwan0"]
    assert any("refused" in reason or "proof" in reason for reason in facts["reasons"]), facts


async def test_a_key_tells_of_a_relay_where_nobody_verifies(stage: Stage, tell: Any) -> None:
    keys = {"auth": {"psk_file": str(stage.key)}}
    stage.key.write_text("somebody:" + "5a" * 32 + "\n")
    stage.key.chmod(0o600)
    await stage.server.do("serve", "keyed", stage.listen(KEYED, "tcp", secure=True, **keys))
    others = [str(stage.others / f"server-{name}.pem") for name in ("cert", "key")]
    await stage.between.do("relay", RELAY, KEYED, listen_tls=others, dial_tls=True)
    blind: dict[str, Any] = {"ssl_config": {"verify": False}} | keys
    through = await stage.client.do("attempt", stage.config(("tcp", "wlan0", RELAY), **blind))
    direct = await stage.client.do("attempt", stage.config(("tcp", "wlan0", KEYED), **blind))
    tell(through=through)
    assert not direct
    assert "refused" in through or "proof" in through, through
    assert len(await stage.server.do("seen", "keyed")) == 1, "the application never saw the relayed one"


@pytest.mark.parametrize("protection", ["sealed", "tls", "quic", "never"])
async def test_who_only_passes_on_sees_no_plaintext(protection: str, stage: Stage, tell: Any) -> None:
    tls, transport = protection in ("tls", "quic"), "quic" if protection == "quic" else "tcp"
    never: dict[str, Any] = {"protect": "never"} if protection == "never" else {}
    await stage.server.do("serve", "seen", stage.listen(OPEN, transport, secure=tls, **never))
    through = ("tcp", "wlan0", RELAY) if transport == "tcp" else ("quic", "wlan0", OPEN)
    await stage.between.do("relay", RELAY, OPEN)
    for name in ("wifi", "cellular"):
        stage.testbed.links[name].intercept(Wire, NEEDLE)
    trust = stage.trusting if tls else {}
    turns: dict[str, Any] = {"multi_config": {"scheduler": "RR"}}  # both carry some of it, however busy the machine
    await stage.honest(stage.config(through, (transport, "wwan0", OPEN), **turns, **never, **trust))
    await stage.client.do("until", "transfer", received=MIB)
    for name in ("wifi", "cellular"):
        await until_counted(stage, name, "up", MIB // 8 + 1)
    counts = [stage.testbed.links[name].ask_interceptor(("counted",)) for name in ("wifi", "cellular")]
    facts = await stage.finished("seen", quiet=True)
    tell(facts, counts=counts)
    assert sum(count["down"] for count in counts) > MIB // 2
    assert bool(sum(count.get("needle", 0) for count in counts)) == (protection == "never")


# --- forged refusals ---


@pytest.mark.parametrize("garbage", [False, True], ids=["alone", "and garbage"])
async def test_a_forged_refusal_costs_one_connection(garbage: bool, stage: Stage, plain: str, tell: Any) -> None:
    await stage.honest(stage.config())
    wifi = stage.testbed.links["wifi"]
    wifi.intercept(Resetter)
    await stage.client.do("until", "transfer", active=["wwan0"])
    wifi.intercept(Refuser, RefuseCode.REFUSED, garbage)
    await stage.client.do("until", "transfer", received=MIB)
    await until_counted(stage, "wifi", "refused", 1)
    await asyncio.sleep(1.5)
    refused = wifi.ask_interceptor(("counted",))["refused"]
    wifi.intercept(None)
    back = await stage.client.do("until", "transfer", active=BOTH)
    facts = await stage.finished(plain)
    tell(facts, refused=refused, back_after=f"{back:.2f} s")
    assert refused < 20


@pytest.mark.parametrize("code", RefuseCode, ids=lambda code: code.name)
async def test_forged_refusals_on_the_only_network_end_a_session_only_by_unknown_and_never_hang_it(
    code: RefuseCode, stage: Stage, tell: Any
) -> None:
    # All connections reset, and nothing comes back: to a server that would look like a client whose process has died.
    waiting = stage.listen(PLAIN, "tcp") | {"multi_config": {"abandon_timeout": 0}}
    await stage.server.do("serve", "plain", waiting)
    await stage.honest(stage.config(("tcp", "wlan0", PLAIN), multi_config={"resume_timeout": 3}), active=["wlan0"])
    wifi = stage.testbed.links["wifi"]
    # Something has come back: until the server has heard CONFIRM it forgets the session soon, and refuses by itself.
    await stage.client.do("until", "transfer", received=MIB // 8)
    wifi.intercept(Resetter)
    await stage.client.do("until", "transfer", active=[])
    wifi.intercept(Refuser, code)
    lived, reason = await stage.client.do("ends", "transfer", 12.0)
    refused = wifi.ask_interceptor(("counted",))["refused"]
    tell(lived=f"{lived:.2f} s", reason=reason, refused=refused)
    assert ("session gone" if code is RefuseCode.UNKNOWN else "no connection for 3 s") in reason
    assert UNKNOWN_SAID <= refused < 20, "an answer that was lost and repeated counts twice"
    assert lived < 7.0


# --- vandals ---


@pytest.mark.parametrize("transport", ["sealed", "tls", "quic"])
async def test_flipped_bytes_cost_connections_and_not_the_session(transport: str, stage: Stage, tell: Any) -> None:
    tls, name = transport != "sealed", "quic" if transport == "quic" else "tcp"
    await stage.server.do("serve", "vandal", stage.listen(OPEN, name, secure=tls))
    trust = stage.trusting if tls else {}
    await stage.honest(stage.config((name, "wlan0", OPEN), (name, "wwan0", OPEN), **trust))
    wifi = stage.testbed.links["wifi"]
    quic = transport == "quic"
    wifi.intercept(Vandal, "flip", 20 if quic else 200, protocol=UDP if quic else TCP)
    await asyncio.sleep(1.5)
    flipped = wifi.ask_interceptor(("counted",))["flip"]
    wifi.intercept(None)
    back = await stage.client.do("until", "transfer", active=BOTH)
    facts = await stage.finished("vandal", quiet=quic)
    tell(facts, flipped=flipped, back_after=f"{back:.2f} s")
    assert flipped
    if not quic:
        assert facts["events"]["lost"], facts
        assert all(facts["reasons"]), facts


@pytest.mark.parametrize("what", ["drop", "reorder", "truncate", "repeat"])
async def test_segments_out_of_place_are_put_right_below_the_session(
    what: str, stage: Stage, plain: str, tell: Any
) -> None:
    await stage.honest(stage.config())
    wifi = stage.testbed.links["wifi"]
    wifi.intercept(Vandal, what, 40)
    await asyncio.sleep(0.7)
    done = wifi.ask_interceptor(("counted",)).get(what, 0)
    facts = await stage.finished(plain, quiet=True)
    tell(facts, done=done)
    assert done


@pytest.mark.parametrize("what", ["insert", "remove", "repeat", "cut"])
@pytest.mark.parametrize("protection", ["sealed", "tls"])
async def test_bytes_put_in_and_taken_out_cost_connections_and_not_the_session(
    protection: str, what: str, stage: Stage, tell: Any
) -> None:
    tls = protection == "tls"
    await stage.server.do("serve", "edited", stage.listen(OPEN, "tcp", secure=tls))
    await stage.between.do("relay", RELAY, OPEN, edit="" if what == "cut" else what)
    trust = stage.trusting if tls else {}
    await stage.honest(stage.config(("tcp", "wlan0", RELAY), ("tcp", "wwan0", OPEN), **trust))
    if what == "cut":
        stage.testbed.links["wifi"].intercept(Vandal, "cut", 400)
    await asyncio.sleep(0.7)
    facts = await stage.finished("edited")
    told = await stage.between.do("relayed", RELAY)
    tell(facts, relay=f"{told.count(what)} edits, {told.count('carried')} connections")
    assert facts["events"]["lost"], facts
    assert all(facts["reasons"]), facts


async def test_resets_again_and_again_leave_the_session_alive(stage: Stage, plain: str, tell: Any) -> None:
    await stage.honest(stage.config())
    wifi = stage.testbed.links["wifi"]
    wifi.intercept(Resetter, 400)
    await asyncio.sleep(3.5)
    counts = wifi.ask_interceptor(("counted",))
    wifi.intercept(None)
    back = await stage.client.do("until", "transfer", active=BOTH, within=12.0)
    facts = await stage.finished(plain)
    tell(facts, counts=counts, back_after=f"{back:.2f} s")
    assert counts["reset"] > 1
    assert counts["dialled"] <= 25, "attempts are bounded"


# --- those who claim too much ---


async def test_claims_without_measure_harm_only_those_who_make_them(stage: Stage, plain: str, tell: Any) -> None:
    await stage.honest(stage.config())
    strangers, clients = await asyncio.gather(
        stage.stranger.do("claim", PLAIN, "att0"), stage.stranger.do("misbehave", PLAIN, "att0")
    )
    facts = await stage.finished(plain, quiet=True)
    tell(facts, strangers={k: v[:40] for k, v in strangers.items()}, clients=clients)
    assert not [name for name, end in strangers.items() if end == "still there"], strangers
    assert not [name for name, end in clients.items() if end == "still there"], clients


# --- those who never finish ---


@pytest.mark.alone
@pytest.mark.parametrize("where", ["one address", "many addresses"])
async def test_two_thousand_half_connections_keep_nobody_out(where: str, stage: Stage, tell: Any) -> None:
    """From one address over a link; from many on the server's own loopback."""
    crowded: dict[str, Any] = {"limits": LIMITS | {"max_unauthenticated": 500}}
    await stage.server.do("serve", "besieged", stage.listen(OPEN, "tcp", secure=True, **crowded))
    await stage.server.do("serve", "besieged plain", stage.listen(PLAIN, "tcp", **crowded))
    config = stage.config(port=PLAIN)
    await stage.honest(config)

    async def openings() -> list[float]:
        took = []
        for port, trust in ((PLAIN, {}), (OPEN, stage.trusting)):
            before = time.monotonic()
            error = await stage.client.do("attempt", stage.config(port=port, **trust))
            took.append(time.monotonic() - before)
            assert not error, error
        return took

    unhurried = [*await openings(), *await openings()]
    usual = statistics.median(unhurried)
    most = usual + max(delays.MORE, 5 * usual)  # where the processor is slow, it is for the attackers' work as well
    kinds_ = ["nothing", "one byte", "half a ClientHello", "half a HELLO", "HELLO and no CONFIRM"]
    many = where == "many addresses"
    end = stage.between if many else stage.stranger
    sources = [f"127.{n // 200}.{n % 200}.1" for n in range(1, 400)] if many else []
    interface = "" if many else "att0"
    opening: list[float] = []
    for _ in range(2):  # the first decides where it is good: processors are shared
        started_at = time.monotonic()
        attack = asyncio.gather(
            end.do("half_open", OPEN, 1000, kinds_, sources, interface),
            end.do("half_open", PLAIN, 1000, kinds_, sources, interface),
        )
        for _ in range(2):
            await asyncio.sleep(0.3)
            opening += await openings()
        opened = await attack
        took = time.monotonic() - started_at
        await asyncio.sleep(max(0.0, 2.0 - took))
        if statistics.median(opening) < most:
            break
    left = [await stage.server.do("statistics", name) for name in ("besieged", "besieged plain")]
    await stage.client.do("until", "transfer", active=BOTH)  # one may have been lost: the server was busy
    facts = await stage.finished("besieged plain")
    shown = {name: [f"{t:.2f} s" for t in times] for name, times in (("without", unhurried), ("opening", opening))}
    tell(facts, opened=opened, took=f"{took:.1f} s", **shown, server=left)
    assert statistics.median(opening) < most


# --- those who would have it weaker ---


@pytest.mark.parametrize("said", ["refusal", "accept", "garbage", "nothing"])
async def test_a_client_that_wants_tls_takes_nothing_less(said: str, stage: Stage, tell: Any) -> None:
    """Somebody answers in MULTI, in clear."""
    session = b"SESSION-ID-HERE!"
    head = {"refusal": (22, b"\x12\x01\x01\0\0"), "accept": (17, bytes(111))}.get(said)
    answer = b"" if said == "nothing" else b"\xff" * 50
    if head is not None:
        answer = bytes([1, head[0], 0, 32]) + (32 + len(head[1])).to_bytes(4, "big") + session + bytes(8) + head[1]
    await stage.between.do("answer", RELAY, answer.hex())
    before = time.monotonic()
    patience: dict[str, Any] = {"multi_config": {"open_timeout": 1}}
    error = await stage.client.do("attempt", stage.config(("tcp", "wlan0", RELAY), **stage.trusting, **patience))
    tell(error=error, after=f"{time.monotonic() - before:.2f} s")
    assert "NoUsableConnection" in error
    assert "TLS" in error or "no answer within 1 s" in error


async def test_a_client_that_wants_tls_does_not_talk_to_a_plain_server(stage: Stage, plain: str, tell: Any) -> None:
    await stage.between.do("relay", RELAY, PLAIN)
    error = await stage.client.do("attempt", stage.config(("tcp", "wlan0", RELAY), **stage.trusting))
    tell(error=error)
    assert "NoUsableConnection" in error
    assert not await stage.server.do("seen", plain)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("hello-version", "versions"),
        ("hello-segment-version", "versions"),
        ("hello-unsealed", "protection"),
        ("hello-weaker-cipher", "proof"),
        ("hello-no-cipher", "protection"),
        ("hello-window", "proof"),
        ("hello-key", "proof"),
        ("accept-unsealed", "protection"),
        ("accept-cipher", "proof"),
        ("accept-version", "version"),
        ("accept-key", "proof"),
    ],
)
async def test_a_handshake_rewritten_on_the_way_is_refused_in_words(
    change: str, words: str, stage: Stage, plain: str, tell: Any
) -> None:
    stage.testbed.links["wifi"].intercept(Rewriter, change)
    error = await stage.client.do("attempt", stage.config(("tcp", "wlan0", PLAIN), multi_config={"open_timeout": 2}))
    tell(error=error)
    assert stage.testbed.links["wifi"].ask_interceptor(("counted",))["rewritten"]
    assert words in error
    assert not sum(record["bytes"] for record in await stage.server.do("seen", plain))


# --- QUIC ---


@pytest.mark.parametrize("late", [False, True], ids=["at first", "later"])
@pytest.mark.parametrize("what", ["version-negotiation", "retry", "stateless-reset", "close-in-initial"])
async def test_forged_quic_packets_cost_at_most_a_connection(
    what: str, late: bool, stage: Stage, secure: str, tell: Any
) -> None:
    config = stage.config(("quic", "wlan0", SECURE), ("quic", "wwan0", SECURE), **stage.trusting)
    wifi = stage.testbed.links["wifi"]
    wifi.intercept(QuicForger, what, late)
    opened = await stage.honest(config, active=BOTH if late else [])
    await stage.client.do("until", "transfer", received=MIB // 2)
    forged = wifi.ask_interceptor(("counted",)).get(what, 0)
    wifi.intercept(None)
    back = await stage.client.do("until", "transfer", active=BOTH)
    facts = await stage.finished(secure, quiet=late)
    tell(facts, forged=forged, opened=f"{opened:.2f} s", back_after=f"{back:.2f} s")
    assert forged


async def test_spoofed_quic_initials_are_answered_with_three_times_as_much_at_most(
    stage: Stage, secure: str, tell: Any
) -> None:
    attacker = stage.testbed.links["attacker"]
    attacker.intercept(Meter)
    config = stage.config(("quic", "wlan0", SECURE), ("quic", "wwan0", SECURE), **stage.trusting)
    await stage.honest(config)
    ethernet = bytes((2, 0x77, 0, 0, 3, 1)) + bytes((2, 0x77, 0, 0, 3, 2)) + b"\x08\0"
    sent: dict[int, int] = {}
    for port in range(20_000, 20_100):
        quic = QuicConnection(configuration=QuicConfiguration(alpn_protocols=["multi/1"], server_name="server"))
        quic.connect((SERVER, SECURE), now=0.0)
        for datagram, _ in quic.datagrams_to_send(now=0.0):
            attacker.inject("up", spoofed(ethernet, ("10.77.3.2", port), (SERVER, SECURE), datagram))
            sent[port] = sent.get(port, 0) + len(datagram)
    await asyncio.sleep(1.5)
    counts = attacker.ask_interceptor(("counted",))
    answered = {port: counts.get(f"down:{port}", 0) for port in sent}
    facts = await stage.finished(secure, quiet=True)
    most = max(answered[port] / sent[port] for port in sent)
    alltogether = sum(answered.values()) / sum(sent.values())
    tell(facts, most=f"{most:.2f} times", all_together=f"{alltogether:.2f} times")
    assert sum(answered.values())
    assert most <= 3.0


# --- helpers ---


def recorded(stage: Stage, link: str) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = stage.testbed.links[link].ask_interceptor(("recorded", TCP, 32))
    return found


async def until_counted(stage: Stage, link: str, what: str, count: int) -> None:
    deadline = time.monotonic() + 8.0
    while stage.testbed.links[link].ask_interceptor(("counted",)).get(what, 0) < count:
        assert time.monotonic() < deadline, f"never {what}"
        await asyncio.sleep(0.005)


def kinds(answer: str) -> list[int]:
    """The types of the segments of an answer, as far as they are whole."""
    said, found, at = bytes.fromhex(answer), [], 0
    while at + 32 <= len(said):
        found.append(said[at + 1])
        at += max(32, int.from_bytes(said[at + 4 : at + 8], "big"))
    return found


async def test_an_interceptor_that_fails_says_why_and_costs_its_link_only(stage: Stage) -> None:
    with pytest.raises(TestbedError, match="cannot be made"):
        stage.testbed.links["attacker"].intercept(Wire, 1, 2, 3)
    stage.testbed.links["attacker"].intercept(Wire)
    with pytest.raises(TestbedError, match=r"has failed[\s\S]*AttributeError"):
        stage.testbed.links["attacker"].ask_interceptor(("what",))
