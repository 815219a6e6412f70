"""Kinds of interfaces, from facts and from fake sysfs trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi.discovery.kinds import DeviceFacts, kind_of
from multi.discovery.sysfs import device_facts, device_index
from multi.types import Kind

VENDOR_MAC, MADE_UP_MAC = "00:e0:4c:68:00:01", "02:e0:4c:68:00:01"


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (DeviceFacts("eth0"), Kind.ETH),
        (DeviceFacts("eth0", driver="e1000e", mac=VENDOR_MAC), Kind.ETH),
        (DeviceFacts("eth0", driver="virtio_net", mac=MADE_UP_MAC), Kind.ETH),
        (DeviceFacts("lo", hardware_type=772, virtual=True), Kind.LOOPBACK),
        (DeviceFacts("ppp0", hardware_type=512, virtual=True, link_kind="ppp"), Kind.CELLULAR),
        (DeviceFacts("rmnet0", hardware_type=519), Kind.CELLULAR),
        (DeviceFacts("sit0", hardware_type=776, virtual=True), Kind.VIRTUAL),
        (DeviceFacts("gre0", hardware_type=778), Kind.VIRTUAL),
        (DeviceFacts("mon0", hardware_type=803), Kind.WIFI),
        (DeviceFacts("wlan0", device_type="wlan"), Kind.WIFI),
        (DeviceFacts("wlx1", wireless=True, driver="rtl8xxxu"), Kind.WIFI),
        (DeviceFacts("wwan0", device_type="wwan", driver="qmi_wwan"), Kind.CELLULAR),
        (DeviceFacts("wwan0", hardware_type=65534, driver="cdc_mbim"), Kind.CELLULAR),
        (DeviceFacts("wwan0", hardware_type=65534, link_kind="wwan"), Kind.CELLULAR),
        (DeviceFacts("bnep0", device_type="bluetooth"), Kind.CELLULAR),
        (DeviceFacts("usb0", driver="rndis_host", mac=VENDOR_MAC), Kind.CELLULAR),
        (DeviceFacts("eth1", driver="ipheth"), Kind.CELLULAR),
        (DeviceFacts("enx02", driver="cdc_ncm", mac=MADE_UP_MAC), Kind.CELLULAR),
        (DeviceFacts("enx00", driver="cdc_ncm", mac=VENDOR_MAC), Kind.ETH),
        (DeviceFacts("enx00", driver="cdc_ether"), Kind.ETH),
        (DeviceFacts("br0", device_type="bridge", virtual=True), Kind.VIRTUAL),
        (DeviceFacts("wg0", hardware_type=65534, device_type="wireguard", virtual=True), Kind.VIRTUAL),
        (DeviceFacts("tun0", hardware_type=65534, virtual=True), Kind.VIRTUAL),
        (DeviceFacts("veth1", link_kind="veth"), Kind.VIRTUAL),
        (DeviceFacts("eth0.7", link_kind="vlan"), Kind.VIRTUAL),
    ],
    ids=lambda value: value.name if isinstance(value, DeviceFacts) else value.value,
)
def test_facts_decide_the_kind(facts: DeviceFacts, kind: Kind) -> None:
    assert kind_of(facts) is kind


def make_device(root: Path, name: str, where: str = "pci0000:00/0000:00:03.0", **files: str) -> Path:
    """A device as /sys/class/net shows it: a link into the tree of devices. Returns its directory."""
    device = root / "devices" / where / "net" / name
    device.mkdir(parents=True)
    for file, content in files.items():
        (device / file).write_text(content + "\n")
    classes = root / "class" / "net"
    classes.mkdir(parents=True, exist_ok=True)
    (classes / name).symlink_to(device)
    return device


def test_sysfs_tells_about_a_modem(tmp_path: Path) -> None:
    device = make_device(
        tmp_path, "wwan0", type="65534", address="", ifindex="7", uevent="DEVTYPE=wwan\nINTERFACE=wwan0"
    )
    driver = tmp_path / "bus/usb/drivers/qmi_wwan"
    driver.mkdir(parents=True)
    (device / "device").mkdir()
    (device / "device" / "driver").symlink_to(driver)
    facts = device_facts("wwan0", tmp_path / "class/net")
    assert facts == DeviceFacts("wwan0", hardware_type=65534, device_type="wwan", driver="qmi_wwan")
    assert device_index("wwan0", tmp_path / "class/net") == 7
    assert kind_of(facts) is Kind.CELLULAR


@pytest.mark.parametrize("directory", ["wireless", "phy80211"])
def test_sysfs_tells_about_wifi(tmp_path: Path, directory: str) -> None:
    (make_device(tmp_path, "wlp3s0", type="1", address=VENDOR_MAC, uevent="") / directory).mkdir()
    facts = device_facts("wlp3s0", tmp_path / "class/net")
    assert facts == DeviceFacts("wlp3s0", wireless=True, mac=VENDOR_MAC)
    assert kind_of(facts) is Kind.WIFI


def test_sysfs_tells_about_devices_without_hardware(tmp_path: Path) -> None:
    make_device(tmp_path, "veth1", "virtual", type="1", address=MADE_UP_MAC, uevent="INTERFACE=veth1")
    make_device(tmp_path, "tap0", type="1", tun_flags="0x1002")
    for name in ("veth1", "tap0"):
        facts = device_facts(name, tmp_path / "class/net")
        assert facts.virtual
        assert kind_of(facts) is Kind.VIRTUAL


def test_sysfs_tells_about_plain_ethernet(tmp_path: Path) -> None:
    make_device(tmp_path, "eth0", type="1", address=VENDOR_MAC, uevent="INTERFACE=eth0")
    facts = device_facts("eth0", tmp_path / "class/net")
    assert facts == DeviceFacts("eth0", mac=VENDOR_MAC)
    assert kind_of(facts) is Kind.ETH


def test_a_device_that_is_gone_gives_facts_that_say_nothing(tmp_path: Path) -> None:
    assert device_facts("gone0", tmp_path) == DeviceFacts("gone0")
    assert device_index("gone0", tmp_path) == 0


def test_nonsense_in_sysfs_is_taken_as_unknown(tmp_path: Path) -> None:
    make_device(tmp_path, "odd0", type="many", ifindex="?", address="zz", uevent="DEVTYPE", driver="x")
    facts = device_facts("odd0", tmp_path / "class/net")
    assert facts == DeviceFacts("odd0", mac="zz")
    assert kind_of(facts) is Kind.ETH
    assert kind_of(DeviceFacts("odd0", driver="cdc_ncm", mac="zz")) is Kind.ETH
