"""What this process may do to the networks of the machine."""

from __future__ import annotations

from pathlib import Path

CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h


def may_administer(status: Path = Path("/proc/self/status")) -> bool:
    """Whether it may change links, routes and the power saving of WiFi; False where the system does not tell."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_NET_ADMIN & 1)
