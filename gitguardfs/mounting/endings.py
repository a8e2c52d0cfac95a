"""Ends a daemon whose source hangs, and says why a session ended without a signal from root."""

from __future__ import annotations

import logging
import os
from threading import Thread

from gitguardfs.base.constants import FUSE_DEVICE
from gitguardfs.base.errors import Exit
from gitguardfs.linux import descriptor_limit, mountinfo, safe_open, syscalls
from gitguardfs.mounting import preflight, seal
from gitguardfs.mounting.drain import close_device

DETACH_LIMIT = 2.0
"""Seconds for which a daemon that gives up waits for its unmounting, which may hang."""


def exit_at_once(mounted: mountinfo.MountInfo | None, sealed: seal.Seal | None) -> None:
    """End the process at once, since the main thread may wait for the source for ever.

    Processes that wait for the view get ENOTCONN. The next daemon can take over the seal.
    """
    descriptor_limit.use_all()
    close_device(FUSE_DEVICE)
    if sealed is not None:
        sealed.keep()  # else a stuck thread keeps the process, and so the lock
    if mounted is not None:
        # On a thread: users can make the path of the mount point hang as well.
        detaching = Thread(target=_detach, args=(mounted,), daemon=True)
        detaching.start()
        detaching.join(DETACH_LIMIT)
    logging.shutdown()
    os._exit(Exit.SYSTEM)


def _detach(mounted: mountinfo.MountInfo) -> None:
    now = mountinfo.current(mounted)
    if now is not None:
        mountinfo.detach(now, syscalls.MNT_FORCE)  # the keeper may still have the connection


def why_ended(
    mounted: mountinfo.MountInfo | None, paths: preflight.MountPaths, is_sealed: bool
) -> str:
    """Return why the session ended without a signal from root; "" if it is no fault.

    A user unmounts a view of their own by fusermount3, without a signal; so may root, if no seal
    depends on it. A user who owns the mount point of root's view can unmount that as well: in a
    mount namespace of their own, where it is no mount point, they remove or replace the directory.
    The kernel then unmounts the view. fusermount3 goes by paths, too.
    """
    if mounted is None:
        return ""
    if mountinfo.current(mounted) is not None:
        return "the kernel ended the connection; a dead mount is left"
    try:
        is_gone = safe_open.path_of(paths.mountpoint_fd).endswith(" (deleted)")
        is_gone = is_gone or os.fstat(paths.mountpoint_fd).st_nlink == 0
    except OSError as error:
        return f"the mount point's own file system has ended: {error.strerror}"
    if is_gone:
        return "the mount point was removed or replaced, so the kernel unmounted the view"
    return "the view was unmounted, but not by root's umount helper" if is_sealed else ""
