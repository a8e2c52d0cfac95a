"""Finds running guards, their daemons, and the options with which these were started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gitguardfs.base.constants import DEAD, FSTYPE, FUSE_DEVICE, SUBTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.linux import mountinfo, processes, run_as
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.options.id_maps import parse_maps
from gitguardfs.options.parsing import parse_o, quote_o, read_arguments
from gitguardfs.options.table import OPTIONS

ANSWER_LIMIT = 30.0
"""Seconds after which a guard counts as hanging; a busy one answers within one second."""
_NOT_COMPARED = ("foreground", "debug", "mountpoint")
_SETS = ("kernel", *(o.key for o in OPTIONS if o.multiple and o.key != "map"))
"""Options whose values add up, in any order."""
_DEFAULTS: dict[str, object] = {
    "git": "deny", "xattr": "none", "cache_timeout": 1.0, "seal": True, "read_only": False,
}  # fmt: skip


def guards() -> list[MountInfo]:
    """Return all mounted guards, which are root's gitguardfs mounts."""
    return [mount for mount in mountinfo.listed() if is_guard(mount)]


def is_guard(mount: MountInfo) -> bool:
    """Return whether a mount is root's gitguardfs. Users can mount that type as well."""
    return mount.fstype == FSTYPE and mount.owner == 0


def is_dead(path: bytes) -> bool:
    """Return whether the guard at ``path`` has lost its daemon.

    A child process asks, since a process that waits for a hanging daemon cannot always be killed.
    Raises UserError if the guard does not answer within ``ANSWER_LIMIT``.
    """
    place = os.fsdecode(path)
    try:
        run_as.run_as(_ask, path, limit=ANSWER_LIMIT)
    except OSError as error:
        return error.errno in DEAD
    except run_as.NoAnswer:
        hint = f"end its daemon, or {shlex.join(['umount', '-i', '-l', place])}"
        raise UserError(f"the guard at {place} does not answer", hint, Exit.SYSTEM) from None
    return False


def _ask(path: bytes) -> None:
    os.statvfs(path)


@dataclass(frozen=True)
class GuardDaemon:
    """A process that has a FUSE device open, as the daemon of a guard has.

    Any user may have such a process, and chooses its arguments. So paths in the arguments are used
    only if root started the process.
    """

    pid: int
    uid: int
    """0 only if its real and its effective user are root."""
    arguments: tuple[str, ...]
    """The program and its arguments; () if they cannot be read."""
    connections: frozenset[int | None] = field(default=frozenset(), compare=False)
    """The minor device numbers of the mounts that it serves; None if the kernel gives none."""
    real_uid: int = 0
    """The user who started it, and so chose its arguments; differs for a set-user-id program."""
    start: int = 0
    """When it was started, in clock ticks since boot."""
    held: tuple[str, ...] = field(default=(), compare=False)
    """The directories that it has open, without those inside another of them; for the doctor."""

    @property
    def options(self) -> tuple[str, ...] | None:
        """The options it was started with, as in ``-o``, unquoted; None if they cannot be read."""
        return self._read_arguments()[1]

    @property
    def paths(self) -> tuple[str, ...]:
        """SOURCE and MOUNTPOINT as they were given; () if they cannot be read."""
        return tuple(self._read_arguments()[0])

    def _read_arguments(self) -> tuple[Sequence[str], tuple[str, ...] | None]:
        return read_arguments(_arguments(self.arguments)) or ((), None)

    @property
    def is_named(self) -> bool:
        """Whether its command line is that of gitguardfs."""
        return _is_named(self.arguments)


