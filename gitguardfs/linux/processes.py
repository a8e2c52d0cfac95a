"""Processes that hold something of a mount, which covering the mount does not take from them.

Whoever has its working directory, its root directory, a descriptor or a mapped file there goes on
working below it by relative paths, whatever is mounted on top later. The kernel tells for each
which mount it is of (proc(5): fdinfo, map_files).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

PROC = "/proc"
PASSES = 50
"""How often to look for processes that were started during the look before."""


@dataclass(frozen=True)
class Holder:
    """A process that is not root's, and what it holds of a mount."""

    pid: int
    uid: int
    name: bytes
    """What it calls itself (comm): any bytes but NUL, so escape it before it is shown."""
    held: tuple[str, ...]
    """Working directory, root directory, descriptor N, mapped file: in this order, each once."""


def holders(mount_id: int, path: bytes, proc: str = PROC) -> list[Holder]:
    """Return the processes that hold something at or below ``path`` of the mount ``mount_id``.

    ``path`` is where that mount has it, whatever is mounted on top. To be called by root; left out
    are its own processes, those whose user ids are all 0 here. ``proc`` lists the processes.
    Processes that end meanwhile are left out, and those that they have started are looked at.
    Raises OSError if one cannot be looked at, EAGAIN if new ones come all the time.
    """
    found: list[Holder] = []
    seen: set[int] = set()
    for _ in range(PASSES):
        new = set(map(int, filter(str.isdecimal, os.listdir(proc)))) - seen
        if not new:
            return found
        found += filter(None, (_holder(proc, pid, mount_id, path) for pid in sorted(new)))
        seen |= new
    raise OSError(errno.EAGAIN, "processes come and go too fast to be looked through")


def _holder(proc: str, pid: int, mount_id: int, path: bytes) -> Holder | None:
    try:
        uid, name = _identity(f"{proc}/{pid}")
        held = () if uid == 0 else tuple(dict.fromkeys(_held(f"{proc}/{pid}", mount_id, path)))
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended
    return Holder(pid, uid, name, held) if held else None


def user_ids(status: bytes) -> tuple[int, ...]:
    """Return the real, effective, saved and file system uid in a /proc/PID/status.

    Bytes, and lines that end with a newline only: the name of the process comes first, is chosen by
    its user, and may hold all else that Python takes for the end of a line.
    """
    line = next(line for line in status.split(b"\n") if line.startswith(b"Uid:"))
    return tuple(map(int, line.split()[1:]))


def _identity(process: str) -> tuple[int, bytes]:
    """Return one of its user ids that is not 0, or 0 if there is none, and its name."""
    with open(f"{process}/status", "rb") as file:
        ids = user_ids(file.read())
    with open(f"{process}/comm", "rb") as file:
        name = file.read().removesuffix(b"\n")
    return next((uid for uid in ids if uid != 0), 0), name


def _held(process: str, mount_id: int, path: bytes) -> Iterator[str]:
    # Threads may have directories and descriptors of their own (unshare(2), CLONE_FS).
    for task in os.listdir(f"{process}/task"):
        try:
            yield from _held_by_task(f"{process}/task/{task}", mount_id, path)
        except (FileNotFoundError, ProcessLookupError):
            continue
    for link in _mapped(process, path):
        if _mount_of(link) == mount_id:
            yield "a mapped file"


def _held_by_task(task: str, mount_id: int, path: bytes) -> Iterator[str]:
    for name, what in (("cwd", "its working directory"), ("root", "its root directory")):
        link = f"{task}/{name}"
        if _is_below(link, path) and _mount_of(link) == mount_id:
            yield what
    for number in sorted(map(int, os.listdir(f"{task}/fd"))):
        try:
            if _is_below(f"{task}/fd/{number}", path):
                with open(f"{task}/fdinfo/{number}", "rb") as file:
                    if _mount_id(file.read()) == mount_id:
                        yield f"descriptor {number}"
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed meanwhile


def _mapped(process: str, path: bytes) -> Iterator[str]:
    """Yield what leads to the mapped files whose path is below ``path``."""
    with open(f"{process}/maps", "rb") as file:
        for line in file:
            addresses, _, rest = line.rstrip(b"\n").partition(b" ")
            # In maps(5) a newline in a path is escaped, and nothing else.
            fields = rest.split(None, 4)
            if len(fields) == 5 and _is_at(fields[4].replace(rb"\012", b"\n"), path):
                first, _, last = addresses.partition(b"-")
                # map_files has no leading zeros (proc(5)).
                yield f"{process}/map_files/{int(first, 16):x}-{int(last, 16):x}"


def _is_below(link: str, path: bytes) -> bool:
    # Of the path first: opening what is not in question could wait for its server.
    return _is_at(os.readlink(os.fsencode(link)), path)


def _is_at(place: bytes, path: bytes) -> bool:
    inside = path if path.endswith(b"/") else path + b"/"
    return place.removesuffix(b" (deleted)") == path or place.startswith(inside)


def _mount_of(link: str) -> int | None:
    """Return the id of the mount that a link in /proc/PID leads to; None if it is gone."""
    try:
        fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        with open(f"{PROC}/self/fdinfo/{fd}", "rb") as file:
            return _mount_id(file.read())
    finally:
        os.close(fd)


def _mount_id(fdinfo: bytes) -> int:
    line = next(line for line in fdinfo.splitlines() if line.startswith(b"mnt_id:"))
    return int(line.split()[1])
