"""QUIC engines that are not installed everywhere: tests of them are skipped with what is missing."""

from __future__ import annotations

import pytest

from multi.errors import TransportError
from multi.transports.quic.engine import QuicEngine, implementation


def engine_or_skip(name: str) -> type[QuicEngine]:
    """The engine called `name` in `quic_config`; where it is not there, the test is skipped and the reason says why."""
    try:
        return implementation(name)
    except TransportError as error:
        pytest.skip(str(error))


def is_there(name: str) -> bool:
    try:
        implementation(name)
    except TransportError:
        return False
    return True
