"""Attempts to reach the raw share past the guard. They run as the agent's user.

An attempt that returns has reached the share; one that raises OSError has not. A directory on the
device of a guard does not count, since the view may be mounted over its own source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from errno import (
    EACCES,
    EBUSY,
    ECONNABORTED,
    EINVAL,
    ELOOP,
    ENODEV,
    ENOENT,
    ENOTCONN,
    ENOTDIR,
    EPERM,
    EROFS,
    ESRCH,
)

from gitguardfs.base.errors import os_error
from gitguardfs.linux.run_as import NoAnswer, preparing
from gitguardfs.linux.syscalls import MNT_DETACH, MS_BIND, MS_REC, mount, umount

ShareAttempt = Callable[[str, Sequence[int]], None]
"""An attempt; gets the directory, and the devices (st_dev) of the guards."""

REFUSED = frozenset(
    {EACCES, EPERM, EROFS}  # permissions
    | {ENOENT, ENOTDIR, ELOOP, ESRCH}  # nothing is there
    | {ENOTCONN, ECONNABORTED}  # a dead FUSE mount
    | {EINVAL, EBUSY, ENODEV}  # mount(2), umount(2): locked, busy, not in this kernel
)
"""Errnos that show that an attempt was refused. Any other says nothing."""

TARGETS = ("/mnt", "/media", "/srv", "/opt", "/home", "/tmp")


def check_refused(error: OSError) -> None:
    """Raise NoAnswer unless an error shows a refusal."""
    if error.errno not in REFUSED:
        raise NoAnswer(error.strerror or str(error)) from None


def by_path(path: str, guards: Sequence[int]) -> None:
    """List or enter the directory. A user who can enter a directory can open names that they know.

    Raises OSError if neither works, or if it is a guard's view.
    """
    refusal: OSError | None = None
    for use in (os.listdir, os.chdir):
        try:
            use(path)
        except OSError as error:
            check_refused(error)
            refusal = error
        else:
            if os.stat(path).st_dev in guards:
                raise os_error(EACCES)
            return
    assert refusal is not None
    raise refusal


def by_writing(path: str, guards: Sequence[int]) -> None:
    """Check that the user could make a file in the directory."""
    if os.stat(path).st_dev in guards or not os.access(path, os.W_OK | os.X_OK):
        raise os_error(EACCES)


def by_detaching(path: str, guards: Sequence[int]) -> None:
    """Unmount what is on top, then list or enter the directory."""
    umount(path, MNT_DETACH)
    by_path(path, guards)


def _by_binding(path: str, guards: Sequence[int], flags: int) -> None:
    parent, name = os.path.split(path)
    with preparing():
        target = next(
            target
            for target in (*TARGETS, "/")
            if os.path.isdir(target) and os.path.commonpath([target, path]) != target
        )
    mount(parent, target, flags=flags)
    by_path(os.path.join(target, name), guards)


def by_binding(path: str, guards: Sequence[int]) -> None:
    """Reach the share by a bind mount of its parent, without the mounts on top."""
    _by_binding(path, guards, MS_BIND)


def by_binding_all(path: str, guards: Sequence[int]) -> None:
    """Reach the share by a recursive bind mount of its parent."""
    _by_binding(path, guards, MS_BIND | MS_REC)


PLAIN: tuple[tuple[str, ShareAttempt], ...] = (
    ("by its path", by_path),
    ("by writing to it", by_writing),
)
IN_NAMESPACE: tuple[tuple[str, ShareAttempt], ...] = (
    ("by its path", by_path),
    ("by unmounting what covers it", by_detaching),
    ("by a bind mount", by_binding),
    ("by a recursive bind mount", by_binding_all),
)


def by_tag(tag: str, transport: str) -> None:
    """Mount the share a second time, by its tag."""
    data = "trans=virtio,version=9p2000.L" if transport == "9p" else ""
    with preparing():
        target = next(target for target in TARGETS if os.path.isdir(target))
    mount(tag, target, transport, data=data)
    umount(target, MNT_DETACH)
