"""The ways to the raw share beside the mount. Run as the user; each returns or raises OSError.

A way is open if it returns. What is found is compared by device with what a guard serves: the
view itself, mounted over its own source, is no way to the share.
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

from gitguardfs.doctor.run_as import NoAnswer, preparing
from gitguardfs.errors import os_error
from gitguardfs.linux.raw_syscalls import mount, umount
from gitguardfs.linux.syscalls import MNT_DETACH, MS_BIND, MS_REC

Way = Callable[[str, Sequence[int]], None]
"""Gets the directory, and the devices of the guards."""

REFUSED = frozenset(
    {EACCES, EPERM, EROFS}  # by whoever guards it
    | {ENOENT, ENOTDIR, ELOOP, ESRCH}  # there is nothing
    | {ENOTCONN, ECONNABORTED}  # a dead FUSE mount
    | {EINVAL, EBUSY, ENODEV}  # mount(2), umount(2): locked, taken, not in this kernel
)
"""The errnos that show a way to be closed. After any other nothing is known."""

SPOTS = ("/mnt", "/media", "/srv", "/opt", "/home", "/tmp")


def check_refused(error: OSError) -> None:
    """Raise NoAnswer unless an error shows that a way is closed."""
    if error.errno not in REFUSED:
        raise NoAnswer(error.strerror or str(error)) from None


def _look(path: str, guards: Sequence[int]) -> None:
    """Return if ``path`` can be listed, or entered, and is not a guard's view."""
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


def by_path(path: str, guards: Sequence[int]) -> None:
    """List it, or enter it: whoever can enter it reaches what it knows by name."""
    _look(path, guards)


def by_writing(path: str, guards: Sequence[int]) -> None:
    """Whether something could be made in it."""
    if os.stat(path).st_dev in guards or not os.access(path, os.W_OK | os.X_OK):
        raise os_error(EACCES)


def by_detaching(path: str, guards: Sequence[int]) -> None:
    """Take off what is mounted on top, then look."""
    umount(path, MNT_DETACH)
    _look(path, guards)


def _by_binding(path: str, guards: Sequence[int], flags: int) -> None:
    parent, name = os.path.split(path)
    with preparing():
        spot = next(
            spot
            for spot in (*SPOTS, "/")
            if os.path.isdir(spot) and os.path.commonpath([spot, path]) != spot
        )
    mount(parent, spot, flags=flags)
    _look(os.path.join(spot, name), guards)


def by_binding(path: str, guards: Sequence[int]) -> None:
    """A bind mount of its parent, without what is mounted on top."""
    _by_binding(path, guards, MS_BIND)


def by_binding_all(path: str, guards: Sequence[int]) -> None:
    """The same with all mounts in it."""
    _by_binding(path, guards, MS_BIND | MS_REC)


PLAIN: tuple[tuple[str, Way], ...] = (
    ("by its path", by_path),
    ("by writing to it", by_writing),
)
IN_NAMESPACE: tuple[tuple[str, Way], ...] = (
    ("by its path", by_path),
    ("by unmounting what covers it", by_detaching),
    ("by a bind mount", by_binding),
    ("by a recursive bind mount", by_binding_all),
)


def by_process(pid: int, link: str) -> None:
    """List what a link in /proc/PID leads to, or the descriptors there."""
    os.listdir(f"/proc/{pid}/{link}")


LINKS = ("root", "cwd", "fd")


def by_tag(tag: str, kind: str) -> None:
    """Mount the share once more."""
    data = "trans=virtio,version=9p2000.L" if kind == "9p" else ""
    with preparing():
        spot = next(spot for spot in SPOTS if os.path.isdir(spot))
    mount(tag, spot, kind, data=data)
    umount(spot, MNT_DETACH)
