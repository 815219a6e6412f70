"""Linux namespaces without names: made by `unshare`, held by file descriptors, gone with the last process that knows.

Nothing here needs root where the kernel lets users make user namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from multi.lab.testbed.errors import TestbedNotAllowed
from multi.lab.testbed.netlink import HostNetlink

# include/uapi/linux/sched.h, prctl.h
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PR_SET_TIMERSLACK = 29
LOOPBACK = 1  # interface index

_libc = ctypes.CDLL(None, use_errno=True)


def enter_user_namespace() -> None:
    """Move this process into a user namespace of its own, where it may do with networks what root may.

    It gets a network namespace of its own too, with nothing but the loopback interface: from the machine's one it could
    go to others, but never come back. Only while the process has one thread. Raises TestbedNotAllowed where the system
    forbids it.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        raise TestbedNotAllowed(
            f"not root, and this system gives users no user namespaces ({error.strerror}); look at "
            "user.max_user_namespaces, kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns, or the container's seccomp profile"
        ) from None
    netlink = HostNetlink()
    netlink.set_up(LOOPBACK, True)
    netlink.close()


def new_network_namespace() -> int:
    """Move this thread into a new network namespace; return a descriptor of it. Raises OSError."""
    _unshare(CLONE_NEWNET)
    return own_network_namespace()


def own_network_namespace() -> int:
    """A descriptor of the network namespace this thread is in."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """This thread is in another network namespace meanwhile. Raises OSError."""
    home = own_network_namespace()
    try:
        _setns(home, CLONE_NEWNET)  # changes nothing, but fails before we have left if there is no way back
        _setns(namespace, CLONE_NEWNET)
        try:
            yield
        finally:
            _setns(home, CLONE_NEWNET)
    finally:
        os.close(home)


def enter(network: int, user: int | None) -> None:
    """Move this process, which has one thread, into namespaces for good. Raises OSError."""
    if user is not None:
        _setns(user, CLONE_NEWUSER)
    _setns(network, CLONE_NEWNET)


def processes_inside(namespaces: set[int]) -> list[int]:
    """Ids of all processes whose network namespace has one of these inode numbers."""
    found = []
    for name in os.listdir("/proc"):
        # A process may end, or be none of our business, while we look.
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}/ns/net").st_ino in namespaces:
                found.append(int(name))
    return found


def exact_timers() -> None:
    """Ask for timers that end when they should: by default the kernel may add 50 microseconds."""
    _libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        _fail("unshare")


def _setns(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind):
        _fail("setns")


def _fail(call: str) -> None:
    code = ctypes.get_errno() or errno.EPERM
    raise OSError(code, f"{call}: {os.strerror(code).lower()}")
