"""Attempts to unmount, in a mount namespace of the user, the mounts that cover the raw share there.

A mount that was copied into a less privileged namespace together with the mount below it is
locked. A seal that propagates later, into a namespace older than the seal, is not locked
(mount_namespaces(7)): root of that namespace can unmount it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from gitguardfs.base.paths import is_inside
from gitguardfs.doctor import other_mounts, share_attempts
from gitguardfs.doctor.context import Table
from gitguardfs.linux import mountinfo, processes, run_as, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.namespaces import NS_GET_USERNS, NamespaceId, mounted_namespace
from gitguardfs.linux.run_as import SetupFailed, User, preparing


def unmount_covers(
    path: str,
    identity: NamespaceId,
    user: User,
    table: Table,
    sources: Collection[str],
    guards: Sequence[int],
) -> tuple[list[str], list[str]]:
    """Return where ``user`` can reach ``sources`` of ``table`` in the namespace at ``path``.

    Run it as root in a child process. The child switches to the user and enters the namespace with
    the user's rights. It works in a private copy, so that the namespace itself is not changed.
    Returns the paths, and the numbers of mount namespaces that are mounted in this one; both are
    empty if the user may not enter it. Raises FileNotFoundError if the namespace is gone,
    SetupFailed if ``path`` leads to another one.
    """
    space = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    st = os.fstat(space)
    if (st.st_dev, st.st_ino) != identity:
        raise SetupFailed(f"{path} leads elsewhere")
    try:
        owner = fcntl.ioctl(space, NS_GET_USERNS)
    except PermissionError:
        return [], []  # its user namespace is an ancestor of ours
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    own = os.stat("/proc/self/ns/user")
    with preparing():
        run_as.switch_user(user)
    if os.path.samestat(os.fstat(owner), own):
        return [], []  # only root may unmount there
    try:
        syscalls.enter_user_namespace(owner)
    except PermissionError:
        return [], []  # not a user namespace of this user
    with preparing():
        syscalls.enter_mounts(space)
        syscalls.unshare_mounts()
        here = _read_table(proc)
    kept = {name for seen in here if (name := mounted_namespace(seen)) is not None}
    return sorted(set(_uncovered(proc, here, table, sources, guards))), sorted(kept)


def _read_table(proc: int) -> Table:
    # By our own descriptor of /proc: the namespace may have none, or another one.
    return tuple(mountinfo.listed("self", proc))


def _uncovered(
    proc: int,
    here: Table,
    table: Table,
    sources: Collection[str],
    guards: Sequence[int],
) -> Iterator[str]:
    for source in sorted(sources):
        for seen, place in other_mounts.parts_in(here, table, source):
            # Topmost first: a path leads only to the topmost mount.
            for cover in reversed(here[here.index(seen) + 1 :]):
                if is_open(place, guards) and _is_of(proc, place, seen):
                    break
                if is_inside(place, cover.path):
                    with suppress(OSError):  # locked, or already gone together with another mount
                        flags = syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW
                        syscalls.umount(cover.mount_point, flags)
            if is_open(place, guards) and _is_of(proc, place, seen):
                yield place


def _is_of(proc: int, place: str, seen: MountInfo) -> bool:
    """Return whether ``place`` leads to the file system of ``seen``, and not to a mount over it.

    Compares the device of its mount: st_dev may differ within one file system (btrfs).
    """
    try:
        fd = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        number = processes.fdinfo(fd, "self", proc).mnt_id
    finally:
        os.close(fd)
    devices = {one.mnt_id: one.device for one in _read_table(proc)}
    return devices.get(number) == seen.device


def is_open(place: str, guards: Sequence[int]) -> bool:
    """Return whether this process can reach ``place`` without unmounting anything."""
    for _, attempt in share_attempts.PLAIN:
        try:
            attempt(place, guards)
        except OSError as error:
            share_attempts.check_refused(error)
            continue
        return True
    return False
