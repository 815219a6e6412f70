"""Questions to the kernel's WiFi layer: nl80211 over generic netlink.

A machine without WiFi has no nl80211 at all, which is an error like any other here (`FileNotFoundError`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from multi.discovery.netlink import OpenSocket, attributes, u32
from multi.linux.genetlink import GenericNetlink

# include/uapi/linux/nl80211.h
NL80211_CMD_GET_STATION = 17
NL80211_CMD_SET_POWER_SAVE = 61
NL80211_CMD_GET_POWER_SAVE = 62
NL80211_ATTR_IFINDEX = 3
NL80211_ATTR_STA_INFO = 21
NL80211_ATTR_PS_STATE = 93
NL80211_VERSION = 0


class Nl80211(GenericNetlink):
    """Questions one at a time, from one thread at a time; every method raises OSError with the kernel's number."""

    def __init__(self, open_socket: OpenSocket) -> None:
        super().__init__("nl80211", NL80211_VERSION, open_socket)

    def power_saving(self, index: int) -> bool:
        """Whether the interface with this index may save power."""
        try:
            answers = self.request(NL80211_CMD_GET_POWER_SAVE, u32(NL80211_ATTR_IFINDEX, index))
        except OSError as error:
            if error.errno == errno.EINVAL:  # what some kernels say of interfaces that are not wireless
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from None
            raise
        for answer in map(attributes, answers):
            if len(state := answer.get(NL80211_ATTR_PS_STATE, b"")) == 4:
                return state != bytes(4)
        raise OSError(errno.ENODATA, "the driver does not tell")

    def set_power_saving(self, index: int, on: bool) -> None:
        """Needs CAP_NET_ADMIN."""
        body = u32(NL80211_ATTR_IFINDEX, index) + u32(NL80211_ATTR_PS_STATE, on)
        self.request(NL80211_CMD_SET_POWER_SAVE, body)

    def stations(self, index: int) -> list[Mapping[int, bytes]]:
        """What is known of each station at the other end: attribute of `nl80211_sta_info` -> value."""
        answers = self.request(NL80211_CMD_GET_STATION, u32(NL80211_ATTR_IFINDEX, index), dump=True)
        found = map(attributes, answers)
        return [attributes(one[NL80211_ATTR_STA_INFO]) for one in found if NL80211_ATTR_STA_INFO in one]
