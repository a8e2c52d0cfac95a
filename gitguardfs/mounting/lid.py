"""The lid: an empty, unreadable mount on a view's mount point, below the view. Root's views only.

Without a lid, the directory below would be seen whenever the view is gone: a daemon was killed, or
is restarted. What is written there then is hidden when the view is back. So lid and view appear
together, and the next daemon takes over the lid of one that ended. It comes off when the view is
unmounted; below a view with a seal only when the seal does. A view over its own source has a seal
in this place.

A lid is no lock: whoever mounts a view there uses the lid that is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from gitguardfs.base.errors import os_error
from gitguardfs.linux import mountinfo, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import covers

NAME = "gitguardfs-lid"


def is_lid(mount: MountInfo) -> bool:
    """Return whether a mount is a lid, with or without a view on it."""
    return mount.fstype == covers.FSTYPE and mount.source == NAME


def lid_of(fd: int) -> MountInfo | None:
    """Return the lid whose root ``fd`` is; None if ``fd`` is in another mount."""
    return covers.top_of(fd, is_lid)


def mount_below(view: Callable[[int], None], directory: int) -> int:
    """Let ``view`` mount a view on a new lid; both appear on ``directory`` at once.

    Returns the lid's mnt_id. The caller checks what the lid lies on: that may be a mount on top of
    ``directory``. To be called before any thread is started. Raises OSError, and what ``view``
    raises, with nothing mounted.
    """
    own_root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with covers.unseen_mounts():
            below = os.open("/", os.O_PATH | os.O_CLOEXEC)  # any directory
            try:
                root = covers.mount(NAME, below)
            finally:
                os.close(below)
            try:
                # The device must be opened in the namespace that stays: it is known by its path.
                covers.enter_root(own_root)
                view(root)
                tree = syscalls.clone_tree(b"/proc/self/fd/%d" % root)
            finally:
                os.close(root)
    finally:
        os.close(own_root)
    # Neither may be kept: if the mount point is removed in another namespace, the kernel keeps the
    # view on the lid for as long as the lid is open, and the daemon would not end.
    try:
        syscalls.attach_tree(tree, directory)
        return mountinfo.number_of(tree)
    finally:
        os.close(tree)


def remove(mount: MountInfo) -> None:
    """Remove this lid, unless it is gone or a new view is on it. Raises OSError."""
    found = mountinfo.current(mount)
    try:
        if found is not None:
            mountinfo.detach(found)
    except OSError:
        if mountinfo.current(mount) is not None:  # else another process has just removed it
            raise


def is_at(path: str) -> bool:
    """Return whether a lid is mounted at ``path``, with or without a view on it."""
    return any(is_lid(mount) and mount.path == path for mount in mountinfo.listed())


def remove_at(path: str) -> None:
    """Remove the lid at ``path`` if there is one and no view is on it. Raises OSError."""
    top = mountinfo.top_at(path)
    if top is not None and is_lid(top) and not mountinfo.detach(top):
        raise os_error(errno.ESTALE)
