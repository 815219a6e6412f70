"""All targets by name."""

from __future__ import annotations

from tests.fuzz import (
    fuzz_config,
    fuzz_handshake,
    fuzz_kernel,
    fuzz_mpquic,
    fuzz_payloads,
    fuzz_segment,
    fuzz_services,
    fuzz_sessions,
    fuzz_transports,
)
from tests.fuzz.target import Target

__all__ = ["TARGETS"]

_MODULES = (
    fuzz_segment,
    fuzz_payloads,
    fuzz_handshake,
    fuzz_config,
    fuzz_services,
    fuzz_kernel,
    fuzz_transports,
    fuzz_mpquic,
    fuzz_sessions,
)

TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
