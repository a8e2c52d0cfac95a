"""What the guards that run really do: their mounts' owners, and their daemons' arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gitguardfs.doctor import run_as
from gitguardfs.errors import Exit, UserError
from gitguardfs.linux import mountinfo, processes
from gitguardfs.linux.mountinfo import Mount
from gitguardfs.mounting.preflight import DEAD, FUSE_DEVICE
from gitguardfs.options.id_maps import parse_maps
from gitguardfs.options.parsing import parse_o, quote_o, read_arguments
from gitguardfs.render import quote

ROOT = b"user_id=0"
"""In the options of a FUSE file system that root mounted; fusermount3 puts the caller's there."""
ANSWER_LIMIT = 30.0
"""Seconds after which a guard is taken to hang; a busy one answers within one."""
_NOT_COMPARED = ("foreground", "debug", "mountpoint")
_DEFAULTS: dict[str, object] = {
    "git": "deny", "xattr": "none", "cache_timeout": 1.0, "seal": True, "read_only": False,
}  # fmt: skip


def foreign() -> frozenset[int]:
    """The numbers of the FUSE mounts that are not root's, whatever they call themselves."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = [line.rstrip(b"\n").partition(b" - ") for line in file]
    found = set()
    for left, _, right in lines:
        kind, _source, options = right.split(b" ")[:3]
        if kind.startswith(b"fuse") and ROOT not in options.split(b","):
            found.add(int(left.split(b" ")[0]))
    return frozenset(found)


def guards() -> list[Mount]:
    """Every gitguardfs of root's that is mounted."""
    others = foreign()
    return [
        m for m in mountinfo.listed() if m.fstype == mountinfo.FSTYPE and m.number not in others
    ]


def is_dead(path: bytes) -> bool:
    """Whether the daemon of the guard at ``path`` is gone. Raises UserError if it does not answer.

    A child asks: one that waits for a daemon which hangs cannot always be ended.
    """
    place = os.fsdecode(path)
    try:
        run_as.run_as(_ask, path, limit=ANSWER_LIMIT)
    except OSError as error:
        return error.errno in DEAD
    except run_as.NoAnswer:
        hint = f"end its daemon, or {quote.shell(['umount', '-i', '-l', place])}"
        raise UserError(f"the guard at {place} does not answer", hint, Exit.SYSTEM) from None
    return False


def _ask(path: bytes) -> None:
    os.statvfs(path)


@dataclass(frozen=True)
class Daemon:
    """The process that serves a guard, and the options that it was started with.

    They are as ``-o`` has them, unquoted; None if its command line cannot be read.
    """

    pid: int
    options: tuple[str, ...] | None


def daemon_of(guard: Mount) -> Daemon | None:
    """The daemon of a guard; None if it is not found.

    Only a process that root itself started is looked at: others may call themselves what they
    like. Before Linux 6.17 the kernel does not tell whose device one has open: then it is one of
    those that were given the guard's source and path. Of several it is the last one to be
    started: the kernel gives a connection's number to a new one while the process that served
    the old one still ends, and an earlier daemon of the same guard stays as long as somebody has
    a copy of its view.
    """
    minor = int(guard.device.partition(":")[2])
    serving: list[_Process] = []
    likely: list[_Process] = []
    for process in _processes():
        if minor in process.devices:
            serving.append(process)
        elif process.devices == {None} and _was_given(process, guard):
            likely.append(process)
    found = max(serving or likely, key=lambda process: process.start, default=None)
    return None if found is None else found.daemon


def is_daemon(pid: str) -> bool:
    """Whether a process is a gitguardfs of root's."""
    return any(process.is_named for process in _processes([pid]))


def serves_nothing(pid: str) -> bool:
    """Whether a process is a gitguardfs of root's none of whose views is mounted any more.

    Others may still have copies of one, in mount namespaces of their own.
    """
    process = next(iter(_processes([pid])), None)
    if process is None or not process.is_named:
        return False
    listed = mountinfo.listed()
    if process.devices != {None}:
        served = {f"0:{minor}" for minor in process.devices}
        return not any(mount.device in served for mount in listed)
    return bool(process.places) and not any(
        mount.fstype == mountinfo.FSTYPE
        and (
            any(_leads_to(place, mount.path) for place in process.places[1:])
            or mount.source in (os.path.normpath(place) for place in process.places[:1])
        )
        for mount in listed
    )


@dataclass(frozen=True)
class _Process:
    """A process of root's that has a FUSE device open."""

    daemon: Daemon
    devices: frozenset[int | None]
    places: tuple[str, ...]
    """SOURCE and MOUNTPOINT, as they were given; none if its command line cannot be read."""
    is_named: bool
    """Whether it is gitguardfs, by its command line."""
    start: int


