"""What a session is told at birth means what its names say."""

from __future__ import annotations

import pytest

from multi.protocol.settings import Protect, SessionSettings


@pytest.mark.parametrize(
    ("protect", "in_clear", "inside_tls"),
    [(Protect.AUTO, True, False), (Protect.ALWAYS, True, True), (Protect.NEVER, False, False)],
)
def test_segments_are_sealed_where_the_setting_says_and_the_transport_leaves_it_open(
    protect: Protect, in_clear: bool, inside_tls: bool
) -> None:
    assert (protect.seals(secure=False), protect.seals(secure=True)) == (in_clear, inside_tls)


def test_by_default_nothing_travels_in_clear() -> None:
    assert SessionSettings().protect.seals(secure=False)


def test_a_transport_without_an_idle_timeout_of_its_own_has_the_general_one() -> None:
    settings = SessionSettings(idle_timeout=60.0, idle_timeouts=(("quic", 5.0),))
    assert settings.idle_timeout_of("quic") == 5.0
    assert settings.idle_timeout_of("tcp") == 60.0


def test_a_key_is_in_no_message() -> None:
    assert "secret" not in repr(SessionSettings(psk=b"secret"))
