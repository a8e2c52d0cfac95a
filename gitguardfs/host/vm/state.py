"""The state directory of a project's VM, and its locks.

The directory is one of the user's, never in the project, where the agent could change it. A VM is
running while the flock(2) on ``lock`` is held: QEMU inherits it, and the kernel releases it when
the last process that holds it has ended.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from gitguardfs.base import quote
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.paths import checksum, is_inside, slug
from gitguardfs.host.egress import allowlist_lock
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.host.share import state as machines
from gitguardfs.options.config_files import make_private_directory

SOCKET_PATH_BYTES = 103
"""The longest path of a Unix socket on macOS, without the final NUL; Linux allows 107."""
LOCK_PATIENCE = 1.0
"""Seconds to wait for a lock: a command that only tests the lock holds it for a moment."""

_REMOVED = ".removed-"


@dataclass
class State:
    """The files of a VM. ``project`` is the resolved path of the project's directory."""

    project: str
    directory: str

    def __post_init__(self) -> None:
        self.name = os.path.basename(self.directory)
        self.files = StateFiles(Path(self.directory))  # those of the proxy
        self.disk = self.path("disk.qcow2")  # an overlay over a ready disk
        self.seed = self.path("seed.iso")  # what the guest is given at each start
        self.console = self.path("console.log")  # since the last start; .1 has the one before
        self.qemu_log = self.path("qemu.log")
        self.qmp = self.path("qmp.sock")  # the socket of QEMU's monitor
        self.changes = self.path("changes.sock")  # the host's end of the port of this name
        self.watch_log = self.path("watch.log")  # of the watcher that writes there
        self.lock = self.path("lock")  # held by QEMU, and by who starts or stops it
        self.session_lock = self.path("session.lock")  # held by `vm up`, and by no child of it
        self.ready = self.path("ready")  # exists once the running guest's project is guarded
        # The user's options for `vm up`, which `vm reset` keeps.
        self.config = os.path.join(_config_directory(), "projects", self.name, "gitguard.toml")

    def path(self, name: str) -> str:
        """Return the path of the file ``name``."""
        return os.path.join(self.directory, name)

    @property
    def exists(self) -> bool:
        """Whether this project has a state directory, even if only a failed start made it."""
        return os.path.isdir(self.directory)

    @property
    def has_disk(self) -> bool:
        """Whether this project has a VM."""
        return os.path.lexists(self.disk)


def state_of(project: str) -> State:
    """Return the state of the VM of the directory ``project``, which need not exist.

    Raises UserError if the state would lie in the project, or the project in the state; and so for
    the options of all VMs.
    """
    real = os.path.realpath(project)
    directory = os.path.join(_vms_directory(), name_of(real))
    for what, outside, variable in (
        ("the VM's state", _vms_directory(), "XDG_STATE_HOME"),
        ("gitguard.toml", _config_directory(), "XDG_CONFIG_HOME"),
    ):
        outer = os.path.realpath(outside)
        if is_inside(outer, real) or is_inside(real, outer):
            raise UserError(
                f"{what} would lie in the project {real}, where the agent could change it",
                f"choose a directory further down as the project, or set another {variable}",
            )
    state = State(real, directory)
    check_socket(state, "XDG_STATE_HOME")
    return state


def check_socket(state: State, variable: str) -> None:
    """Raise UserError if QEMU could have no sockets in this directory."""
    longest = max(state.qmp, state.changes, key=len)
    if len(os.fsencode(longest)) > SOCKET_PATH_BYTES:
        raise UserError(f"the path {longest} is too long for a socket", f"set a shorter {variable}")


def name_of(project: str) -> str:
    """Return a readable and unique name for the VM of the resolved path ``project``."""
    return f"{slug(project, 20) or 'vm'}-{checksum(project)}"


def find(project: str | None) -> State:
    """Return the state of the VM of ``project``.

    Without ``project``, that is the nearest directory with a VM or a gitguard.toml, from the
    current one upwards; or the current directory if none has one. A state that a failed start left
    counts as no VM.
    """
    if project is not None:
        return state_of(project)
    here = os.getcwd()
    above = here
    while above != os.path.dirname(above):
        with suppress(UserError):
            state = state_of(above)
            if state.has_disk or os.path.lexists(state.config):
                return state
        above = os.path.dirname(above)
    return state_of(here)


