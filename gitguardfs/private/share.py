"""Opens and reads files of the share, by descriptors that never leave it.

No symlink is followed, and nothing but a regular file is read.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack
from stat import S_ISREG

from gitguardfs.errors import os_error, shown
from gitguardfs.linux import syscalls

DOTGIT = b".git"
MAX_TEXT = 1 << 20
"""Bytes of a config, a gitfile or another small file: real ones have a few thousand."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
OUT = (errno.EXDEV, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""What opening a path says that leads out of the share, through a symlink, or nowhere."""
_MOVES = 5
"""How often an open is tried while the host moves directories."""


class Unusable(Exception):  # noqa: N818  # what is found
    """The host's repository cannot be copied; the text ends a sentence that says why."""


class Share:
    """The share around a work tree: paths from its root, which nothing leaves."""

    def __init__(self, stack: ExitStack, root: int, work_tree: int, path: bytes) -> None:
        """Take the descriptors of the share and of the work tree, which is at ``path`` in it.

        ``stack`` closes what is opened.
        """
        self._stack = stack
        self._root = root
        self._work_tree = work_tree
        self._names = [] if path == b"." else path.split(b"/")
        self._is_checked = False
        self.path = b"/".join(self._names)

    def below(self, directory: bytes, path: bytes) -> bytes:
        """Return ``path``, which stands in ``directory``, as a path from the share's root.

        ``..`` is taken out of it: on its way up a path would cross to the seal, which lies on the
        root. Raises Unusable for an absolute one: that is the host's, and may be anything here.
        """
        if path.startswith(b"/") or re.match(rb"[A-Za-z]:[\\/]", path):
            raise Unusable(f"has parts at {told(path)}, a path of the host")
        return os.path.normpath(os.path.join(directory, path))

    def root(self) -> int:
        """Return a descriptor of the share's root. Raises OSError, ESTALE for a moved work tree."""
        if not self._is_checked:
            try:
                found = open_path(self._root, self.path or b".", os.O_PATH | os.O_DIRECTORY)
            except OSError as error:
                raise os_error(errno.ESTALE if error.errno in OUT else error.errno or 0) from None
            self._stack.callback(os.close, found)
            if not os.path.samestat(os.fstat(found), os.fstat(self._work_tree)):
                raise os_error(errno.ESTALE)
            self._is_checked = True
        return self._root

    def open_directory(self, path: bytes, otherwise: str) -> int:
        """Return a descriptor of a directory in the share. Raises Unusable, OSError."""
        why = f"is not in this share: {otherwise}"
        return open_directory(self._stack, self.root(), path, why)

    def open_worktree(self, target: bytes) -> tuple[bytes, int] | None:
        """Open the git directory of a worktree, whose absolute path ``target`` is the host's.

        The host's path of the share is not known here. It is found by what both ends say: the git
        directory of a worktree names the worktree's ``.git`` in the file ``gitdir``.
        """
        root = self.root()
        names = target.strip(b"/").split(b"/")
        for start in range(len(names) + 1):
            path = b"/".join(names[start:])
            host = b"/" + b"/".join(names[:start]) if start else b""
            try:
                fd = open_directory(self._stack, root, path or b".", "")
            except Unusable:
                continue
            back = b"/".join((host, *self._names, DOTGIT))
            is_git_dir = is_file(fd, b"HEAD") and is_file(fd, b"commondir")
            if is_git_dir and line_of(read(fd, b"gitdir") or b"") == back:
                return path, fd
        return None


def read(fd: int, path: bytes, limit: int = MAX_TEXT) -> bytes | None:
    """Return the content of a regular file below ``fd``; None if there is no such file.

    Raises Unusable for anything else and for a longer file, OSError.
    """
    opened = open_file(fd, path)
    if opened is None:
        return None
    try:
        content = content_of(opened, limit + 1)
    finally:
        os.close(opened)
    if len(content) > limit:
        raise Unusable(f"has a {told(path)} of more than {limit} bytes")
    return content


def open_file(fd: int, path: bytes) -> int | None:
    """Open a regular file below ``fd``; None if there is none. Raises Unusable, OSError.

    What is opened for reading is the object that was looked at: a FIFO or a device never is.
    """
    try:
        found = open_path(fd, path, os.O_PATH)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno in OUT:
            raise Unusable(f"has a symlink at {told(path)}") from None
        raise
    try:
        if not S_ISREG(os.fstat(found).st_mode):
            raise Unusable(f"has at {told(path)} something that is not a file")
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)


def open_directory(stack: ExitStack, fd: int, path: bytes, otherwise: str) -> int:
    """Return a descriptor of a directory below ``fd``, which ``stack`` closes.

    Raises Unusable, with the text ``otherwise``, if the path leads nowhere; OSError.
    """
    try:
        found = open_path(fd, path, DIRECTORY)
    except OSError as error:
        if error.errno in OUT:
            raise Unusable(otherwise) from None
        raise
    stack.callback(os.close, found)
    return found


def is_file(fd: int, name: bytes) -> bool:
    """Return whether an entry is a regular file. Raises OSError."""
    st = stat_of(fd, name)
    return st is not None and S_ISREG(st.st_mode)


def open_path(fd: int, path: bytes, flags: int) -> int:
    """Return a descriptor of a path below ``fd``.

    Raises OSError; ESTALE if the host goes on moving directories.
    """
    for _ in range(_MOVES):
        try:
            return syscalls.open_beneath(fd, path, flags)
        except BlockingIOError:  # a directory was moved meanwhile
            continue
    raise os_error(errno.ESTALE)


def stat_of(fd: int, name: bytes) -> os.stat_result | None:
    """Return what lstat(2) says of an entry; None if there is none. Raises OSError."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def names_in(fd: int) -> list[bytes]:
    """Return the names in a directory, sorted. Raises OSError."""
    return sorted(map(os.fsencode, os.listdir(fd)))


def content_of(fd: int, limit: int) -> bytes:
    """Return the content of an open file, ``limit`` bytes at most. Raises OSError."""
    content = bytearray()
    while len(content) < limit:
        chunk = os.read(fd, min(1 << 20, limit - len(content)))
        if not chunk:
            break
        content += chunk
    return bytes(content)


def line_of(text: bytes) -> bytes:
    """Return a text of one line without its end."""
    return text.rstrip(b"\r\n").partition(b"\0")[0]


def told(text: bytes) -> str:
    """Return a path or value of the host's as messages show it."""
    return shown(text[:200].strip())
