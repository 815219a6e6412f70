"""What kind of network an interface is, decided from facts about the device; pure.

The user's own map comes before this, because some devices cannot be told apart: a TAP looks like Ethernet, an
Ethernet port may have a cellular router behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from multi.types import Kind

# ARPHRD_* values of `include/uapi/linux/if_arp.h`, as in /sys/class/net/<name>/type.
ARPHRD_PPP = 512
ARPHRD_RAWIP = 519
ARPHRD_LOOPBACK = 772
ARPHRD_KINDS = {
    ARPHRD_LOOPBACK: Kind.LOOPBACK,
    ARPHRD_PPP: Kind.CELLULAR,
    ARPHRD_RAWIP: Kind.CELLULAR,
    768: Kind.VIRTUAL,  # IPIP tunnel
    769: Kind.VIRTUAL,  # IPv6 tunnel
    776: Kind.VIRTUAL,  # 6in4 (sit)
    778: Kind.VIRTUAL,  # GRE
    823: Kind.VIRTUAL,  # GRE over IPv6
    801: Kind.WIFI,  # 802.11, as monitor interfaces show it
    802: Kind.WIFI,
    803: Kind.WIFI,
}
DEVTYPE_KINDS = {"wlan": Kind.WIFI, "wwan": Kind.CELLULAR, "bluetooth": Kind.CELLULAR}
LINK_KINDS = {"wwan": Kind.CELLULAR, "rmnet": Kind.CELLULAR, "virt_wifi": Kind.WIFI}
CELLULAR_DRIVERS = frozenset(
    {
        *("cdc_mbim", "hso", "huawei_cdc_ncm", "qmi_wwan", "sierra_net"),  # modems over USB
        *("iosm", "mhi_net", "mhi_wwan_mbim", "mtk_t7xx"),  # over PCIe
        *("rndis_host", "ipheth"),  # Android and iPhone tethering
    }
)
USB_ETHERNET_DRIVERS = frozenset({"cdc_ether", "cdc_ncm"})  # adapters, but newer phones tether with these too
LOCALLY_ADMINISTERED = 0x02  # of the first MAC byte: made up, as phones do; adapters carry a vendor's address


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the system says about a device; empty = it does not say."""

    name: str
    hardware_type: int = 1
    """ARPHRD_*; 1 = Ethernet, which TAP, veth and WiFi claim to be too."""
    link_kind: str = ""
    """IFLA_INFO_KIND of a device made by software: veth, bridge, tun, wireguard, wwan, ..."""
    device_type: str = ""
    """DEVTYPE of the uevent file: wlan, wwan, bridge, bond, vlan, vxlan, wireguard, bluetooth, ..."""
    wireless: bool = False
    """Has a `wireless` or `phy80211` directory."""
    driver: str = ""
    mac: str = ""
    """Colon-separated hexadecimal."""
    virtual: bool = False
    """Lives under /sys/devices/virtual: no hardware behind it."""


def kind_of(facts: DeviceFacts) -> Kind:
    """Recognise the kind; what looks like hardware and like nothing else is `eth`.

    A phone shared over USB or Bluetooth counts as cellular: that is where its bytes go.
    """
    if facts.hardware_type in ARPHRD_KINDS:
        return ARPHRD_KINDS[facts.hardware_type]
    if facts.device_type in DEVTYPE_KINDS:
        return DEVTYPE_KINDS[facts.device_type]
    if facts.wireless:
        return Kind.WIFI
    if facts.link_kind in LINK_KINDS:
        return LINK_KINDS[facts.link_kind]
    if facts.driver in CELLULAR_DRIVERS:
        return Kind.CELLULAR
    if facts.driver in USB_ETHERNET_DRIVERS:
        return Kind.CELLULAR if _made_up(facts.mac) else Kind.ETH
    if facts.link_kind or facts.device_type or facts.virtual:
        return Kind.VIRTUAL
    return Kind.ETH


def _made_up(mac: str) -> bool:
    try:
        return bool(int(mac.split(":")[0], 16) & LOCALLY_ADMINISTERED)
    except ValueError:
        return False
