"""One directory, and nothing outside of it: names from a peer become open files without a way out.

Names are walked one component at a time from an open descriptor, and no step follows a symbolic link. What is checked
is the very file that is opened, so nobody who changes the directory meanwhile can win a race. Who may write, and what
is written, is decided by the file service.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from multi.errors import printable, words_of
from multi.lab.files.protocol import LATEST, MAX_ENTRIES, FileRefused, Item, Problem

MAX_NAME = 255  # bytes of a component, NAME_MAX of Linux's file systems
MAX_PATH = 4096  # bytes, PATH_MAX
PARTIAL_PREFIX = ".multi-partial-"  # of files that are being received; peers cannot name them
PRIVATE = 0o600  # an unfinished file is nobody else's business
WRITABLE_BY_OTHERS = 0o022
MAX_LOOKS = 100_000  # names that are looked at for one listing, files or not
LISTING_TIME = 2.0  # seconds that one listing may take
EXPIRY = 7 * 86_400.0  # seconds since somebody has gone on with an unfinished file; then it is removed


def refused(error: OSError, what: str) -> FileRefused:
    """An error of the file system as a refusal: `what` names the file as the peer knows it."""
    problems = {
        errno.ENOENT: (Problem.NOT_FOUND, "no such file"),
        errno.ENOTDIR: (Problem.NOT_FOUND, "a part of it is not a directory"),
        errno.ELOOP: (Problem.FORBIDDEN, "it is a symbolic link"),
        errno.EACCES: (Problem.FORBIDDEN, "permission denied"),
        errno.EPERM: (Problem.FORBIDDEN, "not permitted"),
        errno.EROFS: (Problem.FORBIDDEN, "the file system is read-only"),
        errno.EEXIST: (Problem.EXISTS, "it exists already"),
        errno.EISDIR: (Problem.FORBIDDEN, "it is a directory"),
        errno.ENAMETOOLONG: (Problem.BAD_REQUEST, "the name is too long"),
        errno.ENOSPC: (Problem.NO_SPACE, "no space left on the disk"),
        errno.EDQUOT: (Problem.NO_SPACE, "the disk quota is used up"),
        errno.EFBIG: (Problem.NO_SPACE, "the file is too large for the file system"),
    }
    problem, reason = problems.get(error.errno or 0, (Problem.FAILED, words_of(error)))
    return FileRefused(problem, f"{what}: {reason}")


def allowed_mode(mode: int) -> int:
    """The mode a received file gets: the sender's, without what the umask forbids and without set-user-id and the like.

    Its owner may always read and change it.
    """
    mask = os.umask(0o077)  # there is no way to ask without setting it
    os.umask(mask)
    return mode & 0o777 & ~mask | PRIVATE


class FileLocation:
    """A name in an open directory: where a file is, or will be."""

    def __init__(self, directory: int, name: str, shown: str, partial: str) -> None:
        """`partial` is the name of the file while it is unfinished."""
        self._directory = directory
        self._name = name
        self._partial = partial
        self.shown = shown
        """The whole name, safe to print."""

    def open_for_reading(self) -> int:
        """A descriptor of the regular file of this name. Raises FileRefused."""
        self._check(self._status(self._name), must_exist=True)
        try:
            # Without O_NONBLOCK, a pipe put here since the check would hang the service.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._name, flags, dir_fd=self._directory)
        except OSError as error:
            raise refused(error, self.shown) from error
        try:
            self._check(os.fstat(descriptor), must_exist=True)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def check_free(self, *, force: bool) -> None:
        """Raises FileRefused when something of this name is in the way. `commit` checks it again."""
        found = self._status(self._name)
        self._check(found, must_exist=False)
        if found is not None and not force:
            raise FileRefused(Problem.EXISTS, f"{self.shown}: it exists already (--force replaces it)")

    def open_partial(self) -> int:
        """A descriptor of the unfinished file, locked. Raises FileRefused, also when another transfer has it.

        It is ours alone: who may write to the directory too could have put a file there that stays his to change.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        while True:
            found = self._status(self._partial)
            self._check(found, must_exist=False)
            if found is not None and not _ours(found):
                self._remove_partial()
                continue
            try:
                create = os.O_CREAT | os.O_EXCL if found is None else 0
                descriptor = os.open(self._partial, flags | create, PRIVATE, dir_fd=self._directory)
            except FileExistsError:
                continue  # another transfer was faster
            except OSError as error:
                if found is not None and error.errno == errno.ENOENT:
                    continue  # likewise; to make one is refused so only where its directory is gone or takes none
                raise refused(error, self.shown) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last owner may have renamed it between our open and our lock.
                now = self._status(self._partial)
                if now is not None and _ours(now) and os.path.samestat(now, os.fstat(descriptor)):
                    if now.st_nlink == 1:
                        os.utime(descriptor)  # it is gone on with, so it does not expire
                        return descriptor
                    # A crash in the middle of `commit`: writing to it would change the finished file.
                    self._remove_partial()
                os.close(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                raise FileRefused(Problem.BUSY, f"{self.shown}: another transfer of it is under way") from None
            except BaseException:
                with suppress(OSError):
                    os.close(descriptor)
                raise

    def commit(self, *, force: bool) -> None:
        """Give the partial file its name, atomically; without `force` only if the name is free. Raises FileRefused."""
        self.check_free(force=force)
        try:
            if force:
                os.replace(self._partial, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            else:
                # A link fails when the name is taken, a rename would replace what came there since the check.
                os.link(
                    self._partial,
                    self._name,
                    src_dir_fd=self._directory,
                    dst_dir_fd=self._directory,
                    follow_symlinks=False,
                )
                os.unlink(self._partial, dir_fd=self._directory)
            os.fsync(self._directory)
        except FileExistsError:
            message = f"{self.shown}: it has come into being meanwhile (--force replaces it)"
            raise FileRefused(Problem.EXISTS, message) from None
        except OSError as error:
            if not force and error.errno in (errno.EPERM, errno.EOPNOTSUPP):
                message = f"{self.shown}: this file system has no hard links, only --force can store files on it"
                raise FileRefused(Problem.FORBIDDEN, message) from error
            raise refused(error, self.shown) from error

    def abandon(self, *, useless: bool) -> None:
        """The transfer has failed: keep the partial file for the next try, unless it is empty or `useless`.

        Only for who holds its lock, and has not committed: later it may be another's.
        """
        status = self._status(self._partial)
        if status is not None and (useless or not status.st_size):
            self._remove_partial()

    def _remove_partial(self) -> None:
        try:
            os.unlink(self._partial, dir_fd=self._directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise refused(error, self.shown) from error

    def _status(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused(error, self.shown) from error

    def _check(self, status: os.stat_result | None, *, must_exist: bool) -> None:
        if status is None:
            if must_exist:
                raise FileRefused(Problem.NOT_FOUND, f"{self.shown}: no such file")
        elif stat.S_ISLNK(status.st_mode):
            raise FileRefused(Problem.FORBIDDEN, f"{self.shown}: it is a symbolic link")
        elif stat.S_ISDIR(status.st_mode):
            raise FileRefused(Problem.FORBIDDEN, f"{self.shown}: it is a directory")
        elif not stat.S_ISREG(status.st_mode):
            raise FileRefused(Problem.FORBIDDEN, f"{self.shown}: it is not a regular file")


def _ours(status: os.stat_result) -> bool:
    """Nobody else can have it open to write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & WRITABLE_BY_OTHERS


class FileTree:
    """An open directory. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError when it is not a directory that may be read."""
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> FileTree:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._root)

    @contextmanager
    def locate(self, name: str, owner: str = "") -> Iterator[FileLocation]:
        """The location of `name`, a relative path with `/`. Raises FileRefused for any name that leads elsewhere.

        Each `owner` has an unfinished file of his own.
        """
        shown = printable(name)
        *directories, last = _components(name, shown)
        current = self._open_directory(directories, shown)
        try:
            unfinished = hashlib.sha256(os.fsencode(f"{owner}\0{last}")).hexdigest()[:32]
            yield FileLocation(current, last, shown, PARTIAL_PREFIX + unfinished)
        finally:
            os.close(current)

    def listing(self, name: str) -> tuple[list[Item], bool]:
        """The regular files in the directory `name` ("": the tree's own) and below, and whether these are all.

        Files near the top come first, so that they are there when it is cut off: after MAX_ENTRIES files, MAX_LOOKS
        names or LISTING_TIME. What `locate` would not lead to is left out: symbolic links, directories that cannot be
        opened, unfinished files. Raises FileRefused when `name` is no directory inside.
        """
        ends = time.monotonic() + LISTING_TIME
        found: list[Item] = []
        for looks, entry in enumerate(self._below(_components(name, printable(name)) if name else [])):
            if len(found) == MAX_ENTRIES or looks == MAX_LOOKS or time.monotonic() > ends:
                return found, False
            if entry is not None:
                found.append(entry)
        return found, True

    def _below(self, top: list[str]) -> Iterator[Item | None]:
        """What is in a directory and below it, level by level; None for what is no file of ours."""
        waiting = deque([top])
        while waiting:
            path = waiting.popleft()
            shown = printable("/".join(path)) or "the directory that is served"
            try:
                directory = self._open_directory(path, shown)
            except FileRefused:
                if path is top:
                    raise
                yield None  # it has gone, or may not be read
                continue
            try:
                with os.scandir(directory) as children:
                    for child in children:
                        yield self._looked_at(child, path, waiting)
            except OSError as error:
                raise refused(error, shown) from error
            finally:
                os.close(directory)

    @staticmethod
    def _looked_at(child: os.DirEntry[str], path: list[str], waiting: deque[list[str]]) -> Item | None:
        """The entry of a regular file; a directory is put with those that wait."""
        here = [*path, child.name]
        if child.name.startswith(PARTIAL_PREFIX) or len(os.fsencode("/".join(here))) > MAX_PATH:
            return None
        try:
            status = child.stat(follow_symlinks=False)
        except OSError:
            return None  # it has gone
        if stat.S_ISDIR(status.st_mode):
            waiting.append(here)
        if not stat.S_ISREG(status.st_mode):
            return None
        return Item("/".join(here), status.st_size, min(max(int(status.st_mtime), 0), LATEST))

    def _open_directory(self, path: list[str], shown: str) -> int:
        """A descriptor of a directory inside. Raises FileRefused; `shown` is what was asked for."""
        try:
            # Not a duplicate, which would share with others how far they have read the directory.
            current = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        except OSError as error:
            raise refused(error, shown) from error
        for component in path:
            try:
                deeper = _step(current, component, shown)
            finally:
                os.close(current)
            current = deeper
        return current

    def expire_partials(self) -> None:
        """Remove unfinished files that nobody has gone on with for `EXPIRY`, in all directories."""
        oldest = time.time() - EXPIRY
        for _, _, names, directory in os.fwalk(dir_fd=self._root):
            for name in names:
                if name.startswith(PARTIAL_PREFIX):
                    with suppress(OSError):
                        if os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime < oldest:
                            os.unlink(name, dir_fd=directory)


def _components(name: str, shown: str) -> list[str]:
    if not name:
        raise FileRefused(Problem.BAD_REQUEST, "the name is empty")
    if "\0" in name:
        raise FileRefused(Problem.BAD_REQUEST, f"{shown}: a name cannot hold a NUL")
    if name.startswith("/"):
        raise FileRefused(Problem.FORBIDDEN, f"{shown}: absolute names are refused")
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise FileRefused(Problem.BAD_REQUEST, f"{shown}: this is no file name") from None
    components = name.split("/")
    if length > MAX_PATH or any(len(os.fsencode(c)) > MAX_NAME for c in components):
        raise FileRefused(Problem.BAD_REQUEST, f"{shown[:60]}...: the name is too long")
    for component in components:
        if component == "":
            raise FileRefused(Problem.BAD_REQUEST, f"{shown}: a part of the name is empty")
        if component == "..":
            raise FileRefused(Problem.FORBIDDEN, f"{shown}: '..' is refused, nothing outside the directory is served")
        if component == ".":
            raise FileRefused(Problem.BAD_REQUEST, f"{shown}: '.' is no part of a name here")
        if component.startswith(PARTIAL_PREFIX):
            raise FileRefused(Problem.FORBIDDEN, f"{shown}: names of unfinished files are refused")
    return components


def _step(directory: int, component: str, shown: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(component, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            with suppress(OSError):
                if stat.S_ISLNK(os.stat(component, dir_fd=directory, follow_symlinks=False).st_mode):
                    message = f"{shown}: {printable(component)} is a symbolic link"
                    raise FileRefused(Problem.FORBIDDEN, message) from None
        if error.errno == errno.ENOENT:
            message = f"{shown}: there is no directory {printable(component)}"
            raise FileRefused(Problem.NOT_FOUND, message) from None
        raise refused(error, shown) from error
