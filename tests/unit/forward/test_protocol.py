"""Heads and answers of forwarded streams, and addresses as people write them."""

from __future__ import annotations

import asyncio

import pytest

from multi.errors import ConfigError, RemoteProtocolError
from multi.forward.protocol import (
    HELLO,
    Accepted,
    Code,
    Connect,
    Flow,
    ForwardRefused,
    Head,
    HostPort,
    RemoteListen,
    encode_answer,
    encode_head,
    is_hello,
    parse_address,
    read_answer,
    read_head,
)
from multi.forward.proxy import unpack_datagram
from multi.forward.specs import Forward, ProxyListener, Treatment, parse_forward, parse_listener


class Bytes:
    """A reader of what it was given."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def readexactly(self, n: int) -> bytes:
        taken, self._data = self._data[:n], self._data[n:]
        if len(taken) < n:
            raise asyncio.IncompleteReadError(taken, n)
        return taken


def head_of(data: bytes) -> Head:
    return asyncio.run(read_head(Bytes(data)))


@pytest.mark.parametrize(
    ("head", "golden"),
    [
        (Connect(HostPort("db", 5432)), "010100051538026462"),
        (RemoteListen(HostPort("127.0.0.1", 8080), 3), "0102000d031f90093132372e302e302e31"),
        (Flow(HostPort("db", 53)), "010400050035026462"),
        (Accepted(HostPort("::1", 1), HostPort("::1", 2)), "0103000c0001033a3a310002033a3a31"),
    ],
)
def test_heads_are_what_the_protocol_says(head: Head, golden: str) -> None:
    assert encode_head(head).hex() == golden
    assert head_of(encode_head(head)) == head


@pytest.mark.parametrize(
    "wrong",
    [
        "020100051538026462",  # version
        "010900051538026462",  # kind
        "010100041538026462",  # host cut off
        "01010000",  # nothing in it
        "01020000",
        "0101ffff",  # longer than any
        "010100051538020a0d",  # no host
        "01010003153800",  # an empty host
        "0101000515380280ff",  # not ASCII
    ],
)
def test_a_head_that_is_malformed_is_refused_with_an_answer(wrong: str) -> None:
    with pytest.raises(ForwardRefused) as caught:
        head_of(bytes.fromhex(wrong))
    assert caught.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize("host", ["", "a" * 256, "a b", "a\nb", "é"])
def test_a_host_that_cannot_be_one_is_not_sent(host: str) -> None:
    with pytest.raises(ForwardRefused):
        encode_head(Connect(HostPort(host, 1)))


@pytest.mark.parametrize(
    ("datagram", "target"),
    [
        ("0000000102030405003568690a", HostPort("2.3.4.5", 53)),
        ("000000030264620035", HostPort("db", 53)),
        ("00000004" + "00" * 15 + "0100351234", HostPort("::1", 53)),
    ],
)
def test_datagrams_for_a_proxy_say_where_they_go_and_answers_carry_the_same_header(
    datagram: str, target: HostPort
) -> None:
    data = bytes.fromhex(datagram)
    unpacked = unpack_datagram(data)
    assert unpacked is not None
    assert unpacked[0] == target
    assert unpacked[1] + unpacked[2] == data


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "00000001",
        "0000010102030405003500",
        "00000001020304",
        "000000020264620035",
        "0000000300003500",
        "000000030aff",
        "00000003020a0d0035",
        "0000000400000000",
    ],
)
def test_a_datagram_for_a_proxy_that_is_malformed_or_a_fragment_is_dropped(wrong: str) -> None:
    assert unpack_datagram(bytes.fromhex(wrong)) is None


def test_answers_say_how_it_went() -> None:
    assert encode_answer(Code.OK, "1.2.3.4:5").hex() == "000009312e322e332e343a35"
    assert asyncio.run(read_answer(Bytes(encode_answer(Code.OK, "1.2.3.4:5")))) == "1.2.3.4:5"
    with pytest.raises(ForwardRefused, match="no\\\\x1b way") as caught:
        asyncio.run(read_answer(Bytes(encode_answer(Code.REFUSED, "no\x1b way"))))
    assert caught.value.code is Code.REFUSED
    with pytest.raises(ForwardRefused) as caught:
        asyncio.run(read_answer(Bytes(b"\xc8\x00\x00")))
    assert caught.value.code is Code.FAILED
    for wrong in (b"", b"\x00\x00", b"\x00\xff\xff", b"\x00\x00\x05abc"):
        with pytest.raises(RemoteProtocolError):
            asyncio.run(read_answer(Bytes(wrong)))


def test_a_hello_is_told_from_other_services_and_other_versions() -> None:
    assert is_hello(HELLO)
    assert is_hello(b'{"multi_forward": 1, "later": true}\n')
    assert not is_hello(b'{"multi_files": 1}\n')
    assert not is_hello(b"")
    assert not is_hello(b"[" * 100_000)
    with pytest.raises(RemoteProtocolError, match="version 2"):
        is_hello(b'{"multi_forward": 2}\n')


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", HostPort("h", 1)), ("[::1]:22", HostPort("::1", 22)), ("1.2.3.4:65535", HostPort("1.2.3.4", 65535))],
)
def test_addresses_are_parsed_as_they_are_written(text: str, address: HostPort) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "h", "h:", ":1", "h:-1", "h:65536", "::1:22", "[h]:1", "h:²", "a b:1", "h:000001"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_address(text)


def test_forwards_are_written_as_for_ssh() -> None:
    there = HostPort("db", 5432)
    assert parse_forward("5000:db:5432", "-L") == Forward(HostPort("127.0.0.1", 5000), there)
    assert parse_forward("0.0.0.0:5000:db:5432", "-L") == Forward(HostPort("0.0.0.0", 5000), there)
    assert parse_forward("[::1]:5000:[::2]:1", "-L") == Forward(HostPort("::1", 5000), HostPort("::2", 1))
    assert parse_forward("*:5000:db:5432,priority=0", "-L") == Forward(HostPort("*", 5000), there, Treatment(0))
    assert parse_listener("1080", "--socks") == ProxyListener(HostPort("127.0.0.1", 1080))
    assert parse_listener("[::1]:1080,priority=7", "--socks") == ProxyListener(HostPort("::1", 1080), Treatment(7))


def test_a_rule_says_how_its_streams_are_steered() -> None:
    assert parse_listener("1080,steering=latency", "--socks").treatment == Treatment(3, {"mode": "latency"})
    asked = {"mode": "standby", "max_rtt_ms": 80.0, "max_loss": 0.05}
    found = parse_forward("5000:db:5432,max_rtt_ms=80,priority=1,steering=standby,max_loss=0.05", "-L")
    assert found.treatment == Treatment(1, asked)


@pytest.mark.parametrize(
    "options",
    ["priority=8", "priority=", "prio=1", "priority=1,priority=1", "steering=fast", "max_loss=0.1", "steering"]
    + [f"steering=latency,{more}" for more in ("max_loss=2", "max_loss=x", "max_rtt_ms=nan", "max_rtt_ms=-1")],
)
def test_a_wrong_option_of_a_rule_is_an_error_that_names_the_rules_option(options: str) -> None:
    with pytest.raises(ConfigError, match=r"--udp.*allowed"):
        parse_forward(f"5000:db:1,{options}", "--udp")


@pytest.mark.parametrize("text", ["", "5000", "5000:db", "5000:db:x", ":5000:db:1", "70000:db:1"])
def test_a_wrong_forward_is_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="-L"):
        parse_forward(text, "-L")
