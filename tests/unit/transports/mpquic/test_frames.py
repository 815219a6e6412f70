"""What frames look like, and what is none."""

from __future__ import annotations

import pytest
from aioquic._buffer import Buffer as QuicBuffer
from aioquic.buffer import encode_uint_var

from multi.transports.mpquic.frames import (
    INITIAL_MAX_PATH_ID,
    Frame,
    PathFrame,
    new_connection_id_body,
    parameter,
    pull_frame,
    pull_parameter,
)

NUMBERED = [kind for kind in PathFrame if kind not in (0x3E, 0x3F, 0x3E78)]


def test_code_points_are_those_of_the_last_draft() -> None:
    assert [f"{kind:x}" for kind in PathFrame] == [
        *("3e", "3f", "3e75", "3e76", "3e77", "3e78", "3e79", "3e7a", "3e7b", "3e7c")
    ]
    assert INITIAL_MAX_PATH_ID == 0x3E


def test_golden_bytes() -> None:
    assert Frame(PathFrame.PATH_ABANDON, (3, 0x3E76)).body().hex() == "037e76"
    assert Frame(PathFrame.MAX_PATH_ID, (70,)).body().hex() == "4046"
    assert new_connection_id_body(2, 1, b"\x01\x02\x03", bytes(16)).hex() == "02010003010203" + "00" * 16
    assert parameter(3).hex() == "3e0103"


@pytest.mark.parametrize("kind", NUMBERED)
def test_a_frame_is_read_as_it_was_written_and_refused_when_cut_off(kind: PathFrame) -> None:
    count = 1 if kind in (PathFrame.MAX_PATH_ID, PathFrame.PATHS_BLOCKED) else 2
    frame = Frame(kind, (1 << 40, 77)[:count])
    body = frame.body()
    assert pull_frame(kind, QuicBuffer(data=body)) == frame
    for length in range(len(body)):
        with pytest.raises(ValueError, match="bounds"):
            pull_frame(kind, QuicBuffer(data=body[:length]))


def test_the_parameter_is_found_among_others() -> None:
    other = encode_uint_var(0x0F) + encode_uint_var(2) + b"ab"
    assert pull_parameter(other) is None
    assert pull_parameter(other + parameter(7) + other) == 7
    assert pull_parameter(parameter(2**32 - 1)) == 2**32 - 1


@pytest.mark.parametrize(
    "bad",
    [
        parameter(2**32),
        parameter(1) + parameter(1),
        encode_uint_var(INITIAL_MAX_PATH_ID) + b"\x02\x01\x01",
        encode_uint_var(INITIAL_MAX_PATH_ID) + b"\x00",
        parameter(1)[:-1],
    ],
)
def test_a_bad_parameter_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        pull_parameter(bad)
