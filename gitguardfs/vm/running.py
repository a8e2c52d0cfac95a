"""A VM that runs: finding it, and ending it whatever has become of the command that started it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

from gitguardfs.errors import Exit, UserError
from gitguardfs.vm import keys, provision, qmp, settings, trusted_programs
from gitguardfs.vm.ssh import Guest
from gitguardfs.vm.state import State, is_held, remove, take

POWERDOWN_LIMIT = 30.0
"""Seconds that a guest has to go down by itself."""
QUIT_LIMIT = 10.0
"""Seconds that QEMU has to end when it is told to."""
CLEAN_UP_LIMIT = 60.0
"""Seconds that `vm up` has, all in all, to stop its VM when it is told to."""
QEMU = "qemu-system"
"""How its processes' names begin."""
MIN_FREE_TO_RESUME = 256 << 20
"""Bytes that must be free: with less, a paused VM would be paused again at once."""
DISK_IS_FULL = "the host's disk is full; make room, then gitguard vm ssh lets it go on"
_LOOK_EVERY = 0.1


def is_running(state: State) -> bool:
    """Return whether the VM runs, starts or stops."""
    return is_held(state.lock)


def guest(state: State, early: bool = False) -> Guest:
    """Return how to reach the running guest. Raises UserError if it does not run.

    Before the project is guarded it is reached with ``early`` only. UserError as well if what
    reaches it lies in the project.
    """
    trusted_programs.check(state.project, trusted_programs.SSH)
    if not is_running(state):
        raise UserError("the VM does not run", "gitguard vm up starts it", Exit.SYSTEM)
    not_yet = UserError("the VM is not up yet", "gitguard vm logs -f shows it", Exit.SYSTEM)
    if not (early or os.path.exists(state.ready)):
        raise not_yet
    try:
        resume_if_paused(state)
        port = qmp.ssh_port(state)
    except qmp.NoAnswerError:
        raise not_yet from None
    view = provision.view_of(settings.load(state).project)
    return Guest(keys.Keys(state.path(keys.DIRECTORY)), port, view)


def resume_if_paused(state: State) -> None:
    """Let a VM go on that QEMU has paused when the host's disk was full, if there is room again.

    Raises UserError if there is none, NoAnswerError.
    """
    if qmp.status(state) != qmp.IO_ERROR:
        return
    free = shutil.disk_usage(state.directory).free
    if free < MIN_FREE_TO_RESUME:
        raise UserError(f"the VM is paused: {DISK_IS_FULL}", code=Exit.SYSTEM)
    print("the VM was paused, as its disk could not be written: it goes on", file=sys.stderr)
    qmp.resume(state)


def session_pid(state: State) -> int | None:
    """Return the process id of the `vm up` that the VM belongs to; None if it is gone."""
    if not is_held(state.session_lock):
        return None
    try:
        with open(state.session_lock) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None  # it has just begun, or has just ended


def stop(state: State) -> None:
    """Stop the VM and return when nothing of it runs any more. UserError if that fails."""
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
            f"the VM does not stop (process {pid or 'unknown'})", "end that process", Exit.SYSTEM
        )


def stop_orphan(state: State) -> bool:
    """Stop a QEMU whose `vm up` is gone; return whether nothing holds the lock any more."""
    with suppress(qmp.NoAnswerError):
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


def take_lock(state: State) -> int:
    """Take the VM's lock for a new start; a QEMU that was left alone is ended before. UserError."""
    fd = take(state.lock)
    if fd is None:
        print("the VM was left running by a command that was killed: stopping it", file=sys.stderr)
        stop_orphan(state)
        fd = take(state.lock)
    if fd is None:
        raise UserError("another process holds the VM", f"fuser {state.lock} names it", Exit.SYSTEM)
    return fd


def _await_free(limit: float, *locks: str) -> bool:
    """Return whether the locks are free within ``limit`` seconds, by polling."""
    deadline = time.monotonic() + limit
    while any(is_held(lock) for lock in locks):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def _holders(lock: str) -> list[int]:
    """Return the QEMUs that have the lock open, also those that are stopped. Linux only."""
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


def reset(state: State) -> None:
    """Delete the VM. Raises UserError if it runs, OSError."""
    session = take(state.session_lock)
    lock = take(state.lock)
    try:
        if session is None or lock is None:
            raise UserError("the VM runs", "gitguard vm stop first", Exit.SYSTEM)
        remove(state)
    finally:
        for fd in (session, lock):
            if fd is not None:
                os.close(fd)
