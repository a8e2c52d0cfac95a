"""Unmounts one particular mount, even if a user replaces a directory on its path meanwhile.

A mount is identified by mnt_id, device, type and source together, since the kernel gives the mnt_id
of an unmounted one to the next.
"""

from __future__ import annotations

import errno
import os
import select
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.signals import STOP_KEEP_SEAL
from gitguardfs.linux import mountinfo, processes, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards, seal

STOP_LIMIT = 15.0
"""Seconds within which a daemon that was told to stop must end."""
END_LIMIT = 5.0
"""Seconds to wait for a busy share: a daemon that is ending may still hold it."""
START_LIMIT = 1.0
"""Seconds for which a daemon may have no view, since it is about to end."""
MAX_NAMED = 5
"""Programs that a message names; more would make the line unreadable."""
_PAUSE = 0.05


def unmount(mount: MountInfo, *, lazy: bool = False, patience: float = 0) -> None:
    """Unmount this mount, wherever it was moved to; do nothing if it is gone.

    Raises UserError. Unless ``lazy``, a mount that is still in use after ``patience`` seconds is
    left, and the error names the programs that use it.
    """
    deadline = time.monotonic() + patience
    while (found := mountinfo.current(mount)) is not None:
        try:
            return _unmount(found, syscalls.MNT_DETACH if lazy else 0)
        except OSError as error:
            path = found.path
            if error.errno != errno.EBUSY:
                raise UserError(f"umount {path}: {error.strerror}", code=Exit.MOUNT) from None
            if time.monotonic() > deadline:
                raise _busy(found) from None
        time.sleep(_PAUSE)


def _busy(mount: MountInfo, ignored_pid: int = 0) -> UserError:
    path = mount.path
    users = ", ".join(_users_of(mount, ignored_pid))
    return UserError(f"{path} is busy", f"end these first: {users}" if users else "", Exit.MOUNT)


def _unmount(mount: MountInfo, flags: int) -> None:
    # By its parent directory: a descriptor of the mount itself would make it busy. While the
    # parent is open, no user can give the mount point's name to another directory.
    path = mount.path
    parent = safe_open.open_directory(os.path.dirname(path), True)
    try:
        name = os.path.basename(path)
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            found = mountinfo.number_of(fd)
        finally:
            os.close(fd)
        if found != mount.mnt_id:
            raise UserError(
                f"{path} is covered by another mount, or was replaced",
                f"see findmnt {shlex.quote(path)}, and unmount that first",
                Exit.MOUNT,
            )
        here = f"/proc/self/fd/{parent}/{name}"
        syscalls.umount(os.fsencode(here), flags | syscalls.UMOUNT_NOFOLLOW)
    finally:
        os.close(parent)


def stop_keeping_seal(guard: MountInfo, source: str) -> bool:
    """Stop a guard that no process uses, and keep its seal. Returns False if the guard is gone.

    Raises UserError, with nothing done, if the view is in use. That is checked before the daemon is
    stopped: a process that starts to use the view in between loses it, as by ``umount --lazy``. The
    share stays sealed.
    """
    found = mountinfo.current(guard)
    if found is None:
        return False
    daemon = guards.daemon_of(found)
    if daemon is None:
        # The daemon may be in another pid namespace. Its seal stays anyway.
        unmount(found)
        return True
    _check_unused(found, daemon)
    if not _stop(daemon.pid, lambda: guards.daemon_of(found) == daemon):
        return stop_keeping_seal(guard, source)
    left = mountinfo.current(found)
    if left is not None:
        unmount(left, lazy=True)  # its daemon ended without unmounting
    return True


