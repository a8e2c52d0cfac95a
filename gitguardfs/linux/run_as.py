"""Runs a function as another user in a child process; returns its result or raises its error.

The child first gives up root for good. Its only descriptor is the socket for its answer. Other
processes of the user can send it signals. So an answer counts only if the child was never stopped,
and ended by itself with the exit status that fits the answer. The user's processes can neither
trace the child nor take its socket: it is not dumpable (ptrace(2)).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EAGAIN, EFBIG, EMFILE, ENFILE, ENOMEM, EPERM
from typing import Any

LIMIT = 15.0
"""Seconds after which a child counts as hung; a busy daemon answers within one second."""
ENDING_LIMIT = 1.0
"""Seconds that a hung child gets to undo its change and to end."""
ANSWER_BYTES = 1 << 20
"""The longest answer that is accepted."""
KINDS = (
    "returned",
    "oserror",
    "setup failed",
    "undo failed",
    "switch failed",
    "no answer",
    "failed",
)
"""Kinds of answers; the exit status of a child is its answer's position here, from 1."""
ANSWER_FD = 3
"""The child's end of the socket."""
SHORTAGES = frozenset({EAGAIN, EFBIG, EMFILE, ENFILE, ENOMEM})
"""Errnos that prove nothing: other processes of the user can limit a child (prlimit(2))."""
REQUEST = b"?"
"""A child sends this when it waits for its parent (``ask_parent``); no answer begins so."""
SUID_DUMPABLE = "/proc/sys/fs/suid_dumpable"
"""At 1, a process that gives up root can be traced for a moment (proc_sys_fs(5))."""


@dataclass(frozen=True)
class User:
    """The user to run as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    has_account: bool = True


class NoAnswer(Exception):  # noqa: N818  # what happened
    """The child was stopped, killed, or died without an answer that counts."""


class Hung(NoAnswer):
    """The child gave no answer in time, although no process had stopped it."""


class SwitchUserFailed(Exception):  # noqa: N818  # what happened
    """The child could not switch to the user, and did not call the function."""


class SetupFailed(Exception):  # noqa: N818  # what happened
    """A preparing step failed."""


class UndoFailed(Exception):  # noqa: N818  # what happened
    """A change could not be undone; the text says what is left, and where."""


@contextmanager
def preparing() -> Iterator[None]:
    """Mark preparing steps: their OSError becomes SetupFailed, except for SHORTAGES."""
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise SetupFailed(str(error)) from None


@contextmanager
def undoing(undo: Callable[[], object], what: str) -> Iterator[None]:
    """Run the body, then ``undo`` at once, with signals blocked. Raises UndoFailed."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
        try:
            undo()
        except OSError as error:
            raise UndoFailed(f"{what}: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_as(
    function: Callable[..., Any],
    *arguments: Any,
    user: User | None = None,
    on_request: Callable[[int], None] | None = None,
    limit: float = LIMIT,
) -> Any:
    """Call ``function`` in a child process, as ``user`` if one is given.

    Returns the function's result, which must be JSON. Raises its OSError, SetupFailed or
    UndoFailed; Hung after ``limit`` seconds; NoAnswer if the child did not end by itself;
    SwitchUserFailed if it cannot switch to ``user``.

    ``on_request`` gets the child's pid when the child calls ``ask_parent``; its OSError becomes
    NoAnswer.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _child(theirs.fileno(), lambda: function(*arguments), user)
    theirs.close()
    try:
        data = _read(ours, pid, on_request, time.monotonic() + limit)
    except BaseException:
        _stop(pid)
        raise
    finally:
        ours.close()  # the child waits for this: once it has ended, a stop could not be seen
    return _answer(data, _stop(pid, LIMIT))


def _child(
    answer: int,
    call: Callable[[], object],
    user: User | None,
) -> None:  # pragma: no cover - another process
    status = 0
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(answer, ANSWER_FD, inheritable=False)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.closerange(ANSWER_FD + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir("/")
        os.umask(0o022)
        outcome = _outcome(call, user)
        _write(ANSWER_FD, json.dumps(outcome).encode())
        with socket.socket(fileno=ANSWER_FD) as sender:
            sender.shutdown(socket.SHUT_WR)
            sender.recv(1)
        status = KINDS.index(str(outcome[0])) + 1
    finally:
        os._exit(status)


def _outcome(call: Callable[[], object], user: User | None) -> list[object]:
    try:
        if user is not None:
            try:
                switch_user(user)
            except OSError as error:
                return ["switch failed", f"switching to {user.name}: {error.strerror}"]
        return ["returned", call()]
    except OSError as error:
        if error.errno in SHORTAGES:
            return ["no answer", f"its process could not go on: {error.strerror}"]
        return ["oserror", error.errno or 0, error.strerror or str(error)]
    except MemoryError:
        return ["no answer", "its process could not go on: no memory"]
    except SetupFailed as error:
        return ["setup failed", str(error)]
    except UndoFailed as error:
        return ["undo failed", str(error)]
    except NoAnswer as error:
        return ["no answer", str(error)]
    except BaseException:
        return ["failed", traceback.format_exc()]


def switch_user(user: User) -> None:
    """Switch to ``user`` for good, untraceable by that user. Raises OSError if not allowed.

    When a process changes its user, the kernel sets its dumpable flag to SUID_DUMPABLE. With 0
    and 2 only root can trace it (proc(5), PR_SET_DUMPABLE in prctl(2)).
    """
    if os.geteuid() != 0 and os.geteuid() == user.uid:
        return
    with open(SUID_DUMPABLE) as file:
        if file.read().strip() == "1":
            raise PermissionError(EPERM, "the user could trace it, set fs.suid_dumpable to 0")
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


def ask_parent() -> None:
    """Let the parent process call ``on_request``, and wait for that. Called by the function."""
    os.write(ANSWER_FD, REQUEST)
    os.read(ANSWER_FD, 1)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _read(
    connection: socket.socket,
    pid: int,
    on_request: Callable[[int], None] | None,
    deadline: float,
) -> bytes:
    """Return the child's answer. Raises NoAnswer, or Hung at the deadline."""
    data = b""
    while len(data) <= ANSWER_BYTES:
        patience = max(0.0, deadline - time.monotonic())
        if not select.select([connection], [], [], patience)[0]:
            _check_never_stopped(pid)
            raise Hung("no answer in time")
        try:
            chunk = connection.recv(1 << 16)
            if on_request is not None and data + chunk == REQUEST:
                on_request(pid)
                connection.send(b"!")
                continue
        except OSError as error:
            raise NoAnswer(f"its process could not go on: {error.strerror}") from None
        if not chunk:
            _check_never_stopped(pid)
            return data
        data += chunk
    raise NoAnswer("the answer is too long")