def existing(project: str | None) -> State:
    """Return the state of an existing VM. Raises UserError if there is none."""
    directory = os.path.realpath(project or os.getcwd())
    hint = "name the project: --project DIR"
    with suppress(UserError):  # a directory that can have no VM, such as a home, has none
        state = find(project)
        if state.exists:
            return state
        where = [] if directory == os.path.realpath(os.getcwd()) else ["--project", directory]
        hint = f"{quote.shell(['gitguard', 'vm', 'up', *where])} makes one"
    raise UserError(f"{shown(directory)} has no VM", hint, Exit.SYSTEM)


def create(state: State) -> None:
    """Make the state directory, and gitguardfs's directories above it, for this user only.

    Raises UserError if one of them belongs to another user, OSError.
    """
    for directory in (os.path.dirname(_vms_directory()), _vms_directory(), state.directory):
        make_private_directory(Path(directory))


def remove(state: State) -> list[str]:
    """Delete a VM, and the leftovers of an interrupted call. The caller holds the VM's lock.

    Returns a line for each directory that remains. Raises OSError.
    """
    with allowlist_lock.held(state.files.directory):
        os.rename(state.directory, f"{state.directory}{_REMOVED}{secrets.token_hex(4)}")
    return remove_leftovers()


def remove_leftovers() -> list[str]:
    """Delete the leftovers of an interrupted ``remove``. Returns a line for each that remains."""
    remain = []
    for name in os.listdir(_vms_directory()):
        if _REMOVED in name:
            try:
                delete(os.path.join(_vms_directory(), name))
            except UserError as error:
                remain.append(str(error))
    return remain


def delete(directory: str) -> None:
    """Delete a directory, which another command may delete as well. Raises UserError."""
    while os.path.lexists(directory):
        try:
            with suppress(FileNotFoundError):  # the other command was faster
                shutil.rmtree(directory)
        except OSError as error:  # such as a file of root's, which sudo can leave
            raise UserError(
                f"{shown(directory)} cannot be deleted: {error.strerror}",
                "delete it as its owner",
                Exit.SYSTEM,
            ) from None


def all_states() -> list[State]:
    """Return each state directory. The projects are not known here: ``/``."""
    directory = _vms_directory()
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    found = [State("/", os.path.join(directory, name)) for name in names if _REMOVED not in name]
    return [state for state in found if state.exists]


def take(path: str, patience: float = LOCK_PATIENCE) -> int | None:
    """Acquire the lock at ``path``; return its descriptor, or None if another process holds it.

    Closing every copy of the descriptor releases the lock. ``patience`` is in seconds. Raises
    OSError, also if the lock was deleted meanwhile with its directory.
    """
    deadline = time.monotonic() + patience
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(fd)):  # else nobody else would see it
                    return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.02)  # flock(2) has no time limit
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def is_held(path: str) -> bool:
    """Return whether a process holds the lock at ``path``; False if there is no such file."""
    try:
        # O_NONBLOCK: a FIFO of that name must not keep the caller waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
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
    """Return the directory of images, which all VMs share and ``vm reset`` keeps."""
    return os.path.join(platformdirs.user_cache_dir("gitguardfs", appauthor=False), "images")


def own_directories() -> tuple[str, ...]:
    """Return the directories on which all VMs rely: no VM may share one of them.

    They have the state of VMs, secrets, the user's options, images, and what other machines of
    gitguardfs start from.
    """
    state, cache = os.path.dirname(_vms_directory()), os.path.dirname(cache_directory())
    return (state, cache, cache_directory(), _config_directory(), machines.directory())


def _config_directory() -> str:
    return platformdirs.user_config_dir("gitguardfs", appauthor=False)


def _vms_directory() -> str:
    return os.path.join(platformdirs.user_state_dir("gitguardfs", appauthor=False), "vm")
