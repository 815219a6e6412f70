"""What leaves a session: effects in order, and whether there may be more to send.

Every part of a session adds to the one list; nothing here decides anything.
"""

from __future__ import annotations

from multi.events import Effect, Event, Notify


class Output:
    """The effects since they were taken last."""

    __slots__ = ("effects", "needs_flush")

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.needs_flush = True
        """Something has happened since the last effects that may call for more than acknowledgements."""

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def notify(self, event: Event) -> None:
        self.needs_flush = True
        self.effects.append(Notify(event))
