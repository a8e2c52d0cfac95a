"""Starts gitguardfs by forking a process that has imported it, which takes a tenth of the time.

Python's imports take two thirds of the time of a mount. The child goes on as the program itself
does: with its own arguments, environment, user and descriptors, in the same namespaces.
tests/mount/mounting/test_lifecycle.py and others start the real command.
"""

import atexit
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
REQUEST_SIZE = 1 << 20
PR_SET_DUMPABLE = 4
ROOM = "-" * 8192
"""An argument whose memory the children use for their own arguments."""


class Process:
    """A process that another one has forked, with what tests use of subprocess.Popen."""

    def __init__(self, status: int) -> None:
        """``status`` is a pipe from which its pid comes, and at its end its exit status."""
        self._status = os.fdopen(status, "rb", buffering=0)
        self.returncode: int | None = None
        line = self._status.readline()
        assert line, "gitguardfs could not be forked"
        self.pid = int(line)

    def poll(self) -> int | None:
        """Return the exit status, or -N if signal N ended it; None as long as it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status. Raises subprocess.TimeoutExpired."""
        if (status := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired("gitguardfs", timeout or 0)
        return status

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Starter:
    """The process that has imported gitguardfs, as its client sees it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_SIZE)
        self.surroundings = _surroundings()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno()), ROOM],
                cwd=REPOSITORY, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        if self._process.poll() is None:  # None too in a child, whose process it is not
            self._process.kill()
            self._process.wait()

    def start(
        self,
        arguments: Sequence[str | Path],
        *,
        log: int,
        env: Mapping[str, str],
        cwd: Path,
        uid: int = 0,
        limit_nofile: int | None = None,
    ) -> Process:
        """Fork ``gitguardfs ARGUMENTS``; ``log`` is where its output goes."""
        ours, theirs = os.pipe()
        request = {
            "arguments": [str(each) for each in arguments], "env": dict(env), "cwd": str(cwd),
            "uid": uid, "limit": limit_nofile, "umask": _umask(),
        }  # fmt: skip
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [log, theirs])
        finally:
            os.close(theirs)
        return Process(ours)


_starters: list[Starter] = []


def starter() -> Starter:
    """Return the one for this Python in these namespaces, started when it is first asked for."""
    here = _surroundings()
    for known in _starters:
        if known.surroundings == here:
            return known
    _starters.append(Starter())
    return _starters[-1]


def _surroundings() -> tuple[str, ...]:
    spaces = (os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "user"))
    return (sys.executable, *spaces)


def _umask() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("\nUmask:")[2].split()[0], 8)


# ------------------------------------------------------------------- in the process that forks


def serve(requests: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Fork for each request and report each child's end, until the last client is gone.

    Returns None then, and in each child its request and the descriptor for its output.
    """
    import gitguardfs.commands.gitguardfs
    import gitguardfs.mounting.run
    import gitguardfs.sessions.kernel_session.session
    import gitguardfs.sessions.pyfuse3_session.session  # noqa: F401

    gc.collect()  # the children's own collection then leaves the shared memory as it is
    gc.freeze()
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}
    """By pidfd: the child and the pipe for its exit status."""
    while True:
        for ready, _ in poll.poll():
            if ready == requests.fileno():
                data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_SIZE, 2)
                if not data:
                    return None
                log, status = descriptors
                if (pid := os.fork()) == 0:
                    return json.loads(data), log
                os.close(log)
                os.write(status, b"%d\n" % pid)
                pidfd = os.pidfd_open(pid)
                children[pidfd] = pid, status
                poll.register(pidfd, select.POLLIN)
            else:
                pid, status = children.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(status, code)


def _tell(status: int, code: int) -> None:
    with suppress(BrokenPipeError):  # its client has closed the pipe
        os.write(status, b"%d\n" % code)
    os.close(status)


def go_on_as(request: dict[str, Any], log: int) -> None:
    """Become ``gitguardfs ARGUMENTS``; does not return."""
    from gitguardfs.commands.gitguardfs import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    sys.argv = ["gitguardfs", *request["arguments"]]
    _show_arguments([sys.executable, "-m", *sys.argv])
    os.environ.clear()
    os.environ.update(request["env"])
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    if request["limit"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["limit"],) * 2)
    if uid := request["uid"]:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after execve(2)
    try:
        main()
    except SystemExit as end:
        # Without Python's own end, which would write to all memory that the processes share.
        atexit._run_exitfuncs()  # logging's writes what it has kept
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


def _show_arguments(words: Sequence[str]) -> None:
    """Have /proc/PID/cmdline show these words, by which tools recognise the daemon (proc(5))."""
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, without pid and name
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text[: end - start - 1], min(len(text), end - start - 1))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _requests = socket.socket(fileno=int(sys.argv[1]))
    if (_child := serve(_requests)) is not None:
        _requests.detach()
        go_on_as(*_child)
