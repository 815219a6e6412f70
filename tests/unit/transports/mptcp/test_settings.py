"""`mptcp_config`: all that TCP has, and the kernel's scheduler."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from multi.transports.mptcp.settings import MptcpSettings
from multi.transports.tcp.settings import TcpSettings


def test_it_takes_what_tcp_takes_and_a_scheduler_besides() -> None:
    assert set(MptcpSettings.model_fields) - set(TcpSettings.model_fields) == {"scheduler"}
    assert MptcpSettings().scheduler == ""
    with pytest.raises(ValidationError):
        MptcpSettings(scheduler="no such name")
