"""The program ``umount.fuse.gitguardfs``, which umount(8) runs to unmount a view.

For root it unmounts the view and the lid below, then tells the daemon that root did so, and the
daemon removes the seal. Without that message the daemon keeps the seal. For a user it calls
fusermount3, which unmounts views of that user alone. umount(8) calls the program as
``umount.fuse.gitguardfs PATH [-flnrv] [-N NAMESPACE] [-t TYPE]`` (mount(8), "EXTERNAL HELPERS").
"""

from __future__ import annotations

import errno
import os
import select
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gitguardfs.base.constants import FSTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.signals import UNMOUNTED
from gitguardfs.commands.run import call
from gitguardfs.linux import mountinfo, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards, lid, preflight, seal, utab

NAME = f"umount.{FSTYPE}"
SETTLE_LIMIT = 60.0
"""Seconds for a daemon without its view to remove the seal and end: far more than it needs."""
LAZY_LIMIT = 1.0
"""Seconds to wait for that with -l; programs may go on using the view for any time."""
_WITH_VALUE = "Nt"


@dataclass(frozen=True)
class UnmountRequest:
    """An unmount that umount(8) asks for: its path, and flags of umount2(2)."""

    path: str
    flags: int = 0

    @property
    def is_lazy(self) -> bool:
        """Return whether programs may go on using the view (-l)."""
        return bool(self.flags & syscalls.MNT_DETACH)


def parse(words: Sequence[str]) -> UnmountRequest:
    """Parse the arguments of umount(8), ignoring options without effect here. Raises UserError."""
    paths: list[str] = []
    flags = 0
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            paths.append(word)
            continue
        flags |= syscalls.MNT_DETACH if "l" in word[1:] else 0
        flags |= syscalls.MNT_FORCE if "f" in word[1:] else 0
        if word[-1] in _WITH_VALUE:
            rest = rest[1:]
    if len(paths) != 1:
        raise UserError(f"usage: {NAME} MOUNTPOINT [-fl]", "it is run by umount(8)")
    return UnmountRequest(paths[0], flags)


def unmount(request: UnmountRequest) -> None:
    """Unmount a view. If root mounted it, notify its daemon, and wait for its end.

    Raises UserError, OSError.
    """
    path = os.path.abspath(request.path)
    if (os.getuid(), os.geteuid()) != (0, 0):
        return preflight.unmount_as_user(path, lazy=request.is_lazy)
    directory, name = os.path.split(path)
    parent = safe_open.open_directory(directory, True)
    try:
        view = _view(parent, name, path)
        daemon = guards.daemon_of(view)
        process = _open_process(daemon)
        if daemon != guards.daemon_of(view):
            raise UserError(f"the daemon of {path} was replaced just now", "try again", Exit.MOUNT)
        closed = _lid_below(view)
        if closed is not None:
            utab.add_cover(view, closed)
        # While the parent is open, nobody can replace the mount point under this name.
        here = os.fsencode(f"/proc/self/fd/{parent}/{name}")
        _umount(here, path, request.flags)
        if closed is not None:
            lid.remove(closed)
    finally:
        os.close(parent)
    is_open = os.path.isabs(view.source) and not seal.is_sealed(view.source)
    if safe_open.is_foreign(view) or (process is None and is_open):
        return  # it needs no message to remove a seal
    opens = f"umount {shlex.quote(view.source)} opens the share"
    if process is None:
        why = f"{path} is unmounted, but its daemon is not known: a seal stays"
        raise UserError(why, opens, Exit.SYSTEM)
    try:
        _notify(process, daemon.pid if daemon else 0, request.is_lazy)
    finally:
        os.close(process)
    if not request.is_lazy and not is_open and seal.is_sealed(view.source):
        why = f"{path} is unmounted, but its daemon was not ready yet: a seal stays"
        raise UserError(why, opens, Exit.SYSTEM)


def _lid_below(view: MountInfo) -> MountInfo | None:
    below = next((m for m in mountinfo.listed() if m.mnt_id == view.parent_id), None)
    return below if below is not None and lid.is_lid(below) else None


def _view(parent: int, name: str, path: str) -> MountInfo:
    """Return the gitguardfs that is mounted exactly there. Raises UserError, OSError.

    A user's view is refused on top of root's: unmounting it would not do what was asked for.
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        stack = mountinfo.stack_of(fd)
    finally:
        os.close(fd)
    view = stack[0] if stack else None
    if view is None or view.mount_point != os.fsencode(path):
        raise UserError(f"{path}: not mounted", code=Exit.MOUNT)
    if safe_open.is_foreign(view) and (view.fstype != FSTYPE or any(map(guards.is_guard, stack))):
        raise safe_open.ForeignMountError(view, path)
    if view.fstype != FSTYPE:
        raise UserError(f"{path} is not a gitguardfs", f"umount -i {shlex.quote(path)}", Exit.MOUNT)
    return view


def _open_process(daemon: guards.GuardDaemon | None) -> int | None:
    try:
        return None if daemon is None else os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return None


def _umount(here: bytes, path: str, flags: int) -> None:
    try:
        syscalls.umount(here, flags | syscalls.UMOUNT_NOFOLLOW)
    except OSError as error:
        busy = error.errno == errno.EBUSY
        text = "target is busy" if busy else error.strerror
        raise UserError(f"{path}: {text}", code=Exit.MOUNT) from None


def _notify(process: int, pid: int, is_lazy: bool) -> None:
    # Without -l no program uses the view here; only copies in other mount namespaces remain.
    try:
        signal.pidfd_send_signal(process, UNMOUNTED if is_lazy else signal.SIGTERM)
    except ProcessLookupError:
        return
    if select.select([process], [], [], LAZY_LIMIT if is_lazy else SETTLE_LIMIT)[0] or is_lazy:
        return
    raise UserError(
        f"gitguardfs ({pid}) does not end",
        f"kill {pid}",
        Exit.SYSTEM,
    )


def main() -> None:
    """Run the program. A failure becomes one line and an exit code of umount(8)."""
    call(lambda: unmount(parse(sys.argv[1:])), NAME)
