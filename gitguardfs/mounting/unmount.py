"""Unmounting exactly what was looked at, although users can bend the way to it.

A mount is known by its number, device, type and source together: the kernel gives the number of
one that is gone to the next.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from gitguardfs.errors import Exit, UserError, shown
from gitguardfs.linux import mountinfo, processes, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards, seal

SETTLE_LIMIT = 15.0
"""Seconds within which a daemon whose view was unmounted has to lift its seal and end."""
END_LIMIT = 5.0
"""Seconds for which such a daemon may still hold the share after that."""
START_LIMIT = 1.0
"""Seconds for which a daemon may have no view: it is about to mount it, or to end."""
_PAUSE = 0.05


def unmount(mount: MountInfo, *, lazy: bool = False, patience: float = 0) -> None:
    """Unmount this mount, wherever it is by now; nothing if it is gone.

    Unless ``lazy``, one that is used is left: UserError, after ``patience`` seconds, with the
    names of the programs that use it.
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


def _busy(mount: MountInfo, but: int = 0) -> UserError:
    path = mount.path
    users = ", ".join(_users_of(mount, but))
    return UserError(f"{path} is busy", f"leave it first: {users}" if users else "", Exit.MOUNT)


def _unmount(mount: MountInfo, flags: int) -> None:
    # By its parent: a descriptor of the mount itself would make it busy. While the parent is
    # held, nobody can put something else under the name of a mount point.
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
                f"{path} is covered by another mount, or leads elsewhere now",
                f"see findmnt {path}, and unmount that first",
                Exit.MOUNT,
            )
        here = f"/proc/self/fd/{parent}/{name}"
        syscalls.umount(os.fsencode(here), flags | syscalls.UMOUNT_NOFOLLOW)
    finally:
        os.close(parent)


def hand_over(guard: MountInfo, source: str) -> bool:
    """End a guard that nobody uses, and leave its seal on for the next one; False if it is gone.

    UserError, with nothing done, if it is used: it is asked first whether the view is used, and
    then the daemon is told to go. Whoever starts to use the view between the two loses it, as by
    ``umount --lazy``; nothing opens.
    """
    found = mountinfo.current(guard)
    if found is None:
        return False
    daemon = _daemon_of(guard, found)
    if daemon is None:
        # Nobody to tell it to: a process of another pid namespace, say. Its seal stays anyway.
        unmount(found)
        return True
    _check_unused(found, daemon)
    if not _end(daemon.pid, lambda: _daemon_of(guard, found) == daemon):
        return hand_over(guard, source)
    left = mountinfo.current(found)
    if left is None:
        return True
    if not guards.is_dead(left.mount_point):  # it was not its daemon that has ended
        path = left.path
        raise UserError(f"{path} goes on, and its daemon is not known", code=Exit.SYSTEM)
    unmount(left, lazy=True)  # its daemon was ended by something else
    return True


