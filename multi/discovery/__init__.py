"""The networks of this machine: interfaces with kinds and addresses, and routes through them."""

from multi.discovery.interfaces import interfaces, interfaces_async, interfaces_known, routed

__all__ = ["interfaces", "interfaces_async", "interfaces_known", "routed"]
