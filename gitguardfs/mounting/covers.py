"""Mounts that close a directory: seals on sources (``seal``), lids on mount points (``lid``).

Each is an empty, read-only ramfs of mode 000. Only root can mount and unmount one, and its name in
mountinfo says which of the two it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gitguardfs.base.errors import os_error
from gitguardfs.linux import mountinfo, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo

FSTYPE = "ramfs"
"""Not tmpfs: systemd orders a mount with a tmpfs on it after swap.target. Once the cover is off,
systemd would never finish stopping that target, and the machine would not shut down."""
_ATTRIBUTES = (
    syscalls.MOUNT_ATTR_RDONLY
    | syscalls.MOUNT_ATTR_NOSUID
    | syscalls.MOUNT_ATTR_NODEV
    | syscalls.MOUNT_ATTR_NOEXEC
)
_OPTIONS = {"mode": "000", "ro": ""}
READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def mount(
    name: str,
    directory: int,
    *,
    beneath: bool = False,
    lock: Callable[[int], None] | None = None,
) -> int:
    """Mount a cover on a directory; return a descriptor of its root. Raises OSError.

    ``lock`` gets that descriptor before the cover can be seen. With ``beneath``, ``directory`` is
    the root of a mount that the cover is put under.
    """
    tree = syscalls.new_mount(FSTYPE, name, _ATTRIBUTES, _OPTIONS)
    try:
        root = os.open(f"/proc/self/fd/{tree}", READ)
        try:
            if lock is not None:
                lock(root)
            syscalls.attach_tree(tree, directory, beneath)
        except BaseException:
            os.close(root)
            raise
    finally:
        os.close(tree)
    return root


def unmount(root: int) -> None:
    """Unmount the cover with this root, if nothing lies on it. Raises OSError, EBUSY if so."""
    # umount2(2) would unmount the mount on top instead.
    if is_covered(mountinfo.number_of(root)):
        raise os_error(errno.EBUSY)
    syscalls.umount(b"/proc/self/fd/%d" % root, syscalls.MNT_DETACH)


def is_covered(number: int) -> bool:
    """Return whether a mount lies on the mount with this mnt_id."""
    return any(mount.parent_id == number for mount in mountinfo.listed())


def listed(number: int) -> MountInfo:
    """Return a mount by its mnt_id. Raises OSError(ESTALE) if it is gone."""
    found = next((m for m in mountinfo.listed() if m.mnt_id == number), None)
    if found is None:
        raise os_error(errno.ESTALE)
    return found


def top_of(fd: int, is_cover: Callable[[MountInfo], bool]) -> MountInfo | None:
    """Return the cover whose root ``fd`` is; None if ``fd`` is in another mount."""
    top = next(iter(mountinfo.stack_of(fd)), None)
    return top if top is not None and is_cover(top) else None


def open_top(path: str) -> int:
    """Return an O_PATH descriptor of the mount on top of ``path``, without a request to it."""
    directory, name = os.path.split(path.rstrip("/"))
    parent = safe_open.open_directory(directory or ".", os.geteuid() == 0)
    try:
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)


def open_covered(path: str, root: int, is_cover: Callable[[MountInfo], bool]) -> int:
    """Return an O_PATH descriptor of the directory below the cover with this root at ``path``.

    The cover stays on: a process that opened a raw share without it could keep that. The cover is
    unmounted only in a new mount namespace that no other process sees, and the mounts below are
    copied from there. Must be called before any thread is started. Raises OSError: ESTALE if
    another directory is at ``path`` by now.
    """
    with unseen_mounts():
        return _copy_covered(path, os.fstat(root), is_cover)


@contextmanager
def unseen_mounts() -> Iterator[None]:
    """Move this process into a new mount namespace, which no other process sees, for the body.

    The working directory is then the root directory. Must be called before any thread is started.
    """
    own_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    own_root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            syscalls.unshare_mounts()
            yield
        finally:
            syscalls.enter_mounts(own_namespace)
            enter_root(own_root)  # setns(2) has undone a chroot(2)
    finally:
        os.close(own_root)
        os.close(own_namespace)


def enter_root(directory: int) -> None:
    """Make a directory, of any mount namespace, this process's root and working directory."""
    os.fchdir(directory)
    os.chroot(".")


def _copy_covered(
    path: str, expected: os.stat_result, is_cover: Callable[[MountInfo], bool]
) -> int:
    while True:
        fd = safe_open.open_directory(path, True)
        try:
            cover = top_of(fd, is_cover)
            if cover is None or not os.path.samestat(os.fstat(fd), expected):
                raise os_error(errno.ESTALE)
            syscalls.umount(b"/proc/self/fd/%d" % fd, syscalls.MNT_DETACH)
        finally:
            os.close(fd)
        below = open_top(path)
        if mountinfo.number_of(below) != cover.parent_id:
            os.close(below)
            raise os_error(errno.ESTALE)
        if top_of(below, is_cover) is None:
            break
        expected = os.fstat(below)
        os.close(below)
    try:
        return syscalls.clone_tree(b"/proc/self/fd/%d" % below)
    finally:
        os.close(below)
