"""Where the state of a project's VM lies, and the locks that say whether it runs.

A VM belongs to one project. Its directory lies in the user's state directory, is readable by that
user alone, and never lies in the project: the guest could change it there.

The lock is the truth about a running VM: a flock(2) on `lock`, which QEMU inherits and which the
kernel releases when the last process that holds it is gone, however it ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from gitguardfs.egress.files import make_private_directory
from gitguardfs.errors import Exit, UserError, shown

SOCKET_PATH_BYTES = 103
"""The longest path of a Unix socket on macOS, without its closing NUL; Linux takes 107."""
LOCK_PATIENCE = 1.0
"""Seconds in which another command may look at the lock, which takes it for a moment."""

_REMOVED = ".removed-"


@dataclass(frozen=True)
class State:
    """The files of one VM. ``project`` is the resolved path of the project's directory."""

    project: str
    directory: str

    def path(self, name: str) -> str:
        """Return the path of the file ``name``."""
        return os.path.join(self.directory, name)

    @property
    def name(self) -> str:
        """What the VM is called."""
        return os.path.basename(self.directory)

    @property
    def disk(self) -> str:
        """What the guest has written, as an overlay of its image."""
        return self.path("disk.qcow2")

    @property
    def seed(self) -> str:
        """What cloud-init reads."""
        return self.path("seed.iso")

    @property
    def console(self) -> str:
        """What the guest has written to its console since it was started; the start before: .1."""
        return self.path("console.log")

    @property
    def qemu_log(self) -> str:
        """What QEMU itself has said."""
        return self.path("qemu.log")

    @property
    def qmp(self) -> str:
        """The socket of QEMU's monitor."""
        return self.path("qmp.sock")

    @property
    def lock(self) -> str:
        """Held by QEMU, and by the command that starts or stops it."""
        return self.path("lock")

    @property
    def session_lock(self) -> str:
        """Held by the ``vm up`` that the VM belongs to, and by nothing it starts."""
        return self.path("session.lock")

    @property
    def ready(self) -> str:
        """A file that is there once the running guest is set up and its project guarded."""
        return self.path("ready")

    @property
    def exists(self) -> bool:
        """Whether this project has a state directory, if only one that a failed start left."""
        return os.path.isdir(self.directory)

    @property
    def has_disk(self) -> bool:
        """Whether a VM was made for this project."""
        return os.path.lexists(self.disk)


def state_of(project: str) -> State:
    """Return the state of the VM of the directory ``project``, which need not exist (any more).

    Raises UserError if the state would lie in the project, or the project in the state.
    """
    real = os.path.realpath(project)
    directory = os.path.join(_vms_directory(), name_of(real))
    outer = os.path.realpath(_vms_directory())
    if _lies_in(outer, real) or _lies_in(real, outer):
        raise UserError(
            f"the VM's state would lie in {real}, where the guest could change it",
            "choose a project further down, or another XDG_STATE_HOME",
        )
    state = State(real, directory)
    if len(os.fsencode(state.qmp)) > SOCKET_PATH_BYTES:
        raise UserError(
            f"the path {state.qmp} is too long for a socket", "choose a shorter XDG_STATE_HOME"
        )
    return state


def name_of(project: str) -> str:
    """Return a name for the VM of the resolved path ``project``: readable, and its own."""
    readable = re.sub(r"[^a-z0-9]+", "-", os.path.basename(project).lower()).strip("-")[:20]
    digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:8]
    return f"{readable.strip('-') or 'vm'}-{digest}"


def find(project: str | None) -> State:
    """Return the state of the VM of ``project``, by default the current directory's.

    Without ``project``, a directory above that has a VM counts before the current one. What a
    start that failed has left is none.
    """
    if project is not None:
        return state_of(project)
    here = os.getcwd()
    above = here
    while above != os.path.dirname(above):
        with suppress(UserError):
            state = state_of(above)
            if state.has_disk:
                return state
        above = os.path.dirname(above)
    return state_of(here)


def existing(project: str | None) -> State:
    """Return the state of a VM that was made. Raises UserError if there is none."""
    state = find(project)
    if not state.exists:
        raise UserError(
            f"{shown(state.project)} has no VM", "gitguard vm up makes one", Exit.SYSTEM
        )
    return state


def create(state: State) -> None:
    """Make the state directory, and what is of ours above it, for this user alone.

    Raises UserError if another user has one of them, OSError.
    """
    for directory in (os.path.dirname(_vms_directory()), _vms_directory(), state.directory):
        make_private_directory(Path(directory))


def remove(state: State) -> None:
    """Delete a VM; the caller holds its lock. What an interrupted call has left goes as well."""
    os.rename(state.directory, f"{state.directory}{_REMOVED}{secrets.token_hex(4)}")
    remove_leftovers()


def remove_leftovers() -> None:
    """Delete what an interrupted ``remove`` has left."""
    for name in os.listdir(_vms_directory()):
        left = os.path.join(_vms_directory(), name)
        while _REMOVED in name and os.path.lexists(left):
            with suppress(FileNotFoundError):  # another command deletes it as well
                shutil.rmtree(left)


def take(path: str, patience: float = LOCK_PATIENCE) -> int | None:
    """Take the lock at ``path`` and return its descriptor; None if another process holds it.

    Closing every copy of the descriptor releases the lock. ``patience`` is in seconds. OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.02)  # flock(2) cannot wait for a limited time
        except BaseException:
            os.close(fd)
            raise
        else:
            return fd


def is_held(path: str) -> bool:
    """Return whether a process holds the lock at ``path``; no file is no lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def cache_directory() -> str:
    """Return where images are kept: for all VMs, and through every ``vm reset``."""
    return os.path.join(platformdirs.user_cache_dir("gitguardfs", appauthor=False), "images")


def _vms_directory() -> str:
    return os.path.join(platformdirs.user_state_dir("gitguardfs", appauthor=False), "vm")


def _lies_in(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
