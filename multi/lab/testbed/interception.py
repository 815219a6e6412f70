"""Somebody in the path: sees every frame of a link and decides what goes on. He lives in the relay's process.

An interceptor is made by a function that the relay imports by its name, so it is quick and sees frames in order; from
the owner's process it is asked through `Link.ask_interceptor`. Frames are as the kernels give them: a virtio-net header
of ten bytes (see `multi.lab.testbed.devices`), then Ethernet. With an empty header a frame is one packet with its
checksums complete.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from multi.lab.testbed import call
from multi.lab.testbed.errors import TestbedError
from multi.lab.testbed.specs import Way


class Interceptor(Protocol):
    """What `Link.intercept` has made."""

    def frame(self, way: Way, frame: bytes) -> Iterable[tuple[Way, bytes]]:
        """A frame is about to enter the link; return what enters it instead, in order, on either way.

        An empty result loses the frame. What is returned is not shown to `frame` again.
        """

    def asked(self, question: object) -> object:
        """The answer to `Link.ask_interceptor`; both travel pickled."""


@dataclass(slots=True)
class Interception:
    """The interceptor of one link and what became of it. One that fails loses its frames and says why when asked."""

    interceptor: Interceptor
    failure: str = ""

    def frames(self, way: Way, frame: bytes) -> Iterable[tuple[Way, bytes]]:
        if self.failure:
            return ()
        try:
            return list(self.interceptor.frame(way, frame))
        except Exception:  # foreign code: the relay and the other links must outlive it
            self.failure = traceback.format_exc()
            return ()

    def answer(self, question: bytes) -> bytes:
        """Raises TestbedError when the interceptor has failed."""
        if not self.failure:
            try:
                return pickle.dumps(self.interceptor.asked(pickle.loads(question)))
            except Exception:
                self.failure = traceback.format_exc()
        raise TestbedError(f"the interceptor has failed: {self.failure}")


def make(packed: bytes) -> Interception:
    """In the relay, of a packed call. Raises TestbedError when it cannot be made here."""
    try:
        return Interception(call.make(io.BytesIO(packed)))
    except Exception:
        raise TestbedError(f"the interceptor cannot be made: {traceback.format_exc()}") from None
