"""Mounts the view on the directory that was checked, and unmounts exactly that mount."""

from __future__ import annotations

import logging
import os
import shlex

from gitguardfs.base.constants import FSTYPE, SUBTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.linux import mountinfo, safe_open
from gitguardfs.mounting import closed_places, lid, preflight, utab
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.sessions import base

log = logging.getLogger(__name__)


def mount(
    session: base.Session,
    options: MountOptions,
    paths: preflight.MountPaths,
    closed: closed_places.ClosedPlaces,
) -> mountinfo.MountInfo | None:
    """Mount. As root, mount on the very directory of ``closed``, with a lid; return that mount.

    For other users, fusermount3 mounts on the path with their rights, and the result is None.
    Raises UserError.
    """
    before = {m.mnt_id for m in mountinfo.listed()}
    is_root = os.geteuid() == 0
    path = safe_open.path_of(closed.target_fd)
    parent = mountinfo.number_of(closed.target_fd)

    def mount_on(directory: int) -> None:
        session.mount(path, directory, _fuse_options(options, paths))

    try:
        if not is_root or paths.covers_itself or closed.lid is not None:
            mount_on(closed.target_fd)
        else:
            number = lid.mount_below(mount_on, closed.target_fd)
            closed.lid = next((m for m in mountinfo.listed() if m.mnt_id == number), None)
    except OSError as error:
        raise UserError(
            f"cannot close {options.mountpoint}: {error.strerror}",
            "this needs mount namespaces: CAP_SYS_ADMIN and CAP_SYS_CHROOT",
            Exit.MOUNT,
        ) from None
    except base.MountFailed as error:
        raise UserError(
            f"cannot mount at {options.mountpoint}: {error}",
            "the reason is in the line above, if the kernel gave one",
            Exit.MOUNT,
        ) from None
    if not is_root:
        return None
    # A new mount lies on top of all that is there, also of a mount that a user has just made.
    put = closed.lid if closed.lid is not None and closed.lid.mnt_id not in before else None
    mounted = mountinfo.on_top_of(parent if put is None else put.mnt_id, path)
    is_ours = mounted is not None and mounted.mnt_id not in before and _is_ours(mounted)
    if not is_ours or (put is not None and put.parent_id != parent):
        session.close()
        for found in reversed(mountinfo.listed()):
            if (
                found.mnt_id not in before
                and found.mount_point == os.fsencode(path)
                and (_is_ours(found) or lid.is_lid(found))
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
    """Close the session and unmount root's view, wherever the mount point was moved to.

    A mount whose session ended ``by_itself`` is left, dead. No process is started: in it, the
    kernel would close the files of the source, and wait for a server that does not answer.
    """
    if mounted is None:
        return
    now = None if by_itself else mountinfo.current(mounted)
    if now is not None and not mountinfo.detach(now):
        log.error("%s leads to another mount now; a dead mount is left", now.path)
    session.close()


def forget(session: base.Session, mounted: mountinfo.MountInfo | None) -> None:
    """Let a process unmount a user's view, or remove root's from /run/mount/utab.

    To be called when no file of the source is open any more.
    """
    if mounted is None:
        session.close(unmount=True)
    elif mountinfo.current(mounted) is None:
        utab.remove(mounted)


def _fuse_options(options: MountOptions, paths: preflight.MountPaths) -> set[str]:
    # The session adds nosuid, and nodev unless dev is given.
    found = {
        "default_permissions",
        f"subtype={SUBTYPE}",
        f"fsname={options.fsname or paths.source}",
        *options.kernel,
    }
    if os.geteuid() == 0 and options.allow_other:
        found.add("allow_other")
    if options.read_only:
        found.add("ro")
    if options.debug:
        found.add("debug")
    return found
