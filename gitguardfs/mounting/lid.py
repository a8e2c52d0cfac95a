"""The lid: an empty, unreadable mount on a view's mount point, below the view. Root's views only.

Without a lid, the directory below would be seen whenever the view is gone: a daemon was killed, or
is restarted. What is written there then is hidden when the view is back. So the lid is put on
before the view, and the next daemon takes over the lid of one that ended. It comes off when root
unmounts the view, as a seal does. A view over its own source has a seal in this place.

A lid is no lock: whoever mounts a view there uses the lid that is there.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from gitguardfs.errors import os_error
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import covers

NAME = "gitguardfs-lid"


def is_lid(mount: MountInfo) -> bool:
    """Return whether a mount is a lid, with or without a view on it."""
    return mount.fstype == covers.FSTYPE and mount.source == NAME


def lid_of(fd: int) -> MountInfo | None:
    """Return the lid whose root ``fd`` is; None if ``fd`` is in another mount."""
    return covers.top_of(fd, is_lid)


def put_on(directory: int) -> int:
    """Put a lid on a directory; return its root's descriptor, or ``directory`` if that is one.

    That descriptor must not be kept: if the mount point is removed in another namespace, the kernel
    keeps the view on the lid for as long as the lid is open, and the daemon would not end. Raises
    OSError: ESTALE if another mount is between lid and directory; the lid is then removed.
    """
    if lid_of(directory) is not None:
        return directory
    root = covers.mount(NAME, directory)
    try:
        if covers.listed(mountinfo.number_of(root)).parent_id != mountinfo.number_of(directory):
            raise os_error(errno.ESTALE)
    except BaseException:
        with suppress(OSError):
            covers.unmount(root)
        os.close(root)
        raise
    return root


def remove(mount: MountInfo) -> None:
    """Remove this lid, unless it is gone or a new view is on it. Raises OSError."""
    found = mountinfo.current(mount)
    if found is not None:
        mountinfo.detach(found)


def is_at(path: str) -> bool:
    """Return whether a lid is mounted at ``path``, with or without a view on it."""
    return any(is_lid(mount) and mount.path == path for mount in mountinfo.listed())


def remove_at(path: str) -> None:
    """Remove the lid at ``path`` if there is one and no view is on it. Raises OSError."""
    top = mountinfo.top_at(path)
    if top is not None and is_lid(top) and not mountinfo.detach(top):
        raise os_error(errno.ESTALE)
