"""What a program that serves says never holds it up."""

from __future__ import annotations

import fcntl
import os
import sys

import pytest

from multi.lab import output
from multi.lab.output import Room, put_line

PAGE = 4096
LINE = "x" * 99


def test_lines_that_nobody_takes_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_room", Room())
    monkeypatch.setattr(output, "PATIENCE", 1)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 2 * PAGE)
    with open(reader, "rb", buffering=0) as pipe, open(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        for _ in range(100):
            put_line(LINE)
        taken = pipe.read(2 * PAGE).decode().splitlines()
        assert taken == [LINE] * len(taken)
        assert 0 < len(taken) < 90
        put_line("there is room again")
        put_line("and more")
        assert pipe.read(PAGE).decode().splitlines() == [
            f"(lost here, because nobody took them: {100 - len(taken)} lines)",
            "there is room again",
            "and more",
        ]


@pytest.mark.parametrize("where", ["/dev/full", "/dev/null"])
def test_a_full_disk_ends_nothing_and_leaves_nothing_to_fail_later(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(where, "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        put_line("\N{SNOWMAN} and \udc80, which no stream can encode")
        stream.flush()