def _check_never_stopped(pid: int) -> None:
    """Raise NoAnswer if a child was ever stopped (SIGSTOP, a tracer), or has ended."""
    changes = os.WEXITED | os.WSTOPPED | os.WCONTINUED
    change = os.waitid(os.P_PID, pid, changes | os.WNOHANG | os.WNOWAIT)
    if change is None:
        return
    if change.si_code in (os.CLD_STOPPED, os.CLD_CONTINUED, os.CLD_TRAPPED):
        raise NoAnswer("another process stopped its process meanwhile")
    raise NoAnswer("its process ended without an answer, or was killed")


def _stop(pid: int, patience: float = 0.0) -> int:
    """Wait ``patience`` seconds for a child to end, then end it and its process group.

    Returns its exit status; -1 if it was killed.
    """
    ended = _wait(pid, patience)
    if ended is None:
        _signal(pid, signal.SIGTERM)  # not SIGKILL: a step that must be undone blocks SIGTERM
        _signal(pid, signal.SIGCONT)
        ended = _wait(pid, ENDING_LIMIT)
    _signal(pid, signal.SIGKILL)
    # A child in an uninterruptible wait is left to init rather than waited for.
    if ended is not None or _wait(pid, ENDING_LIMIT) is not None:
        os.waitpid(pid, 0)
    return ended.si_status if ended is not None and ended.si_code == os.CLD_EXITED else -1


def _wait(pid: int, patience: float) -> os.waitid_result | None:
    """Return how a child ended, without reaping it; None if it still runs."""
    deadline = time.monotonic() + patience
    while (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    return ended


def _signal(pid: int, number: signal.Signals) -> None:
    for send in (os.killpg, os.kill):  # its process group; the child alone before its setsid
        with suppress(ProcessLookupError, PermissionError):
            send(pid, number)
            return


def _answer(data: bytes, status: int) -> Any:
    """Return the result in an answer, or raise its error.

    Raises NoAnswer if there is no answer, or the exit status does not fit it.
    """
    try:
        kind, *rest = json.loads(data)
        if KINDS.index(kind) + 1 != status:
            raise ValueError
        if kind == "returned":
            return rest[0]
        if kind == "oserror":
            raise OSError(int(rest[0]), str(rest[1]))
        text = str(rest[0])
    except (ValueError, TypeError, IndexError):
        raise NoAnswer("its process ended without an answer, or was killed") from None
    if kind == "switch failed":
        raise SwitchUserFailed(text)
    if kind == "setup failed":
        raise SetupFailed(text)
    if kind == "undo failed":
        raise UndoFailed(text)
    if kind == "no answer":
        raise NoAnswer(text)
    raise RuntimeError(text)
