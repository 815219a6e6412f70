"""Somebody in the path: sees every frame of a link and decides what goes on. He lives in the relay's process.

An interceptor is made by a function that the relay imports by its name, so it is quick and sees frames in order; from
the owner's process it is asked through `Link.ask_interceptor`. Frames are as the kernels give them: a virtio-net header
of ten bytes (see `multi.lab.testbed.devices`), then Ethernet. With an empty header a frame is one packet with its
checksums complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from multi.lab.testbed.specs import Way


class Interceptor(Protocol):
    """What `Link.intercept` has made."""

    def frame(self, way: Way, frame: bytes) -> Iterable[tuple[Way, bytes]]:
        """A frame is about to enter the link; return what enters it instead, in order, on either way.

        An empty result loses the frame. What is returned is not shown to `frame` again.
        """

    def asked(self, question: object) -> object:
        """The answer to `Link.ask_interceptor`; both travel pickled."""
