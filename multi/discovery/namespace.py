"""Which network namespace this thread is in: what is known of networks is known of one. Linux only."""

from __future__ import annotations

import os

NamespaceId = tuple[int, int]
"""Device and inode, which no other namespace has as long as this one exists."""


def namespace() -> NamespaceId:
    """Raises OSError where the system does not tell."""
    found = os.stat("/proc/thread-self/ns/net")
    return found.st_dev, found.st_ino


def namespace_if_told() -> NamespaceId:
    """Where the system does not tell, all are one."""
    try:
        return namespace()
    except OSError:
        return 0, 0
