"""Readers of a process's files in /proc (proc(5)).

A process is given by its pid, as text, or by its directory in a mount of proc. A process chooses
its name and its arguments: they are bytes until they are compared or shown.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import AnyStr

PROC = "/proc"


def link_of(path: AnyStr) -> AnyStr | None:
    """Return the target of a link in /proc; None if it is longer than a path can be.

    Any user can make directories so deep, and open them. Raises OSError.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def held_by(process: str) -> Iterator[tuple[str, str]]:
    """Yield the links in /proc to a process's working and root directories and open files.

    Each comes with its name for a message. Raises OSError.
    """
    # Threads may have directories and descriptors of their own (unshare(2), CLONE_FS).
    for task in os.listdir(f"{process}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield f"{process}/task/{task}/cwd", "its working directory"
            yield f"{process}/task/{task}/root", "its root directory"
            for number in sorted(map(int, os.listdir(f"{process}/task/{task}/fd"))):
                yield f"{process}/task/{task}/fd/{number}", f"descriptor {number}"


def fdinfo_of(link: str) -> dict[bytes, bytes]:
    """Return the fields of a descriptor's fdinfo file, by its link in /proc. Raises OSError."""
    process, _, number = link.rpartition("/fd/")
    with open(f"{process}/fdinfo/{number}", "rb") as file:
        pairs = (line.partition(b":") for line in file)
        return {name: value.strip() for name, _, value in pairs}


def maps_of(process: str) -> tuple[str, list[bytes]]:
    """Return the directory in /proc of a thread with the process's memory, and the lines of maps.

    The first thread has none once it has ended, although the process goes on. Raises OSError.
    """
    for task in os.listdir(f"{process}/task"):
        with (
            suppress(FileNotFoundError, ProcessLookupError),
            open(f"{PROC}/{task}/maps", "rb") as file,
        ):
            if lines := file.readlines():
                return f"{PROC}/{task}", lines
    return process, []


def pids(proc: str = PROC) -> Iterator[str]:
    """Yield the pid of each process that ``proc`` lists, as text."""
    return filter(str.isdecimal, os.listdir(proc))


def tasks() -> Iterator[str]:
    """Yield the directory in /proc of each thread: those of a process may differ in everything."""
    for pid in pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield from (f"{PROC}/{pid}/task/{task}" for task in os.listdir(f"{PROC}/{pid}/task"))


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
        text = file.read()
    return tuple(os.fsdecode(word) for word in text.removesuffix(b"\0").split(b"\0") if text)


def _file(process: str, name: str) -> str:
    return os.path.join(PROC, process, name)  # PROC is dropped before an absolute path
