"""The connection to /dev/fuse: options of a mount, and replies that the kernel does not take."""

import errno
import os
from typing import Any

import pytest

from gitguardfs.linux import syscalls
from gitguardfs.sessions.base import MountFailed
from gitguardfs.sessions.kernel_session import connection as module
from gitguardfs.sessions.kernel_session.connection import Connection
from tests.support.kernel_client import checked

REPLY = [b"\x11\0\0\0" + bytes(4) + b"\x02" + bytes(7), b"x"]


class Refusing:
    """A kernel that refuses data with an errno, and takes errors unless ``takes_none``."""

    def __init__(self, number: int, *, takes_none: bool = False) -> None:
        self.number = number
        self.takes_none = takes_none
        self.taken: list[bytes] = []

    def writev(self, _fd: int, _parts: object) -> None:
        raise OSError(self.number, os.strerror(self.number))

    def write(self, _fd: int, reply: bytes) -> None:
        if self.takes_none or len(reply) > 16:
            self.writev(0, reply)
        self.taken.append(reply)


def refusing(monkeypatch: pytest.MonkeyPatch, number: int, **how: Any) -> Refusing:
    kernel = Refusing(number, **how)
    monkeypatch.setattr(os, "write", kernel.write)
    monkeypatch.setattr(os, "writev", kernel.writev)
    return kernel


@pytest.mark.parametrize("reply", [REPLY, b"".join(REPLY)])
@pytest.mark.parametrize("has_log", [True, False])
def test_a_reply_that_the_kernel_does_not_take_is_eio(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reply: Any, has_log: bool
) -> None:
    """The caller would hang."""
    if not has_log:
        monkeypatch.setattr(module.log, "error", lambda *_: [][0])
    with monkeypatch.context() as patch:
        kernel = refusing(patch, errno.EINVAL)
        connection = Connection(shows_set_id=False)
        connection.fd = 1000
        connection.send(2, reply)
    assert [checked(each) for each in kernel.taken] == [(2, errno.EIO, b"")]
    assert ("does not take" in caplog.text) == has_log


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV, errno.ECONNABORTED])
def test_a_reply_that_nobody_waits_for_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    with monkeypatch.context() as patch:
        kernel = refusing(patch, number)
        connection = Connection(shows_set_id=False)
        connection.fd = 1000
        connection.send(2, REPLY)
    assert not kernel.taken
    assert not caplog.records


def test_a_kernel_that_takes_nothing_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        refusing(patch, errno.EINVAL, takes_none=True)
        connection = Connection(shows_set_id=False)
        connection.fd = 1000
        connection.send(2, REPLY)
    closed = Connection(shows_set_id=False)
    closed.send(2, REPLY)
    closed.send(2, b"".join(REPLY))
    closed.close()


Call = tuple[str, str, str, int, list[str]]


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []

    def mount(source: str, target: str, fstype: str, flags: int, data: str) -> None:
        calls.append((source, target, fstype, flags, data.split(",")))

    monkeypatch.setattr(module, "FUSE_DEVICE", os.devnull)
    monkeypatch.setattr(syscalls, "mount", mount)
    return calls


def test_options_become_flags_and_the_rest_is_the_kernels(mounts: list[Call]) -> None:
    connection = Connection(shows_set_id=False)
    connection.mount(5, {"fsname=/a b", "subtype=x", "ro", "noexec", "allow_other", "debug"})
    ((source, target, fstype, flags, data),) = mounts
    assert (source, target) == ("/a b", "/proc/self/fd/5")
    assert fstype == "fuse.gitguardfs"
    assert flags == (
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_RDONLY | syscalls.MS_NOEXEC
    )
    assert data == [
        "allow_other", f"fd={connection.fd}", "rootmode=40000", "user_id=0", "group_id=0"
    ]  # fmt: skip
    assert not os.get_inheritable(connection.fd)
    connection.close()
    assert connection.fd == -1


def test_devices_are_off_unless_asked_for_and_suid_always(mounts: list[Call]) -> None:
    connection = Connection(shows_set_id=False)
    connection.mount(5, {"dev", "suid"})
    assert mounts[0][3] == syscalls.MS_NOSUID
    connection.close()


def test_a_mount_that_fails_leaves_no_descriptor(
    mounts: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(syscalls, "mount", fails)
    before = os.listdir("/proc/self/fd")
    connection = Connection(shows_set_id=False)
    with pytest.raises(MountFailed, match="not permitted"):
        connection.mount(5, set())
    assert connection.fd == -1
    assert len(os.listdir("/proc/self/fd")) == len(before)
