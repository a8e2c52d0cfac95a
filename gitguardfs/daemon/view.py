"""Mounts the view on the directory that was checked, and unmounts exactly that mount."""

from __future__ import annotations

import logging
import os
import shlex

from gitguardfs.constants import FSTYPE, SUBTYPE
from gitguardfs.errors import Exit, UserError
from gitguardfs.linux import mountinfo, safe_open
from gitguardfs.mounting import preflight, utab
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.sessions import base

log = logging.getLogger(__name__)


def mount(
    session: base.Session, options: MountOptions, paths: preflight.MountPaths, target_fd: int
) -> mountinfo.MountInfo | None:
    """Mount. As root, mount on the very directory behind ``target_fd``, and return that mount.

    For a user fusermount3 mounts, by the path and with the user's rights; returns None then.
    Raises UserError.
    """
    before = {m.mnt_id for m in mountinfo.listed()}
    try:
        session.mount(target_fd, _fuse_options(options, paths))
    except base.MountFailed as error:
        raise UserError(
            f"cannot mount at {options.mountpoint}: {error}",
            "the reason is in the line above, if the kernel gave one",
            Exit.MOUNT,
        ) from None
    if os.geteuid() != 0:
        return None
    # A new mount lies on top of all that is there, also of a mount that a user has just made.
    path = safe_open.path_of(target_fd)
    mounted = mountinfo.on_top_of(mountinfo.number_of(target_fd), path)
    if mounted is None or mounted.mnt_id in before or not _is_ours(mounted):
        session.close()
        for found in mountinfo.listed():
            if (
                found.mnt_id not in before
                and found.mount_point == os.fsencode(path)
                and _is_ours(found)
            ):
                mountinfo.detach(found)
        raise UserError(
            f"something else was mounted at {options.mountpoint} meanwhile",
            f"see findmnt {shlex.quote(path)}",
            Exit.MOUNT,
        )
    return mounted


def _is_ours(found: mountinfo.MountInfo) -> bool:
    return found.fstype == FSTYPE and found.owner == os.geteuid()


def unmount(session: base.Session, mounted: mountinfo.MountInfo | None, by_itself: bool) -> None:
    """Close the session and unmount, wherever the mount point was moved to.

    A mount whose session ended ``by_itself`` is left, dead.
    """
    if mounted is None:
        session.close(unmount=os.geteuid() != 0)
        return
    now = None if by_itself else mountinfo.current(mounted)
    if now is not None and not mountinfo.detach(now):
        log.error("%s leads to another mount now; a dead mount is left", now.path)
    session.close()
    if mountinfo.current(mounted) is None:
        utab.remove(mounted)


def _fuse_options(options: MountOptions, paths: preflight.MountPaths) -> set[str]:
    # libfuse adds nosuid and nodev, unless suid or dev are given.
    found = {
        "default_permissions",
        f"subtype={SUBTYPE}",
        f"fsname={_fsname(options.fsname or paths.source)}",
        *options.kernel,
    }
    if os.geteuid() == 0 and options.allow_other:
        found.add("allow_other")
    if options.read_only:
        found.add("ro")
    if options.debug:
        found.add("debug")
    return found


def _fsname(name: str) -> str:
    # libfuse splits at commas, and pyfuse3 passes ASCII only.
    if not name.isascii() or not name.isprintable():
        return SUBTYPE
    return name.replace("\\", "\\\\").replace(",", "\\,")
