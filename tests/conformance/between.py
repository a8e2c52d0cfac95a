"""Between processes: locks, FIFOs, sockets; working directories; ids and umask of each caller."""

import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.conformance.tools import (
    ALICE,
    BOB,
    NOBODY,
    User,
    become_fake_root,
    call,
    calls,
    descriptor,
    equal,
    file,
    outcome,
    run,
)

LIMIT = 60
"""Seconds until a child that hangs is ended by SIGALRM."""


@contextmanager
def child(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` in a process of its own beside the body; it has to succeed."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's is the parent's
        signal.alarm(LIMIT)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        yield
    finally:
        _, status = os.waitpid(pid, 0)
    equal("the child's exit", status, 0)


@contextmanager
def holder(path: str, take: Callable[[int], object]) -> Iterator[None]:
    """Another process that holds a lock on ``path`` while the body runs."""
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()

    def work() -> None:
        os.close(done_write)
        with descriptor(path, os.O_RDWR) as fd:
            take(fd)
            os.write(ready_write, b"x")
            os.read(done_read, 1)

    with child(work):
        os.close(ready_write)
        equal("the lock is held", os.read(ready_read, 1), b"x")
        try:
            yield
        finally:
            os.close(done_write)
    os.close(ready_read)
    os.close(done_read)


def check_flock(d: str) -> None:
    path = file(f"{d}/file")
    exclusive, shared = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB
    with descriptor(path, os.O_RDWR) as fd:
        with holder(path, lambda other: fcntl.flock(other, exclusive)):
            calls_in_place(fd, (("EAGAIN", exclusive), ("EAGAIN", shared)))
        calls_in_place(fd, (("ok", exclusive), ("ok", fcntl.LOCK_UN)))
        with holder(path, lambda other: fcntl.flock(other, shared)):
            calls_in_place(fd, (("EAGAIN", exclusive), ("ok", shared), ("ok", fcntl.LOCK_UN)))
        with descriptor(path) as second:
            fcntl.flock(fd, exclusive)
            equal("another description", outcome(fcntl.flock, second, exclusive), "EAGAIN")
            copy = os.dup(fd)
            equal("the same description", outcome(fcntl.flock, copy, exclusive), "ok")
            os.close(copy)


def calls_in_place(fd: int, rows: tuple[tuple[str, int], ...]) -> None:
    for want, operation in rows:
        equal(f"flock {operation}", outcome(fcntl.flock, fd, operation), want)


def check_sockets(d: str) -> None:
    os.chdir(d) if len(d) > 90 else None
    path = f"{d}/socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        os.chmod(path, 0o666)

        def talk() -> bytes:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.sendall(b"ping")
                return client.recv(10)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                equal("asked", connection.recv(10), b"ping")
                connection.sendall(b"pong")

        with child(serve):
            equal("another user", run(NOBODY, talk), b"pong")
        os.chmod(path, 0o600)
        equal("no permission", run(NOBODY, outcome, talk), "EACCES")
        os.rename(path, f"{d}/moved")
        os.link(f"{d}/moved", path)
        with child(serve):
            equal("by another name", talk(), b"pong")
    equal("nobody listens", outcome(talk), "ECONNREFUSED")
    with socket.socket(socket.AF_UNIX) as again:
        equal("taken", outcome(again.bind, path), "EADDRINUSE")
    calls(call("ok", os.unlink, path), call("ENOENT", talk))


def check_callers_are_told_apart(d: str) -> None:
    """Requests of several users that interleave keep their own ids, groups and umask."""
    users = (ALICE, BOB, NOBODY, User(65533, 65534), User(1000, 1001, (1000,)))
    go_read, go_write = os.pipe()

    def work(user: User, number: int) -> None:
        def make_files() -> None:
            for each in range(30):
                os.close(
                    os.open(f"{d}/{number}-{each}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
                )
                os.mkdir(f"{d}/{number}-dir-{each}", 0o777)

        os.close(go_write)
        os.read(go_read, 1)
        run(user, make_files, umask=number)

    def all_of(index: int) -> None:
        if index == len(users):
            os.close(go_write)
            return
        with child(lambda: work(users[index], index)):
            all_of(index + 1)

    all_of(0)
    os.close(go_read)
    for number, user in enumerate(users):
        for each in range(30):
            for name, mode in ((f"{number}-{each}", 0o666), (f"{number}-dir-{each}", 0o777)):
                found = os.lstat(f"{d}/{name}")
                got = (found.st_uid, found.st_gid, found.st_mode & 0o7777)
                equal(name, got, (user.uid, user.gid, mode & ~number))


def check_user_namespaces(d: str) -> None:
    """A user who is root in a namespace of its own gains nothing."""
    path = file(f"{d}/file", 0o600, data=b"secret")
    mine = file(f"{d}/mine", 0o600, ALICE)

    def work() -> list[str]:
        become_fake_root(1000, 1000)
        return [
            outcome(os.open, path, os.O_RDONLY),
            outcome(os.chmod, path, 0o666),
            outcome(os.chown, path, 0, 0),
            outcome(os.open, mine, os.O_RDWR),
            outcome(os.chown, mine, 0, 0),
            outcome(os.chmod, mine, 0o640),
        ]

    got = run(ALICE, work)
    equal("fake root", got, ["EACCES", "EPERM", "EPERM", "ok", "ok", "ok"])