def _processes(pids: Sequence[str] | None = None) -> Iterator[_Process]:
    for pid in filter(str.isdecimal, os.listdir("/proc")) if pids is None else pids:
        with suppress(OSError, ValueError):
            devices = _devices(pid)
            if not devices or not _is_roots(pid):
                continue
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
            places, options = read_arguments(_arguments(words)) or ((), None)
            daemon = Daemon(int(pid), options)
            yield _Process(daemon, frozenset(devices), places, _is_named(words), _start_of(pid))


def _was_given(process: _Process, guard: Mount) -> bool:
    """Whether it was started for this guard, by its arguments."""
    if not any(_leads_to(place, guard.path) for place in process.places[1:]):
        return False
    source = process.places[0]
    names = [f"fsname={guard.source}"] if guard.source != mountinfo.SUBTYPE else []
    return (
        guard.source
        in (source, os.path.normpath(source), os.path.realpath(source), mountinfo.SUBTYPE)
        or any(name in (process.daemon.options or ()) for name in names)
        or not os.path.isabs(source)  # from where is not known any more
    )


def _leads_to(given: str, path: bytes) -> bool:
    """Whether a mount point, as it was given, may be the directory ``path``.

    It may have a slash at its end, lead through symlinks, or start at a directory that is not
    known any more.
    """
    real = os.fsdecode(path)
    given = os.path.normpath(given)
    if not os.path.isabs(given):
        return real.endswith(f"/{given.removeprefix('../').removeprefix('./')}") or given == "."
    parent, name = os.path.split(given)  # the mount point itself may not answer
    return real in (given, os.path.join(os.path.realpath(parent), name))


def options_of(guard: Mount) -> tuple[str, ...] | None:
    """What the daemon of a guard was started with; None if that is not known."""
    daemon = daemon_of(guard)
    return None if daemon is None else daemon.options


def _devices(pid: str) -> set[int | None]:
    """The connections of a process's FUSE devices (proc(5), fdinfo)."""
    found: set[int | None] = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{number}") != FUSE_DEVICE:
            continue
        connection = None
        with open(f"/proc/{pid}/fdinfo/{number}") as file:
            for line in file:
                if line.startswith("fuse_connection:"):
                    connection = int(line.split()[1])
        found.add(connection)
    return found


def _is_roots(pid: str) -> bool:
    """Whether its real user is root: that of a set-user-id program is its caller."""
    with open(f"/proc/{pid}/status", "rb") as file:
        return processes.user_ids(file.read())[0] == 0


def _is_named(words: Sequence[str]) -> bool:
    programs = (mountinfo.SUBTYPE, f"mount.{mountinfo.FSTYPE}")
    for index, word in enumerate(words):
        if word in ("-m", "-c"):
            return mountinfo.SUBTYPE in "".join(words[index + 1 : index + 2])
        if os.path.basename(word) in programs:
            return True
    return False


def _start_of(pid: str) -> int:
    """When it was started, in ticks since the boot (proc_pid_stat(5))."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _arguments(words: Sequence[str]) -> Sequence[str]:
    """What follows the program, which Python runs as a file, a module or a text."""
    for index, word in enumerate(words):
        if word in ("-m", "-c"):
            return words[index + 2 :]
        if os.path.basename(word) in (mountinfo.SUBTYPE, f"mount.{mountinfo.FSTYPE}"):
            return words[index + 1 :]
    return words


def meaning(options: Sequence[str]) -> dict[str, object]:
    """What options come to, so that two spellings of the same compare equal. UserError."""
    given = parse_o([quote_o(option) for option in options])
    plain: dict[str, object] = {"xattr": "rw"} if given.get("git") == "off" else {}
    found = _DEFAULTS | plain | given
    for name in _NOT_COMPARED:
        found.pop(name, None)
    found["cache_timeout"] = float(str(found["cache_timeout"]))
    for name in ("deny", "protect", "hide", "kernel"):
        values = found.get(name, [])
        assert isinstance(values, list)
        found[name] = frozenset(values)
    maps = found.get("map")
    found["map"] = parse_maps(maps) if isinstance(maps, list) else None
    return found


def are_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of options come to the same."""
    try:
        return meaning(one) == meaning(other)
    except (UserError, ValueError, KeyError):  # a user who is gone, a number that is none
        return False


def lost(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """What of ``before`` is not in force any more with ``after``; maps and seals left out."""
    try:
        kept = meaning(after)
        gone = []
        for option in before:
            one = meaning([option])
            for name in ("map", "seal"):
                one[name] = kept.get(name)
            if any(_adds(name, value) and not _holds(kept, name, value)
                   for name, value in one.items()):  # fmt: skip
                gone.append(option)
    except (UserError, ValueError, KeyError):
        return []
    return gone


def _adds(name: str, value: object) -> bool:
    return value != _DEFAULTS.get(name, frozenset()) and name not in ("map", "seal")


def _holds(kept: dict[str, object], name: str, value: object) -> bool:
    here = kept.get(name)
    if isinstance(value, frozenset):
        return isinstance(here, frozenset) and value <= here
    return here == value
