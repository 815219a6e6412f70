"""A scheduler of your own: everything over WiFi while it can send, then the lowest latency.

Run it to see what it picks. To use it, import this module and write
`"scheduler": "prefer_wifi"` in the configuration.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import multi
from multi import ConnectionView, SendRequest


@multi.register_scheduler("prefer_wifi")
class PreferWifi:
    """Called for every segment. `kinds` of interfaces are told by name here: wlan0, wlp2s0."""

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        able = [c for c in connections if c.credit > 0]
        return [min(able, key=lambda c: (not c.interface.startswith("wl"), c.rtt))] if able else []


def main() -> None:
    request: Any = None  # this scheduler does not look at it
    wifi: Any = SimpleNamespace(id=1, interface="wlan0", credit=65536, rtt=0.030)
    cellular: Any = SimpleNamespace(id=2, interface="wwan0", credit=65536, rtt=0.020)
    scheduler = PreferWifi()
    print("WiFi and 5G can send:", scheduler.select(request, [wifi, cellular])[0].interface)
    wifi.credit = 0
    print("WiFi is blocked:     ", scheduler.select(request, [wifi, cellular])[0].interface)


if __name__ == "__main__":
    main()
