"""What the guards that run really do: their mounts' owners, and their daemons' arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gitguardfs.constants import DEAD, FUSE_DEVICE
from gitguardfs.doctor import run_as
from gitguardfs.errors import Exit, UserError
from gitguardfs.linux import mountinfo, processes
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.options.id_maps import parse_maps
from gitguardfs.options.parsing import parse_o, quote_o, read_arguments
from gitguardfs.render import quote

ANSWER_LIMIT = 30.0
"""Seconds after which a guard is taken to hang; a busy one answers within one."""
_NOT_COMPARED = ("foreground", "debug", "mountpoint")
_DEFAULTS: dict[str, object] = {
    "git": "deny", "xattr": "none", "cache_timeout": 1.0, "seal": True, "read_only": False,
}  # fmt: skip


def guards() -> list[MountInfo]:
    """Return every gitguardfs of root's that is mounted."""
    return [mount for mount in mountinfo.listed() if is_guard(mount)]


def is_guard(mount: MountInfo) -> bool:
    """Return whether a mount is a gitguardfs that root mounted: any user may call one so."""
    return mount.fstype == mountinfo.FSTYPE and mount.owner == 0


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
class GuardDaemon:
    """A process that has a FUSE device open, as the daemon of a guard has.

    Any user may have such a process, and chooses its arguments: nothing in the file system is
    looked for by the arguments of a process that is not root's.
    """

    pid: int
    uid: int
    """0 only if its real and its effective user are root."""
    arguments: tuple[str, ...]
    """With the program first; () if they cannot be read."""
    connections: frozenset[int | None] = field(default=frozenset(), compare=False)
    """The minor numbers of the devices of the mounts that it serves; None: the kernel is silent."""
    real_uid: int = 0
    """A set-user-id program has the caller's, who gives it its arguments."""
    start: int = 0
    """When it was started, in ticks since the boot."""
    held: tuple[str, ...] = field(default=(), compare=False)
    """The directories that it has open, without those in another of them: the doctor asks."""

    @property
    def options(self) -> tuple[str, ...] | None:
        """What it was started with, as ``-o`` has it, unquoted; None if that cannot be read."""
        return self._given()[1]

    @property
    def places(self) -> tuple[str, ...]:
        """SOURCE and MOUNTPOINT, as they were given; () if that cannot be read."""
        return tuple(self._given()[0])

    def _given(self) -> tuple[Sequence[str], tuple[str, ...] | None]:
        return read_arguments(_arguments(self.arguments)) or ((), None)

    @property
    def is_named(self) -> bool:
        """Whether it is gitguardfs, by its command line."""
        return _is_named(self.arguments)


def servers(pids: Iterable[str] | None = None) -> Iterator[GuardDaemon]:
    """Yield the processes that have a FUSE device open, whoever they belong to.

    ``pids`` are those to look at, or all. All of it tells root only. It looks at each descriptor
    of each process: ask once. A process that ends meanwhile is left out.
    """
    for pid in processes.pids() if pids is None else pids:
        with suppress(OSError, ValueError, StopIteration):
            if connections := _connections(pid):
                real, effective = processes.uids_of(pid)[:2]
                yield GuardDaemon(
                    int(pid),
                    real or effective,
                    processes.arguments_of(pid),
                    connections,
                    real,
                    processes.start_of(pid),
                )


def _connections(pid: str) -> frozenset[int | None]:
    """Return the connections of a process's FUSE devices. Raises OSError if it has ended."""
    found: set[int | None] = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            if os.readlink(f"/proc/{pid}/fd/{number}") == FUSE_DEVICE:
                found.add(processes.fdinfo(number, f"/proc/{pid}").fuse_connection)
    return frozenset(found)


def daemon_of(
    guard: MountInfo, candidates: Iterable[GuardDaemon] | None = None
) -> GuardDaemon | None:
    """Return the daemon of a guard; None if it is not found among ``candidates``, or at all.

    Only a process that root itself started counts: others may call themselves what they like.
    Before Linux 6.17 the kernel does not tell whose device one has open: then it is one of
    those that were given the guard's source and path. Of several it is the last one to be
    started: the kernel gives a connection's number to a new one while the process that served
    the old one still ends, and an earlier daemon of the same guard stays as long as somebody has
    a copy of its view.
    """
    minor = os.minor(guard.st_dev)
    serving: list[GuardDaemon] = []
    likely: list[GuardDaemon] = []
    for process in servers() if candidates is None else candidates:
        if process.real_uid != 0:
            continue
        if minor in process.connections:
            serving.append(process)
        elif process.connections == {None} and _was_given(process, guard):
            likely.append(process)
    return max(serving or likely, key=lambda process: process.start, default=None)


def _roots(pid: str) -> GuardDaemon | None:
    """Return a process that root has started and that has a FUSE device open."""
    return next((process for process in servers([pid]) if process.real_uid == 0), None)


def is_daemon(pid: str) -> bool:
    """Return whether a process is a gitguardfs of root's."""
    process = _roots(pid)
    return process is not None and process.is_named


def serves_nothing(pid: str) -> bool:
    """Return whether a process is a gitguardfs of root's none of whose views is mounted any more.

    Others may still have copies of one, in mount namespaces of their own.
    """
    process = _roots(pid)
    if process is None or not process.is_named:
        return False
    listed = mountinfo.listed()
    if process.connections != {None}:
        served = {f"0:{minor}" for minor in process.connections}
        return not any(mount.device in served for mount in listed)
    return bool(process.places) and not any(
        mount.fstype == mountinfo.FSTYPE
        and (
            any(_leads_to(place, mount.mount_point) for place in process.places[1:])
            or mount.source in (os.path.normpath(place) for place in process.places[:1])
        )
        for mount in listed
    )


def _was_given(process: GuardDaemon, guard: MountInfo) -> bool:
    """Return whether a process of root's was started for this guard, by its arguments."""
    if not any(_leads_to(place, guard.mount_point) for place in process.places[1:]):
        return False
    source = process.places[0]
    names = [f"fsname={guard.source}"] if guard.source != mountinfo.SUBTYPE else []
    return (
        guard.source
        in (source, os.path.normpath(source), os.path.realpath(source), mountinfo.SUBTYPE)
        or any(name in (process.options or ()) for name in names)
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


def options_of(guard: MountInfo) -> tuple[str, ...] | None:
    """What the daemon of a guard was started with; None if that is not known."""
    daemon = daemon_of(guard)
    return None if daemon is None else daemon.options


def _is_named(words: Sequence[str]) -> bool:
    programs = (mountinfo.SUBTYPE, f"mount.{mountinfo.FSTYPE}")
    for index, word in enumerate(words):
        if word in ("-m", "-c"):
            return mountinfo.SUBTYPE in "".join(words[index + 1 : index + 2])
        if os.path.basename(word) in programs:
            return True
    return False


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
