"""The payload of `multi bench`: whoever receives it can tell whether it is whole."""

from __future__ import annotations

import pytest

from multi.lab.bench.protocol import BLOCK, READ, WRITE, Payload

LENGTH = READ


def sent(offset: int) -> bytes:
    pieces = range(offset, offset + LENGTH, WRITE)
    return b"".join(bytes(Payload().piece(at, WRITE)) for at in pieces)


@pytest.mark.parametrize("offset", [0, WRITE, BLOCK - 1, 7 * BLOCK - 3 * WRITE])
@pytest.mark.parametrize("size", [17, WRITE - 1, WRITE, 3 * WRITE + 5, LENGTH])
def test_the_payload_matches_itself_however_it_is_cut(offset: int, size: int) -> None:
    payload, data = Payload(), sent(offset)
    cuts = range(0, LENGTH, size)
    assert all(payload.matches(data[cut : cut + size], offset + cut) for cut in cuts)


@pytest.mark.parametrize("place", [0, WRITE - 1, WRITE, LENGTH - 1])
def test_a_changed_missing_or_doubled_byte_shows(place: int) -> None:
    payload, data = Payload(), sent(0)
    before, rest = data[:place], data[place:]
    assert payload.matches(data, 0)
    assert not payload.matches(before + bytes([rest[0] ^ 1]) + rest[1:], 0)
    assert not payload.matches(before + rest[:1] + rest, 0)
    assert not payload.matches(before + rest[1:] + b"x", 0)
