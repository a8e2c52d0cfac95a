"""Opens and reads files of the share, by descriptors that never leave it.

No symlink is followed, and nothing but a regular file is read.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from stat import S_ISDIR, S_ISLNK, S_ISREG

from gitguardfs.base.errors import os_error, shown
from gitguardfs.linux import syscalls

DOTGIT = b".git"
MAX_TEXT = 1 << 20
"""Bytes of a config, a gitfile or another small file: real ones have a few thousand."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
OUT = (errno.EXDEV, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Errnos for a path that leads out of the share, through a symlink, or nowhere."""
_MAX_PATH = 4096
"""Bytes of a path that a system call takes."""
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
            raise Unusable(f"has parts at {cut(path)}, a path of the host")
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

    def open_git_dir(self) -> tuple[bytes, int]:
        """Open the work tree's git directory, to which its ``.git`` may lead.

        Returns its path and a descriptor. Raises Unusable, OSError.
        """
        st = stat_of(self._work_tree, DOTGIT)
        if st is None:
            raise os_error(errno.ENOENT)
        if S_ISDIR(st.st_mode):
            fd = open_path(self._work_tree, DOTGIT, DIRECTORY)
            self._stack.callback(os.close, fd)
            return self.below(self.path, DOTGIT), fd
        if S_ISLNK(st.st_mode):
            target = os.readlink(DOTGIT, dir_fd=self._work_tree)
            if target.startswith(b"/"):
                raise Unusable(
                    "is a symlink with an absolute path, which means nothing in this share. If it"
                    " leads into the share, make it a relative one: ln -sfn ../PATH .git"
                )
            path = self.below(self.path, target)
            return path, self.open_directory(path, "its .git is a symlink")
        text = read(self._work_tree, DOTGIT) or b""
        if not text.startswith(b"gitdir:"):
            raise Unusable("is a file that leads nowhere")
        target = line_of(text.removeprefix(b"gitdir:").lstrip(b" "))
        if not target.startswith(b"/"):
            path = self.below(self.path, target)
            return path, self.open_directory(path, f"leads to {cut(target)}")
        found = self._open_worktree(target)
        if found is None:
            raise Unusable(
                f"leads to {cut(target)}, which is not known to be in this share. If it is, let"
                " .git have a relative path: gitdir: ../PATH"
            )
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the work tree is the whole share."""
        return not self._names

    def open_outside(self, directory: str) -> tuple[Share, bytes, int]:
        """Open the work tree's git directory, which ``directory`` is, or holds for a worktree.

        Returns a share of that directory, in which nothing else is, and then the git directory's
        path in it and a descriptor. Raises Unusable, OSError.
        """
        path = b"."
        with suppress(Unusable):  # a symlink, which leads to the directory itself
            names = line_of(read(self._work_tree, DOTGIT) or b"").split(b"/")
            if names[-2:-1] == [b"worktrees"]:
                path = b"/".join(names[-2:])
        try:
            root = os.open(directory, DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unusable(f"is not at {shown(directory)}: {error.strerror}") from None
        self._stack.callback(os.close, root)
        outside = Share(self._stack, root, root, b".")
        return outside, path, outside.open_directory(path, f"{shown(directory)} does not have it")

    def _open_worktree(self, target: bytes) -> tuple[bytes, int] | None:
        """Open the git directory of a worktree, whose absolute path ``target`` is the host's.

        The host's path of the share is not known here. It is found by what both ends say: the git
        directory of a worktree names the worktree's ``.git`` in the file ``gitdir``.
        """
        for host, path, fd in self._ends(target):
            back = b"/".join((host, *self._names, DOTGIT))
            is_git_dir = is_file(fd, b"HEAD") and is_file(fd, b"commondir")
            if is_git_dir and line_of(read(fd, b"gitdir") or b"") == back:
                return path, fd
        return None

    def open_alternate(self, objects: bytes, line: bytes) -> tuple[bytes, int]:
        """Open the object directory that a line of ``info/alternates`` in ``objects`` names.

        Returns its path and a descriptor. An absolute path is the host's: the longest end of it at
        which the share has object directories is used. A wrong one does no harm: objects are named
        by their hashes. Raises Unusable, OSError.
        """
        why = (
            f"borrows objects from {cut(line)}, which is not in this share. On the host, this"
            " brings them in: git repack -a -d && rm .git/objects/info/alternates"
        )
        if not line.startswith(b"/"):
            path = self.below(objects, line)
            return path, open_directory(self._stack, self.root(), path, why)
        for _, path, fd in self._ends(line):
            git_dir = open_directory(self._stack, self.root(), os.path.dirname(path) or b".", why)
            if os.path.basename(path) == b"objects" and is_guarded(git_dir):
                return path, fd
        raise Unusable(why)

    def _ends(self, target: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield the directories of the share that an absolute path of the host's can mean.

        For each the host's path of the share, the path in the share, and a descriptor.
        """
        names = target[:_MAX_PATH].strip(b"/").split(b"/")
        for start in range(len(names) + 1):
            path = b"/".join(names[start:])
            host = b"/" + b"/".join(names[:start]) if start else b""
            try:
                fd = open_directory(self._stack, self.root(), path or b".", "")
            except Unusable:
                continue
            yield host, path, fd


def is_guarded(git_dir: int) -> bool:
    """Return whether the guard keeps the agent from making a directory like ``git_dir``.

    The agent could make the rest: a HEAD, a packed-refs and alternates to what it may not read.
    """
    refs = stat_of(git_dir, b"refs")
    has_refs = refs is not None and S_ISDIR(refs.st_mode)
    return is_file(git_dir, b"HEAD") and (has_refs or is_file(git_dir, b"commondir"))


def read(fd: int, path: bytes, limit: int = MAX_TEXT, crosses_mounts: bool = True) -> bytes | None:
    """Return the content of a regular file below ``fd``; None if there is no such file.

    Raises OSError; Unusable if it is no regular file, or longer than ``limit`` bytes.
    """
    opened = open_file(fd, path, crosses_mounts)
    if opened is None:
        return None
    try:
        content = content_of(opened, limit + 1)
    finally:
        os.close(opened)
    if len(content) > limit:
        raise Unusable(f"has a {cut(path)} of more than {limit} bytes")
    return content


def open_file(fd: int, path: bytes, crosses_mounts: bool = True) -> int | None:
    """Open a regular file below ``fd``; None if there is none. Raises Unusable, OSError.

    What is opened for reading is the object that was looked at: a FIFO or a device never is.
    """
    try:
        found = open_path(fd, path, os.O_PATH, crosses_mounts)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno in OUT:
            raise Unusable(f"has a symlink at {cut(path)}") from None
        raise
    try:
        if not S_ISREG(os.fstat(found).st_mode):
            raise Unusable(f"has at {cut(path)} something that is not a file")
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


def open_path(fd: int, path: bytes, flags: int, crosses_mounts: bool = True) -> int:
    """Return a descriptor of a path below ``fd``.

    Raises OSError; ESTALE if the host goes on moving directories.
    """
    for _ in range(_MOVES):
        try:
            return syscalls.open_beneath(fd, path, flags, crosses_mounts=crosses_mounts)
        except BlockingIOError:  # a directory was moved meanwhile
            continue
    raise os_error(errno.ESTALE)


def stat_of(fd: int, name: bytes) -> os.stat_result | None:
    """Return the stat of an entry, a symlink's own; None if there is none. Raises OSError."""
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


def cut(text: bytes) -> str:
    """Return a path or value of the host's as messages show it."""
    return shown(text[:200].strip())
