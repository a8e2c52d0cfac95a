"""Finds a running VM and stops it, also if the `vm up` that started it was killed."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from contextlib import suppress

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.vm import keys, qmp, secret_changes, settings, trusted_programs
from gitguardfs.host.vm.ssh import SshGuest
from gitguardfs.host.vm.state import State, is_held, remove, take

POWERDOWN_LIMIT = 30.0
"""Seconds that a guest has to shut down."""
QUIT_LIMIT = 10.0
"""Seconds that QEMU has to end after ``quit`` or SIGKILL."""
CLEAN_UP_LIMIT = 60.0
"""Seconds that `vm up` has to stop its VM and to end."""
QEMU = "qemu-system"
"""The beginning of the names of QEMU's processes."""
MIN_FREE_TO_RESUME = 256 << 20
"""Bytes that must be free; with less, QEMU would pause the VM again at once."""
DISK_IS_FULL = "the host's disk is full; make room, then gitguard vm ssh resumes the VM"
_LOOK_EVERY = 0.1


def is_running(state: State) -> bool:
    """Return whether the VM is running, starting or stopping."""
    return is_held(state.lock)


def guest(state: State, early: bool = False) -> SshGuest:
    """Return how to reach the running guest.

    Raises UserError if the VM is not running, if ssh or this program lies in the project, or if the
    project is not guarded yet; ``early`` permits the last.
    """
    own = settings.load(state)
    trusted_programs.check(own, trusted_programs.SSH)
    if not is_running(state):
        raise UserError("the VM is not running", "gitguard vm up starts it", Exit.SYSTEM)
    not_yet = UserError(
        "the VM is still starting", "gitguard vm logs -f shows how far it is", Exit.SYSTEM
    )
    if not (early or os.path.exists(state.ready)):
        raise not_yet
    try:
        resume_if_paused(state)
        port = qmp.ssh_port(state)
    except qmp.NoAnswerError:
        raise not_yet from None
    return SshGuest(keys.Keys(state.path(keys.DIRECTORY)), port, own.shares[0].view)


def resume_if_paused(state: State) -> None:
    """Resume a VM that QEMU has paused because the host's disk was full.

    Raises UserError if the disk is still full, NoAnswerError.
    """
    if qmp.status(state) != qmp.IO_ERROR:
        return
    free = shutil.disk_usage(state.directory).free
    if free < MIN_FREE_TO_RESUME:
        raise UserError(f"the VM is paused: {DISK_IS_FULL}", code=Exit.SYSTEM)
    print("the VM was paused because the host's disk was full; it goes on", file=sys.stderr)
    qmp.resume(state)


def is_in_session(state: State) -> bool:
    """Return whether the VM is running, and the `vm up` that started it too."""
    return is_running(state) and session_pid(state) is not None


def session_pid(state: State) -> int | None:
    """Return the process id of the `vm up` that started the VM; None if it has ended."""
    try:
        if not is_held(state.session_lock):
            return None
        with open(state.session_lock) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None  # it has just started or just ended, or is not this user's


def stop(state: State) -> None:
    """Stop the VM and its `vm up`. Raises UserError if one of them does not end."""
    if not is_running(state) and not is_held(state.session_lock):
        return
    pid = session_pid(state)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if _await_free(CLEAN_UP_LIMIT, state.lock, state.session_lock):
            return
    if not stop_orphan(state):
        raise UserError(
            f"the VM did not stop (process {pid or 'unknown'})",
            f"fuser {shlex.quote(state.lock)} names the process that holds it",
            Exit.SYSTEM,
        )


def stop_orphan(state: State, shuts_down: bool = True) -> bool:
    """Stop a QEMU whose `vm up` has ended; return whether the lock is free then.

    Without ``shuts_down`` the guest is not asked: what is on its disk is of no use.
    """
    with suppress(qmp.NoAnswerError):
        if shuts_down:
            qmp.power_down(state)
            if _await_free(POWERDOWN_LIMIT, state.lock):
                return True
        qmp.quit(state)
    if _await_free(QUIT_LIMIT, state.lock):
        return True
    for pid in _holders(state.lock):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return _await_free(QUIT_LIMIT, state.lock)


def take_lock(state: State, shuts_down: bool = True) -> int:
    """Acquire the VM's lock for a new start; stop a QEMU that was left running, as ``stop_orphan``.

    Raises UserError.
    """
    fd = take(state.lock)
    if fd is None:
        print("the VM was left running by a vm up that was killed: stopping it", file=sys.stderr)
        stop_orphan(state, shuts_down)
        fd = take(state.lock)
    if fd is None:
        raise UserError(
            "another process holds the VM's lock",
            f"fuser {shlex.quote(state.lock)} names it",
            Exit.SYSTEM,
        )
    return fd


def _await_free(limit: float, *locks: str) -> bool:
    """Poll until the locks are free, ``limit`` seconds at most; return whether they are."""
    deadline = time.monotonic() + limit
    while any(is_held(lock) for lock in locks):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def _holders(lock: str) -> list[int]:
    """Return the process ids of the QEMUs that have the lock open. Empty on macOS."""
    found = []
    processes = os.listdir("/proc") if os.path.isdir("/proc") else []
    for pid in filter(str.isdecimal, processes):
        with suppress(OSError):  # another user's, or it has just ended
            with open(f"/proc/{pid}/comm") as comm:
                is_qemu = comm.read().startswith(QEMU)
            if is_qemu and any(
                os.path.samefile(f"/proc/{pid}/fd/{fd}", lock)
                for fd in os.listdir(f"/proc/{pid}/fd")
            ):
                found.append(int(pid))
    return found


def reset(state: State) -> list[str]:
    """Delete the VM, and the values of its secrets. Returns a line for all that remains.

    Raises UserError if the VM is running, OSError.
    """
    session = take(state.session_lock)
    lock = take(state.lock)
    try:
        if session is None or lock is None:
            raise UserError("the VM is running", "stop it first: gitguard vm stop", Exit.SYSTEM)
        with secret_changes.changing(state):
            return [*secret_changes.delete_values(state), *remove(state)]
    finally:
        for fd in (session, lock):
            if fd is not None:
                os.close(fd)
