"""Facts about network devices from /sys/class/net. Any file may be missing, or vanish while it is read."""

from __future__ import annotations

import os
from pathlib import Path

from multi.discovery.kinds import DeviceFacts

SYS_CLASS_NET = Path("/sys/class/net")


def device_facts(name: str, root: Path = SYS_CLASS_NET) -> DeviceFacts:
    """Read what sysfs says about a device; a device it does not know gives facts that say nothing."""
    device = root / name
    uevent = dict(line.partition("=")[::2] for line in _text(device / "uevent").splitlines())
    driver = device / "device" / "driver"
    return DeviceFacts(
        name=name,
        hardware_type=_number(device / "type", 1),
        device_type=uevent.get("DEVTYPE", ""),
        wireless=(device / "wireless").is_dir() or (device / "phy80211").exists(),
        driver=os.path.basename(os.path.realpath(driver)) if driver.is_symlink() else "",
        mac=_text(device / "address"),
        virtual="/devices/virtual/" in os.path.realpath(device) or (device / "tun_flags").exists(),
    )


def device_index(name: str, root: Path = SYS_CLASS_NET) -> int:
    """The interface index, 0 = unknown."""
    return _number(root / name / "ifindex", 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return otherwise
