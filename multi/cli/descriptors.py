"""How many files and sockets this process may have open."""

from __future__ import annotations

import sys


def allow_many_descriptors() -> None:
    """Raise the soft limit, 1024 on most systems, to the hard one.

    Each forwarded connection takes a descriptor, and so does each of a server's: strangers who say nothing would leave
    none to open a file with.
    """
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with_limit = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (with_limit, hard))
    except (OSError, ValueError):
        pass  # macOS has another limit besides; what there is will do