def _end(pid: int, is_it: Callable[[], bool]) -> bool:
    """Tell a daemon to end, and to leave its seal on; False if it has ended before.

    UserError, with nothing done, unless ``is_it`` says that the number is still that daemon's.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_it():
            replaced = f"process {pid} was replaced while it was being stopped"
            raise UserError(replaced, "try again", Exit.MOUNT)
        signal.pidfd_send_signal(process, signal.SIGUSR2)
        if not select.select([process], [], [], SETTLE_LIMIT)[0]:
            raise UserError(f"gitguardfs ({pid}) does not end", code=Exit.SYSTEM)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True


def end_forgotten(source: str) -> None:
    """End a daemon that holds the seal of ``source``, and none of whose views is mounted here.

    Copies of a view in other mount namespaces, which any user can make, keep it running, and it
    would keep everybody from guarding the share again. Its seal stays.
    """
    deadline = time.monotonic() + START_LIMIT
    while (pid := _holder_of(source)) is not None and guards.serves_nothing(pid):
        if time.monotonic() > deadline:
            _end(int(pid), lambda: _holder_of(source) == pid and guards.serves_nothing(pid))
            return
        time.sleep(_PAUSE)


def _holder_of(source: str) -> str | None:
    """The process that holds the seal of ``source``, which only root can; None if nobody does."""
    if not seal.is_sealed(source):
        return None
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        holder = seal.holder(fd)
    finally:
        os.close(fd)
    return holder if holder.isdecimal() else None


def _daemon_of(guard: MountInfo, found: MountInfo) -> guards.GuardDaemon | None:
    # Where the kernel does not tell it, by the path that it was given, which may be the old one.
    return guards.daemon_of(found) or guards.daemon_of(guard)


def _check_unused(mount: MountInfo, daemon: guards.GuardDaemon) -> None:
    """Raise UserError if a program other than its daemon is in the mount, and change nothing.

    The first MNT_EXPIRE unmounts nothing: it fails by EBUSY for a mount that is used, and by
    EAGAIN for one that is not (umount(2)). Ours is always the first one, since ``_unmount`` opens
    the mount's root before, which takes the mark of an earlier one away. It knows nothing of
    copies of the mount in other namespaces, which go with it; so processes are looked through
    as well.
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
    """Unmount a share, and first the seal that no daemon holds any more.

    UserError if it is used, or guarded; it is sealed again if it was. The kernel unmounts what is
    on top and nothing else, so that the share is there without its seal for an instant.
    """
    found = mountinfo.current(share)
    if found is None:
        return
    path = found.path
    was_sealed = seal.is_sealed(path)
    lift(path)
    try:
        # Below a seal nobody is but a daemon, and that has ended.
        unmount(share, patience=0 if was_sealed else END_LIMIT)
    except BaseException:
        if was_sealed:
            close_off(path)
        raise


def lift(source: str) -> None:
    """Take off the seals of ``source``; UserError if a daemon holds one, nothing if there is none.

    Only real seals: whatever else somebody has mounted there stays. A daemon without a view is
    ended first.
    """
    end_forgotten(source)
    seal.check_free(source)
    seal.lift_stale(source)


def close_off(source: str) -> str:
    """Close a raw share that nothing guards any more, by a seal; say what was done.

    The seal outlives this process, as that of a daemon that crashed: the next one takes it over.
    """
    top = mountinfo.top_at(source)
    if top is None:
        return f"nothing is mounted at {source}"
    if not seal.is_sealed(source):
        try:
            fd = safe_open.open_directory(source, True)
            try:
                seal.Seal(source, fd).leave()
            finally:
                os.close(fd)
        except OSError:
            unmount(top, lazy=True)
            return f"the raw share at {source} was unmounted"
    return f"the raw share at {source} is sealed, and nobody can use it until it is guarded again"


def _users_of(mount: MountInfo, but: int = 0, at_most: int = 5) -> list[str]:
    """Programs that have their working directory or a file in ``mount``, or in a copy of it."""
    found = []
    path = mount.path
    for pid in processes.pids():
        if int(pid) == but:
            continue
        with suppress(OSError):  # it has ended
            held = _held(pid, path)
            if held and not _is_covered(pid, held, mount):
                with open(f"/proc/{pid}/comm", "rb") as file:  # any bytes: the process says it
                    name = shown(file.read().removesuffix(b"\n"))
                found.append(f"{name} ({pid})")
    return found[:at_most]


def _held(pid: str, path: str) -> list[str]:
    """Links of a process (proc(5)) that lead to ``path`` or below it."""
    links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root"]
    links += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    found = []
    for link in links:
        with suppress(OSError):  # closed; our own listing above is one
            if f"{os.readlink(link)}/".startswith(f"{path}/"):
                found.append(link)
    return found


def _is_covered(pid: str, held: list[str], mount: MountInfo) -> bool:
    """Whether a daemon holds no more than the directory that ``mount`` covers.

    One of an earlier guard at the same place does, as long as somebody has a copy of its view.
    """
    path = mount.path
    for link in held:
        kind, _, number = link.removeprefix(f"/proc/{pid}/").partition("/")
        if kind != "fd" or os.readlink(link) != path:
            return False
        if processes.fdinfo(number, f"/proc/{pid}").mnt_id == mount.mnt_id:
            return False
    return guards.is_daemon(pid)
