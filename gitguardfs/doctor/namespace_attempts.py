"""Peeling off, in a mount namespace of the user's, what covers the raw share there.

A mount that came into a less privileged namespace along with what it covers is locked to it; one
that came alone, as a seal does that spreads to a namespace from before the share was sealed, is
not (mount_namespaces(7)): the namespace's root can unmount it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from gitguardfs.doctor import other_mounts, run_as, share_attempts
from gitguardfs.doctor.context import Table
from gitguardfs.doctor.run_as import SetupFailed, User, preparing
from gitguardfs.linux import mountinfo, processes, raw_syscalls, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.namespaces import NS_GET_USERNS, Identity, mounted_namespace


def unmount_covers(
    path: str,
    identity: Identity,
    user: User,
    table: Table,
    sources: Collection[str],
    guards: Sequence[int],
) -> tuple[list[str], list[str]]:
    """Where ``user`` gets to what ``sources`` are in ``table``, in the namespace behind ``path``.

    To be run as root, in a child: it becomes the user and enters the namespace by the user's own
    right, then a private copy, so that the namespace stays as it is. Nothing is found where the
    user has no such right. Returns the places, and the numbers of the mount namespaces that are
    mounted in it. Raises FileNotFoundError if nothing keeps it any more, SetupFailed if ``path``
    leads to another one.
    """
    space = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    st = os.fstat(space)
    if (st.st_dev, st.st_ino) != identity:
        raise SetupFailed(f"{path} leads elsewhere")
    try:
        owner = fcntl.ioctl(space, NS_GET_USERNS)
    except PermissionError:
        return [], []  # above our own
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    own = os.stat("/proc/self/ns/user")
    with preparing():
        run_as.switch_user(user)
    if os.path.samestat(os.fstat(owner), own):
        return [], []  # nobody but root may unmount there
    try:
        raw_syscalls.enter_namespace(owner)
    except PermissionError:
        return [], []  # neither the user's nor below one of the user's
    with preparing():
        raw_syscalls.enter_namespace(space)
        syscalls.unshare_mounts()
        here = _read_table(proc)
    kept = {name for seen in here if (name := mounted_namespace(seen)) is not None}
    return sorted(set(_uncovered(proc, here, table, sources, guards))), sorted(kept)


def _read_table(proc: int) -> Table:
    # By a descriptor of ours: the namespace may have no /proc, or another one.
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
            # What is on top goes first, or nothing below it could be named.
            for cover in reversed(here[here.index(seen) + 1 :]):
                if is_open(place, guards) and _is_of(proc, place, seen):
                    break
                if other_mounts.is_inside(place, cover.path):
                    with suppress(OSError):  # locked, or gone with another one
                        flags = syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW
                        syscalls.umount(cover.mount_point, flags)
            if is_open(place, guards) and _is_of(proc, place, seen):
                yield place


def _is_of(proc: int, place: str, seen: MountInfo) -> bool:
    """Whether ``place`` leads to the file system that ``seen`` is of, and not to what is over it.

    By its mount: the devices of what lies in one file system may differ (btrfs).
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
    """Whether whoever runs this gets to ``place`` without more ado."""
    for _, way in share_attempts.PLAIN:
        try:
            way(place, guards)
        except OSError as error:
            share_attempts.check_refused(error)
            continue
        return True
    return False
