"""`tcp_config`: names go to the kernel as they are, so they are what the kernel takes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from multi.transports.tcp.settings import TcpSettings


@pytest.mark.parametrize("name", ["", "bbr", "cubic", "dctcp", "x" * 15])
def test_names_of_congestion_control_are_taken(name: str) -> None:
    assert TcpSettings(congestion=name).congestion == name


@pytest.mark.parametrize("name", ["x" * 16, "bbr;", "b b r", "bbr\0", "kübic"])
def test_what_can_be_no_name_of_the_kernel_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        TcpSettings(congestion=name)


def test_small_segments_are_not_held_back_unless_asked_for() -> None:
    assert not TcpSettings().nagle