def servers(pids: Iterable[str] | None = None) -> Iterator[GuardDaemon]:
    """Yield the processes of any user that have a FUSE device open.

    ``pids`` are the processes to look at; None means all. Only root sees those of other users. A
    call reads every descriptor of every process, so use its result more than once. A process that
    ends meanwhile is left out.
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
            if processes.link_of(f"/proc/{pid}/fd/{number}") == FUSE_DEVICE:
                found.add(processes.fdinfo(number, f"/proc/{pid}").fuse_connection)
    return frozenset(found)


def daemon_of(
    guard: MountInfo, candidates: Iterable[GuardDaemon] | None = None
) -> GuardDaemon | None:
    """Return the daemon of a guard; None if it is not found among ``candidates``, or at all.

    Only a process that root started counts, since users choose the arguments of their own. Before
    Linux 6.17, the kernel does not say which mount a process serves. Then a process counts that was
    started with the guard's source and mount point.

    Of several, the one that was started last is returned. The kernel may reuse a connection's
    number while the process that served the old one still ends. An earlier daemon of the same
    guard also stays while a copy of its view exists in another mount namespace.
    """
    minor = os.minor(guard.st_dev)
    serving: list[GuardDaemon] = []
    likely: list[GuardDaemon] = []
    for process in servers() if candidates is None else candidates:
        if process.real_uid != 0:
            continue
        if minor in process.connections:
            serving.append(process)
        elif process.connections == {None} and _matches_arguments(process, guard):
            likely.append(process)
    return max(serving or likely, key=lambda process: process.start, default=None)


def _process_of_root(pid: str) -> GuardDaemon | None:
    """Return the process if root has started it and it has a FUSE device open."""
    return next((process for process in servers([pid]) if process.real_uid == 0), None)


def is_daemon(pid: str) -> bool:
    """Return whether a process is a gitguardfs that root has started."""
    process = _process_of_root(pid)
    return process is not None and process.is_named


def is_orphan(pid: str) -> bool:
    """Return whether a process is root's gitguardfs, and all its views are unmounted here.

    Copies of a view may still exist in other mount namespaces.
    """
    process = _process_of_root(pid)
    if process is None or not process.is_named:
        return False
    listed = mountinfo.listed()
    if process.connections != {None}:
        served = {f"0:{minor}" for minor in process.connections}
        return not any(mount.device in served for mount in listed)
    return bool(process.paths) and not any(
        mount.fstype == FSTYPE
        and (
            any(_leads_to(path, mount.mount_point) for path in process.paths[1:])
            or mount.source in (os.path.normpath(path) for path in process.paths[:1])
        )
        for mount in listed
    )


def _matches_arguments(process: GuardDaemon, guard: MountInfo) -> bool:
    """Return whether the arguments of root's process are those of this guard."""
    if not any(_leads_to(path, guard.mount_point) for path in process.paths[1:]):
        return False
    source = process.paths[0]
    names = [f"fsname={guard.source}"] if guard.source != SUBTYPE else []
    return (
        guard.source in (source, os.path.normpath(source), os.path.realpath(source), SUBTYPE)
        or any(name in (process.options or ()) for name in names)
        or not os.path.isabs(source)  # relative to a directory that is not known
    )


def _leads_to(given: str, path: bytes) -> bool:
    """Return whether a mount point, as it was given, may be the directory ``path``.

    It may end with a slash, contain symlinks, or be relative to a directory that is not known.
    """
    real = os.fsdecode(path)
    given = os.path.normpath(given)
    if not os.path.isabs(given):
        return real.endswith(f"/{given.removeprefix('../').removeprefix('./')}") or given == "."
    parent, name = os.path.split(given)  # the mount point itself may not answer
    return real in (given, os.path.join(os.path.realpath(parent), name))


def options_of(guard: MountInfo) -> tuple[str, ...] | None:
    """Return the options that the daemon of a guard was started with; None if unknown."""
    daemon = daemon_of(guard)
    return None if daemon is None else daemon.options


def _is_named(words: Sequence[str]) -> bool:
    programs = (SUBTYPE, f"mount.{FSTYPE}")
    for index, word in enumerate(words):
        if word in ("-m", "-c"):
            return SUBTYPE in "".join(words[index + 1 : index + 2])
        if os.path.basename(word) in programs:
            return True
    return False


def _arguments(words: Sequence[str]) -> Sequence[str]:
    """Return the words after the program, which Python runs as a file, by -m or by -c."""
    for index, word in enumerate(words):
        if word in ("-m", "-c"):
            return words[index + 2 :]
        if os.path.basename(word) in (SUBTYPE, f"mount.{FSTYPE}"):
            return words[index + 1 :]
    return words


def normalized(options: Sequence[str]) -> dict[str, object]:
    """Return options in a form in which two spellings compare equal. Raises UserError."""
    given = parse_o([quote_o(option) for option in options])
    plain: dict[str, object] = {"xattr": "rw"} if given.get("git") == "off" else {}
    found = _DEFAULTS | plain | given
    for name in _NOT_COMPARED:
        found.pop(name, None)
    found["cache_timeout"] = float(str(found["cache_timeout"]))
    for name in _SETS:
        values = found.get(name, [])
        assert isinstance(values, list)
        found[name] = frozenset(values)
    maps = found.get("map")
    found["map"] = parse_maps(maps) if isinstance(maps, list) else None
    return found


def same_options(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two lists of options mean the same."""
    try:
        return normalized(one) == normalized(other)
    except (UserError, ValueError, KeyError):  # an unknown user, or not a number
        return False


def lost_options(
    before: Sequence[str], after: Sequence[str], unasked: Sequence[str] = ()
) -> list[str]:
    """Return the options of ``before`` that ``after`` lacks, except for maps and seals.

    Those in ``unasked`` are left out as well: nobody has asked for them.
    """
    try:
        kept = normalized(after)
        gone = []
        for option in before:
            one = normalized([option])
            names = parse_o([quote_o(option)]).keys() & one.keys() - {"map", "seal"}
            if not all(_is_kept(kept, name, one[name]) for name in names) and option not in unasked:
                gone.append(option)
    except (UserError, ValueError, KeyError):
        return []
    return gone


def _is_kept(kept: dict[str, object], name: str, value: object) -> bool:
    here = kept.get(name)
    if isinstance(value, frozenset):
        return isinstance(here, frozenset) and value <= here
    return here == value
