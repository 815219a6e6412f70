"""A line that is typed while something else is on the screen."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

ERASE = ("\x7f", "\b")
FORGET = ("\x15", "\x1b")  # Ctrl-U, Escape
QUIT = "\x04"  # Ctrl-D


class Prompt:
    """Takes keys as they are pressed and shows none, where standard input is a terminal; else it only waits."""

    def __init__(self) -> None:
        self.text = ""
        """Typed so far."""
        self._pressed = ""
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            import termios
            import tty

            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def line(self, seconds: float, on_change: Callable[[], None]) -> str | None:
        """A line, as soon as there is one; None after so many seconds. `on_change` when `text` is to be shown anew.

        Raises EOFError for Ctrl-D on an empty line.
        """
        deadline = time.monotonic() + seconds
        while True:
            while self._pressed:
                key, self._pressed = self._pressed[0], self._pressed[1:]
                if key in "\r\n":
                    line, self.text = self.text, ""
                    return line
                self._press(key)
                if not self._pressed:
                    on_change()
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if self._before is None:
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0]:
                self._pressed = os.read(sys.stdin.fileno(), 4096).decode(errors="replace") or QUIT

    def _press(self, key: str) -> None:
        if key in ERASE:
            self.text = self.text[:-1]
        elif key in FORGET:
            self.text = ""
        elif key == QUIT and not self.text:
            raise EOFError
        elif key.isprintable():
            self.text += key
