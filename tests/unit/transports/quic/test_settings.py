"""`quic_config`: which congestion control goes with which engine, and bounds."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from multi.transports.quic.settings import QuicSettings

HAS = {"aioquic": {"cubic", "reno"}, "qh3": {"cubic"}, "noq": {"cubic", "reno", "bbr"}}


@pytest.mark.parametrize("engine", HAS)
@pytest.mark.parametrize("congestion", ["cubic", "reno", "bbr"])
def test_an_engine_takes_the_congestion_control_that_it_has(engine: str, congestion: str) -> None:
    given = {"engine": engine, "congestion": congestion}
    if congestion in HAS[engine]:
        assert QuicSettings.model_validate(given).congestion == congestion
    else:
        with pytest.raises(ValidationError, match=f'with the engine "{engine}"'):
            QuicSettings.model_validate(given)


@pytest.mark.parametrize("size", [1199, 65_528, "1350 bytes"])
def test_a_datagram_is_as_large_as_quic_and_udp_allow(size: object) -> None:
    with pytest.raises(ValidationError, match="a whole number from 1200 to 65527"):
        QuicSettings.model_validate({"max_datagram_size": size})
