"""What /proc tells of a process (proc(5)).

A process chooses its name and its arguments: they are bytes until they are compared or shown.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from gitguardfs.errors import os_error

PROC = "/proc"


@dataclass(frozen=True)
class FdInfo:
    """What the kernel tells of a descriptor."""

    mnt_id: int
    """The number of its mount; 0 for what is mounted nowhere, such as a memfd."""
    flags: int = 0
    """O_*, as it was opened."""
    fuse_connection: int | None = None
    """The minor number of the device of the mount that it serves: told from Linux 6.17 on."""
    scm_fds: int = 0
    """How many descriptors wait in this socket."""


def fdinfo(fd: int | str, process: str = f"{PROC}/self", proc: int | None = None) -> FdInfo:
    """Return what the kernel tells of a descriptor of a process.

    ``process`` is its directory in /proc; ``proc`` is a descriptor of a /proc that ``process`` is
    relative to. Raises OSError.
    """
    opened = os.open(f"{process}/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    with open(opened, "rb") as file:
        return parse_fdinfo(file.read())


def parse_fdinfo(text: bytes) -> FdInfo:
    """Return what the text of an fdinfo says. Raises OSError(EBADF) if it names no mount."""
    fields = {
        key: value.split()[0]
        for key, _, value in (line.partition(b":") for line in text.split(b"\n"))
        if value.split()
    }
    if b"mnt_id" not in fields:
        raise os_error(errno.EBADF)
    connection = fields.get(b"fuse_connection")
    return FdInfo(
        int(fields[b"mnt_id"]),
        int(fields.get(b"flags", b"0"), 8),
        int(connection) if connection is not None and connection.isdigit() else None,
        int(fields.get(b"scm_fds", b"0")),
    )


def pids(proc: str = PROC) -> Iterator[str]:
    """Yield the number of each process that ``proc`` lists."""
    return filter(str.isdecimal, os.listdir(proc))


def user_ids(status: bytes) -> tuple[int, ...]:
    """Return the real, effective, saved and file system uid in a /proc/PID/status.

    Bytes, and lines that end with a newline only: the name of the process comes first, is chosen by
    its user, and may hold all else that Python takes for the end of a line.
    """
    line = next(line for line in status.split(b"\n") if line.startswith(b"Uid:"))
    return tuple(map(int, line.split()[1:]))


def uids_of(pid: str) -> tuple[int, ...]:
    """Return the real, effective, saved and file system uid of a process. Raises OSError."""
    with open(f"{PROC}/{pid}/status", "rb") as file:
        return user_ids(file.read())


def arguments_of(pid: str) -> tuple[str, ...]:
    """Return the arguments of a process, the program first. Raises OSError."""
    with open(f"{PROC}/{pid}/cmdline", "rb") as file:
        return parse_arguments(file.read())


def parse_arguments(cmdline: bytes) -> tuple[str, ...]:
    """Return the arguments in a /proc/PID/cmdline; a process may leave out the last NUL."""
    return tuple(os.fsdecode(word) for word in cmdline.removesuffix(b"\0").split(b"\0") if cmdline)


def start_of(pid: str) -> int:
    """Return when a process was started, in ticks since the boot (proc_pid_stat(5)). OSError."""
    with open(f"{PROC}/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
