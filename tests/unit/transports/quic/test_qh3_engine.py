"""What qh3 is helped with: datagrams of several packets, and requests that it cannot fulfil."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from multi.errors import TransportError
from multi.transports.base import TlsSettings
from multi.transports.quic.engine import EngineSettings
from multi.transports.quic.settings import QuicSettings
from tests.engines import engine_or_skip

VERSION = b"\x00\x00\x00\x01"


def initial(size: int) -> bytes:
    """The outside of an Initial packet of QUIC 1 with `size` bytes behind its length field."""
    ids = bytes([8]) + bytes(8) + bytes([8]) + bytes(8)
    return b"\xc0" + VERSION + ids + b"\x00" + (0x4000 | size).to_bytes(2, "big") + bytes([1]) * size


def test_a_datagram_is_taken_apart_into_its_packets() -> None:
    engine_or_skip("qh3")
    from multi.transports.quic.qh3_engine import _packets

    first, second = initial(100), initial(200)
    assert list(_packets(first + second, 8)) == [first, second]
    padded = first + bytes(900)  # the padding counts as received
    assert list(_packets(padded, 8)) == [padded]
    assert list(_packets(first + b"\xff", 8)) == [first, b"\xff"]
    assert list(_packets(b"", 8)) == []


def test_it_says_that_it_asks_no_client_for_a_certificate() -> None:
    engine = engine_or_skip("qh3")
    tls = TlsSettings(cert=Path("cert.pem"), key=Path("key.pem"))
    with pytest.raises(TransportError, match="'qh3' cannot ask clients for certificates"):
        engine.configure(EngineSettings(QuicSettings(engine="qh3"), tls, b"issuers"))


FIRST_KEYS = """
import time
from multi.transports.quic import qh3_engine
from qh3._hazmat import ECDHP256KeyExchange, X25519KeyExchange
for kind in (X25519KeyExchange, ECDHP256KeyExchange):
    began = time.thread_time()
    kind()
    print(time.thread_time() - began)
"""


def test_the_first_handshake_of_a_process_does_not_wait_for_the_generator_of_keys() -> None:
    engine_or_skip("qh3")
    words = (sys.executable, "-c", FIRST_KEYS)
    took = [float(line) for line in subprocess.check_output(words, cwd=Path(__file__).parents[4], text=True).split()]
    assert max(took) < 0.010, "it took 21 ms of the processor, during which no session got on"