def _stop(pid: int, is_it: Callable[[], bool]) -> bool:
    """Stop a daemon, which keeps its seal, and wait. Returns False if it had ended before.

    Raises UserError if the daemon does not end within ``STOP_LIMIT``. Raises UserError, with
    nothing done, if ``is_it`` returns False: the pid is another process's by now.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_it():
            replaced = f"process {pid} was replaced while it was being stopped"
            raise UserError(replaced, "try again", Exit.MOUNT)
        signal.pidfd_send_signal(process, STOP_KEEP_SEAL)
        if not select.select([process], [], [], STOP_LIMIT)[0]:
            raise UserError(
                f"the daemon, process {pid}, did not end within {STOP_LIMIT:.0f} seconds",
                "try again",
                Exit.SYSTEM,
            )
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True


def stop_orphan(source: str) -> None:
    """Stop the daemon of a sealed source whose view is not mounted here. The seal stays.

    A copy of its view in another mount namespace, which any user can make, keeps the daemon
    running. The share could then not be guarded again.
    """
    deadline = time.monotonic() + START_LIMIT
    while seal.is_sealed(source) and (orphan := guards.orphan_of(source)) is not None:
        if time.monotonic() > deadline:
            _stop(orphan.pid, lambda: guards.orphan_of(source) == orphan)
            return
        time.sleep(_PAUSE)


def _check_unused(mount: MountInfo, daemon: guards.GuardDaemon) -> None:
    """Raise UserError if a process other than its daemon uses the mount; change nothing.

    The first MNT_EXPIRE unmounts nothing: it fails with EBUSY if the mount is in use, and with
    EAGAIN if not (umount(2)). Ours is always the first: ``_unmount`` opens the mount's root before,
    which clears the mark of an earlier one. MNT_EXPIRE does not see processes that use a copy in
    another namespace, which would end with the daemon. So all processes are searched as well.
    """
    path = mount.path
    try:
        _unmount(mount, syscalls.MNT_EXPIRE)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise _busy(mount, daemon.pid) from None
        if error.errno != errno.EAGAIN:
            raise UserError(f"umount {path}: {error.strerror}", code=Exit.MOUNT) from None
    if _users_of(mount, daemon.pid):
        raise _busy(mount, daemon.pid)


def unmount_share(share: MountInfo) -> None:
    """Unmount a share and its seal, which no daemon may hold any more.

    Raises UserError if the share is in use or guarded; it is then sealed again. The kernel unmounts
    only what is on top, so that the share is without its seal for an instant.
    """
    found = mountinfo.current(share)
    if found is None:
        return
    path = found.path
    was_sealed = seal.is_sealed(path)
    remove_seals(path)
    try:
        # Below a seal only a daemon can be, and that has ended.
        unmount(share, patience=0 if was_sealed else END_LIMIT)
    except BaseException:
        if was_sealed:
            seal_or_unmount(path)
        raise


def remove_seals(source: str) -> None:
    """Remove the seals of ``source``, if there are any. Raises UserError if a daemon holds one.

    Other mounts at ``source`` stay. A daemon without a view is stopped first.
    """
    stop_orphan(source)
    seal.check_free(source)
    seal.remove_stale(source)


def seal_or_unmount(source: str) -> str:
    """Seal a raw share that no guard protects any more; return a line that says what was done.

    The seal outlives this process, and the next daemon takes it over. Where a seal fails, the
    share is unmounted. Raises UserError.
    """
    top = mountinfo.top_at(source)
    if top is None:
        return f"nothing is mounted at {source}"
    if not seal.is_sealed(source):
        try:
            fd = safe_open.open_directory(source, True)
            try:
                seal.Seal(source, fd).keep()
            finally:
                os.close(fd)
        except OSError:
            unmount(top, lazy=True)
            return f"the raw share at {source} was unmounted"
    return f"the raw share at {source} is sealed, and nobody can use it until it is guarded again"


def _users_of(mount: MountInfo, ignored_pid: int) -> list[str]:
    """Return some of the processes that have ``mount`` or a copy of it open."""
    found = []
    for pid in processes.pids():
        with suppress(OSError):  # it has ended
            if int(pid) != ignored_pid and _uses(pid, mount):
                found.append(f"{shown(processes.name_of(pid))} ({pid})")
    return found[:MAX_NAMED]


def _uses(pid: str, mount: MountInfo) -> bool:
    """Return whether a process holds something in ``mount`` or in a copy of it.

    A daemon, its keeper and a service manager hold the directory below. That does not count.
    """
    for link, _ in processes.held_by(f"{processes.PROC}/{pid}"):
        with suppress(OSError):  # closed; the listing's own descriptor is one
            path = os.readlink(link)
            is_in = f"{path}/".startswith(f"{mount.path}/")
            if is_in and not (path == mount.path and _is_below(link, mount)):
                return True
    return False


def _is_below(link: str, mount: MountInfo) -> bool:
    """Return whether a descriptor at the path of a mount is of the directory below it."""
    process, is_descriptor, number = link.rpartition("/fd/")
    if not is_descriptor:
        return False
    mnt_id = mountinfo.number_of(number, process)  # of a copy of the mount another, but not device
    return any(
        found.mnt_id == mnt_id and found.device != mount.device
        for found in mountinfo.listed(process)
    )
