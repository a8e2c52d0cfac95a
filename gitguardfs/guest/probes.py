"""Try something as another user, in a child process, and bring back what came of it.

The child gives up root before it does anything, for good, and holds no descriptor but the pipe
for its answer. That answer is JSON: whoever runs as the same user may tamper with the child, so
what it says is data, never code.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gitguardfs.errors import Exit, UserError
from gitguardfs.guest import probes_calls

LIMIT = 15.0
"""Seconds after which a child is taken to hang; a busy daemon answers within one."""
ANSWER_BYTES = 1 << 20
"""An answer that is longer is not one of ours."""

LAST_ID = (1 << 32) - 2
"""The kernel's ids have 32 bits, and the last one means "leave it as it is"."""

Groups = Callable[[str, int], Sequence[int]]
"""The ids of a user's groups, from the user's name and own group (getgrouplist(3))."""


@dataclass(frozen=True)
class User:
    """Whom to become."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    has_account: bool = True


class Lost(Exception):  # noqa: N818  # what happened
    """The child hung, or died without an answer."""


class NotBecome(Exception):  # noqa: N818  # what happened
    """The child could not become the user, so nothing was tried, and nothing is known."""


class Unprepared(Exception):  # noqa: N818  # what happened
    """A step before the one that matters did not work, so nothing was tried."""


class LeftBehind(Exception):  # noqa: N818  # what happened
    """What was tried worked, and could not be undone; says what is where."""


def find_user(name: str, groups_of: Groups = os.getgrouplist) -> User:
    """A user by name or number; UserError if there is none of that name."""
    is_number = name.isascii() and name.isdigit()
    digits = name.lstrip("0")
    if is_number and (len(digits) > len(str(LAST_ID)) or int(digits or "0") > LAST_ID):
        raise UserError(f"no user can have the number {name}", f"0 to {LAST_ID}")
    try:
        entry = pwd.getpwuid(int(name)) if is_number else pwd.getpwnam(name)
        uid, gid, name = entry.pw_uid, entry.pw_gid, entry.pw_name
    except KeyError:
        if not is_number:
            raise UserError(f"no such user: {name}", code=Exit.SYSTEM) from None
        uid = gid = int(name)
        return User(uid, gid, tuple(groups_of(name, gid)), name, has_account=False)
    return User(uid, gid, tuple(groups_of(name, gid)), name)


@contextmanager
def preparing() -> Iterator[None]:
    """Steps that nothing should stand against; raises Unprepared."""
    try:
        yield
    except OSError as error:
        raise Unprepared(str(error)) from None


@contextmanager
def undoing(undo: Callable[[], object], what: str) -> Iterator[None]:
    """Do the body, then ``undo`` it at once, whatever signal comes; raises LeftBehind."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
        try:
            undo()
        except OSError as error:
            raise LeftBehind(f"{what}: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def apart(
    function: Callable[..., Any],
    *arguments: Any,
    user: User | None = None,
    fake_root: bool = False,
    root: str | None = None,
    limit: float = LIMIT,
) -> Any:
    """Call ``function`` in a child process, as ``user`` if one is given.

    Returns what it returned, which must be JSON's; raises the OSError, Unprepared or LeftBehind
    that it raised, Lost after ``limit`` seconds, NotBecome if it cannot become ``user``.
    ``fake_root`` makes the user root of new user and mount namespaces (``unshare -Urm``);
    Unprepared where users may not have those. ``root`` is the directory that the child has for
    its root, entered before root is given up; Unprepared if that fails.
    """
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(writable, lambda: function(*arguments), user, fake_root, root)
    os.close(writable)
    try:
        data = _read(readable, time.monotonic() + limit)
    finally:
        os.close(readable)
        _end(pid)
    return _answer(data)


def _child(
    writable: int,
    call: Callable[[], object],
    user: User | None,
    fake_root: bool,
    root: str | None,
) -> None:  # pragma: no cover - another process
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        answer = os.dup2(writable, 3) if writable != 3 else 3
        os.set_inheritable(answer, False)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        os.chdir("/")
        os.umask(0o022)
        outcome = _outcome(call, user, fake_root, root)
        _write(answer, json.dumps(outcome).encode())
    finally:
        os._exit(0)


def _outcome(
    call: Callable[[], object], user: User | None, fake_root: bool, root: str | None
) -> list[object]:
    try:
        if root is not None:
            with preparing():
                os.chroot(root)
                os.chdir("/")
        if user is not None:
            try:
                become(user)
            except OSError as error:
                return ["become", f"becoming {user.name}: {error.strerror}"]
        if fake_root:
            try:
                probes_calls.become_fake_root()
            except OSError as error:
                raise Unprepared(f"this user gets no user namespace: {error.strerror}") from None
        return ["returned", call()]
    except OSError as error:
        return ["oserror", error.errno or 0, error.strerror or str(error)]
    except Unprepared as error:
        return ["unprepared", str(error)]
    except LeftBehind as error:
        return ["left", str(error)]
    except BaseException:
        return ["failed", traceback.format_exc()]


def become(user: User) -> None:
    """Become ``user`` for good; OSError if that is not allowed."""
    if os.geteuid() != 0 and os.geteuid() == user.uid:
        return
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    # Otherwise the process's own /proc is root's, and ways by /proc/self seem to be closed.
    probes_calls.make_dumpable()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _read(descriptor: int, deadline: float) -> bytes:
    data = b""
    while len(data) <= ANSWER_BYTES:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(descriptor, 1 << 16) if ready else b""
        if not ready:
            raise Lost("no answer in time")
        if not chunk:
            return data
        data += chunk
    raise Lost("the answer is too long")


def _end(pid: int) -> None:
    # The answer is read or given up; SIGTERM first: a step that has to be undone blocks it.
    _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + 1.0
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            _signal(pid, signal.SIGKILL)
            _reap(pid, time.monotonic() + 1.0)
            return
        time.sleep(0.001)


def _signal(pid: int, number: signal.Signals) -> None:
    for send in (os.killpg, os.kill):  # what it has started as well; alone before its setsid
        with suppress(ProcessLookupError):
            send(pid, number)
            return


def _reap(pid: int, deadline: float) -> None:
    # A child in an uninterruptible wait is left to init rather than waited for.
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)


def _answer(data: bytes) -> Any:
    try:
        kind, *rest = json.loads(data)
        if kind == "returned":
            return rest[0]
        if kind == "oserror":
            raise OSError(int(rest[0]), str(rest[1]))
        text = str(rest[0])
    except (ValueError, TypeError, IndexError):
        raise Lost("it died without an answer") from None
    if kind == "become":
        raise NotBecome(text)
    if kind == "unprepared":
        raise Unprepared(text)
    if kind == "left":
        raise LeftBehind(text)
    raise RuntimeError(text)
