"""Run a command in mount and process namespaces of its own; all its processes end with it.

    python tests/support/isolated.py COMMAND [ARGUMENT ...]

Its mounts are invisible outside and go with its last process. All its processes, daemons
included, end with it, and it ends with the process that runs this, even if that is killed.
Imports nothing of the project, since it also starts the interpreters of the test workers.
"""

import ctypes
import os
import select
import signal
import sys
from collections.abc import Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x4000, 0x40000, 2, 4, 8
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AWAITED = (*FORWARDED, signal.SIGCHLD)

_libc = ctypes.CDLL(None, use_errno=True)


def private_mounts() -> None:
    """Give the calling process a mount namespace of its own (unshare(2)). Raises OSError."""
    _check(_libc.unshare(CLONE_NEWNS))
    _mount(b"none", b"/", None, MS_REC | MS_PRIVATE)


def run(command: Sequence[str]) -> int:
    """Run a command isolated and return its exit status, 128 + N if signal N ended it.

    Signals that ask to end are passed on to it. Raises OSError without the right to isolate.
    """
    alive, ours = os.pipe()
    private_mounts()
    _check(_libc.unshare(CLONE_NEWPID))
    # Blocked from here on, and taken by sigwait: a handler of Python's that comes between its last
    # check and a system call would run only when that returns.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    child = os.fork()
    if child == 0:
        os.close(ours)
        _init(command, alive)
    os.close(alive)
    status = _wait_for(child)
    os.close(ours)
    return status


def _init(command: Sequence[str], parent: int) -> None:
    """Be the first process of the namespace: reap what is orphaned, end with the command."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([parent], [], [], 0)[0]:  # its other end is closed: the parent is gone
        os._exit(1)
    os.close(parent)
    _mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        try:
            os.execvp(command[0], list(command))
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    os._exit(_wait_for(program))


def _wait_for(child: int) -> int:
    """Pass on signals and reap processes until ``child`` ends; return its exit status."""
    while True:
        number = signal.sigwait(AWAITED)
        if number != signal.SIGCHLD:
            # A terminal's signal has reached the whole group already; one more does no harm.
            os.kill(child, number)
            continue
        pid = -1
        while pid:  # one SIGCHLD can stand for several processes
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def _mount(source: bytes, target: bytes, fstype: bytes | None, flags: int) -> None:
    _check(_libc.mount(source, target, fstype, ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        sys.exit(run(sys.argv[1:]))
    except PermissionError as error:
        sys.exit(f"cannot make mount and process namespaces, which takes root: {error.strerror}")
