"""Readers of a process's files in /proc (proc(5)).

A process is given by its pid, as text, or by its directory in a mount of proc. A process chooses
its name and its arguments: they are bytes until they are compared or shown.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import AnyStr

from gitguardfs.base.errors import os_error

PROC = "/proc"


@dataclass(frozen=True)
class FdInfo:
    """The fields of an fdinfo file that are used here."""

    mnt_id: int
    """The mnt_id of its mount; 0 for an object that is mounted nowhere, such as a memfd."""
    flags: int = 0
    """The O_* flags with which it was opened."""
    fuse_connection: int | None = None
    """The minor device number of the FUSE mount that it serves; None before Linux 6.17."""
    scm_fds: int = 0
    """How many sent descriptors wait in this socket (SCM_RIGHTS)."""


def fdinfo(fd: int | str, process: str = f"{PROC}/self", proc: int | None = None) -> FdInfo:
    """Return the fdinfo of a descriptor of a process.

    ``process`` is its directory in /proc; ``proc`` is a descriptor of a /proc that ``process`` is
    relative to. Raises OSError.
    """
    opened = os.open(f"{process}/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    with open(opened, "rb") as file:
        return parse_fdinfo(file.read())


def parse_fdinfo(text: bytes) -> FdInfo:
    """Parse the text of an fdinfo file. Raises OSError(EBADF) if it has no mnt_id."""
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


def link_of(path: AnyStr) -> AnyStr | None:
    """Return what a link in /proc leads to; None if that is longer than a path can be.

    Any user can make directories so deep, and open them. Raises OSError.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def pids(proc: str = PROC) -> Iterator[str]:
    """Yield the pid of each process that ``proc`` lists, as text."""
    return filter(str.isdecimal, os.listdir(proc))


def user_ids(status: bytes) -> tuple[int, ...]:
    """Return the real, effective, saved and file system uid in a /proc/PID/status.

    The text stays bytes and is split at newlines only. Its first line is the name of the process.
    The process's user chose that, maybe with other characters at which splitlines() splits.
    """
    line = next(line for line in status.split(b"\n") if line.startswith(b"Uid:"))
    return tuple(map(int, line.split()[1:]))


def uids_of(process: str) -> tuple[int, ...]:
    """Return the real, effective, saved and file system uid of a process. Raises OSError."""
    return user_ids(status_of(process))


def status_of(process: str) -> bytes:
    """Return the text of a process's status file. Raises OSError."""
    with open(_file(process, "status"), "rb") as file:
        return file.read()


def name_of(process: str) -> bytes:
    """Return the name of a process (comm): any bytes that its user chose. Raises OSError."""
    with open(_file(process, "comm"), "rb") as file:
        return file.read().removesuffix(b"\n")


def arguments_of(process: str) -> tuple[str, ...]:
    """Return the arguments of a process, the program first. Raises OSError."""
    with open(_file(process, "cmdline"), "rb") as file:
        return parse_arguments(file.read())


def parse_arguments(cmdline: bytes) -> tuple[str, ...]:
    """Return the arguments in a /proc/PID/cmdline, with or without a NUL at the end."""
    return tuple(os.fsdecode(word) for word in cmdline.removesuffix(b"\0").split(b"\0") if cmdline)


def start_of(process: str) -> int:
    """Return a process's start, in ticks since boot (proc_pid_stat(5)). Raises OSError."""
    with open(_file(process, "stat"), "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _file(process: str, name: str) -> str:
    return os.path.join(PROC, process, name)  # PROC is dropped before an absolute path
