"""What goes wrong with testbeds."""

from __future__ import annotations

from multi.errors import MultiError


class TestbedError(MultiError):
    """A testbed cannot be made or changed; the message says why in words."""

    __test__ = False  # not a test, whatever pytest thinks of the name


class TestbedNotAllowed(TestbedError):
    """This machine does not allow or cannot do what a testbed needs, as opposed to a wrong request."""
