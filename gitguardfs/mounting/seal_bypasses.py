"""Finds processes and mount namespaces that still reach a share after it was sealed.

The result is text, for the message with which a guard refuses to start.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress
from enum import IntEnum

from gitguardfs.base.errors import shown
from gitguardfs.linux import holders, mountinfo, namespaces, syscalls
from gitguardfs.linux.holders import MountedDirectory
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.namespaces import MountNamespace
from gitguardfs.mounting import seal

NAMED = 5
"""How many holders the line names: more would make it unreadable."""
LIMIT = 10
"""Seconds after which a namespace counts as one that cannot be looked into: a user may serve a
mount there and not answer."""
_NOT_REACHED = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOTCONN, errno.ECONNABORTED)


class _Exposure(IntEnum):
    """The exit status of the child that looks into a namespace."""

    CLOSED = 0
    OPEN = 1
    UNKNOWN = 2


END_THEM = "leave the directory or end it, then start again; or the option allow-holders"
WHEN_IDLE = "start again when users start fewer programs; or the option allow-holders"
SEARCH_FAILED = "the option allow-holders starts all the same, with a warning"


def describe(source: str, number: int, device: int) -> tuple[str, str]:
    """Return what holds the just sealed ``source``, or a part of it, and what to do about that.

    Each is one line; both are empty if nothing holds it. ``number`` is the mnt_id of the mount that
    the seal covers; ``device`` is the st_dev of ``source`` below the seal.
    """
    table = mountinfo.listed()
    try:
        covered = next(mount for mount in table if mount.mnt_id == number)
        wanted = holders.with_shares_below(os.fsencode(source), covered, table, device)
        found = [
            f"{each.pid} ({shown(each.name)}): {', '.join(each.held)}"
            for each in holders.find_holders(wanted)
        ]
        found += _shown_by_namespaces(source, wanted)
    except OSError as error:
        needs = " (CAP_SYS_PTRACE)" if isinstance(error, PermissionError) else ""
        hint = WHEN_IDLE if error.errno == errno.EAGAIN else SEARCH_FAILED
        text = f"cannot find what holds {source} from before the seal: {error.strerror}{needs}"
        return text, hint
    if not found:
        return "", ""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    named = "; ".join(found[:NAMED])
    return f"processes hold {source} from before the seal: {named}{more}", END_THEM


def _shown_by_namespaces(source: str, wanted: Sequence[MountedDirectory]) -> list[str]:
    """Return the mount namespaces of users in which ``source`` is open, or its seal removable.

    Returns [] if only root can reach the directory of ``source``: no user reaches a copy then.
    """
    if not seal.is_passable(source, 0):
        return []
    spaces = [one for one in namespaces.others() if _is_users(one)]
    known = {str(one.identity[1]) for one in spaces}
    found = []
    for space in spaces:
        seen = _look_into(space, wanted, known)
        if seen is _Exposure.OPEN:
            found.append(f"{shown(space.label)}: a mount namespace that shows it")
        elif seen is _Exposure.UNKNOWN:
            found.append(f"{shown(space.label)}: a mount namespace that cannot be looked into")
    return found


def _is_users(space: MountNamespace) -> bool:
    """Return whether a user can enter a namespace: by a process in it, or as its maker.

    A process of root's that we may not look into has more capabilities than we have, as the first
    process of a container may. No user can enter a namespace by such a process.
    """
    if space.makers is None and space.process and space.uids == {0}:
        return False
    return space.makers is None or bool(space.makers) or bool(space.uids - {0} and space.process)


def _look_into(
    space: MountNamespace, wanted: Sequence[MountedDirectory], known: Collection[str]
) -> _Exposure:
    """Return, by a child, whether a namespace shows one of ``wanted``, or can be made to."""
    pid = os.fork()
    if pid == 0:
        code = _Exposure.UNKNOWN
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIMIT)
            code = _enter(space, wanted, known)
        except (FileNotFoundError, ProcessLookupError):
            code = _Exposure.CLOSED if space.process else _Exposure.UNKNOWN  # the process has ended
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _Exposure(status) if status in set(_Exposure) else _Exposure.UNKNOWN


def _enter(
    space: MountNamespace, wanted: Sequence[MountedDirectory], known: Collection[str]
) -> _Exposure:
    fd = os.open(space.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    st = os.fstat(fd)
    if (st.st_dev, st.st_ino) != space.identity:
        return _Exposure.UNKNOWN
    # Opened before entering: the namespace may have no /proc, or another one.
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    owner = fcntl.ioctl(fd, namespaces.NS_GET_USERNS)
    is_users = not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user"))
    if is_users:
        syscalls.enter_user_namespace(owner)
    syscalls.enter_mounts(fd)
    if is_users:
        syscalls.unshare_mounts()  # so that the namespace stays as it is
    table = mountinfo.listed("self", proc)
    for number, mount in enumerate(table):
        for place in wanted:
            path = place.shown_by(mount)
            if path is not None and _is_open(path, place, table[number + 1 :] if is_users else ()):
                return _Exposure.OPEN
    kept = {name for mount in table if (name := namespaces.mounted_namespace(mount)) is not None}
    return _Exposure.CLOSED if kept <= set(known) else _Exposure.UNKNOWN


def _is_open(path: bytes, place: MountedDirectory, covers: Sequence[MountInfo]) -> bool:
    """Unmount what can be unmounted of ``covers``; return whether ``path`` then leads to a place.

    In a less privileged namespace, a mount is locked to the mount below it if both came at once.
    A seal that was put on after the namespace was made came alone, and is not locked
    (mount_namespaces(7)).
    """
    for cover in reversed(covers):
        if holders.is_at_or_below(path, cover.mount_point):
            with suppress(OSError):
                syscalls.umount(cover.mount_point, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_REACHED:
            return False
        raise
    try:
        return syscalls.device_of(fd) == place.device
    finally:
        os.close(fd)
