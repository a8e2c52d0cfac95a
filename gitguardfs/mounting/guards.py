"""Finds running guards, their daemons, and the options with which these were started.

Each daemon of root's writes that down in ``RECORDS``, in a file that it keeps locked and that is
named after its process id. A file without a lock is of a daemon that was killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gitguardfs.base.constants import DEAD, FSTYPE
from gitguardfs.base.errors import Exit, UserError, os_error
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.options.id_maps import parse_maps
from gitguardfs.options.parsing import parse_o, quote_o
from gitguardfs.options.table import OPTIONS

RECORDS = "/run/gitguardfs.daemons"
"""Root's directory of the daemons' records. The views of root's shares are in /run/gitguardfs."""
Identity = tuple[int, str, str, str]
"""``MountInfo.identity``."""
ANSWER_LIMIT = 30.0
"""Seconds after which a guard counts as hanging; a busy one answers within one second."""
_NOT_COMPARED = ("foreground", "debug", "mountpoint")
_GIVES_NO_ACCESS = (
    "allow_holders", "audit_log", "cache_timeout", "direct_io", "fsname", "nonempty",
    "read_rate", "seal", "session", "source_owner", "write_rate",
)  # fmt: skip
"""Options that do not change which files users can open, nor how."""
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
    from gitguardfs.linux import run_as  # takes time to load, and a daemon does without

    mountpoint = os.fsdecode(path)
    try:
        run_as.run_as(_ask, path, limit=ANSWER_LIMIT)
    except OSError as error:
        return error.errno in DEAD
    except run_as.NoAnswer:
        hint = f"end its daemon, or {shlex.join(['umount', '-i', '-l', mountpoint])}"
        raise UserError(f"the guard at {mountpoint} does not answer", hint, Exit.SYSTEM) from None
    return False


def _ask(path: bytes) -> None:
    os.statvfs(path)


@dataclass(frozen=True)
class GuardDaemon:
    """A running daemon of root's, as its record in ``RECORDS`` has it."""

    pid: int
    view: Identity
    """The identity of the mount that it serves, wherever that was moved to."""
    source: str
    """The path of the guarded directory."""
    options: tuple[str, ...]
    """The options that it was started with, as in ``-o``, unquoted."""


class Record:
    """The record of this process. It is valid while this process holds its lock."""

    def __init__(self, view: MountInfo, source: str, options: Sequence[str]) -> None:
        """Write the record of a mounted view, for root alone. Raises OSError."""
        os.makedirs(RECORDS, 0o700, exist_ok=True)
        for name in os.listdir(RECORDS):
            if name.isdecimal() and _read(name) is None:  # the record of a daemon that was killed
                for path in (f"{RECORDS}/{name}", changes_socket(int(name))):
                    with suppress(FileNotFoundError):
                        os.unlink(path)
        self._path = f"{RECORDS}/{os.getpid()}"
        new = f"{self._path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(new, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Not JSON, whose module takes time to load. No option and no path has a NUL.
        text = os.fsencode("\0".join([*map(str, view.identity), source, *options]))
        if os.write(self._fd, text) < len(text):
            raise os_error(errno.ENOSPC, new)
        os.rename(new, self._path)

    def remove(self) -> None:
        """Remove the record."""
        with suppress(OSError):
            os.unlink(self._path)
        os.close(self._fd)


def changes_socket(pid: int) -> str:
    """Return the path of the socket by which root tells a daemon of the host's changes."""
    return f"{RECORDS}/{pid}.changes"


def servers() -> tuple[GuardDaemon, ...]:
    """Return the running daemons of root's guards, the last one started first.

    Only root may read their records: to others, there are none.
    """
    try:
        names = [name for name in os.listdir(RECORDS) if name.isdecimal()]
    except (FileNotFoundError, PermissionError):
        return ()
    found = [read for name in names if (read := _read(name)) is not None]
    return tuple(daemon for _, daemon in sorted(found, key=lambda one: one[0], reverse=True))


def _read(name: str) -> tuple[int, GuardDaemon] | None:
    """Return when a record was written, and the record; None if its daemon has ended."""
    try:
        fd = os.open(f"{RECORDS}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            number, device, fstype, mounted, source, *options = os.fsdecode(file.read()).split("\0")
            view = int(number), device, fstype, mounted
            return os.fstat(fd).st_mtime_ns, GuardDaemon(int(name), view, source, tuple(options))
    return None


def daemon_of(
    guard: MountInfo, candidates: Iterable[GuardDaemon] | None = None
) -> GuardDaemon | None:
    """Return the daemon of a guard among ``candidates``, by default all; None if there is none."""
    daemons = servers() if candidates is None else candidates
    return next((daemon for daemon in daemons if daemon.view == guard.identity), None)


def orphan_of(source: str) -> GuardDaemon | None:
    """Return the daemon of a source whose view is unmounted here; None if there is none.

    Copies of the view may still exist in other mount namespaces.
    """
    devices = {mount.device for mount in mountinfo.listed()}  # a copy has another mnt_id
    orphans = (daemon for daemon in servers() if daemon.view[1] not in devices)
    return next((daemon for daemon in orphans if daemon.source == source), None)


def options_of(guard: MountInfo) -> tuple[str, ...] | None:
    """Return the options that the daemon of a guard was started with; None if unknown."""
    daemon = daemon_of(guard)
    return None if daemon is None else daemon.options


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


def same_access(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether users can open the same files in the same ways by two lists of options."""
    try:
        found, others = normalized(one), normalized(other)
    except (UserError, ValueError, KeyError):
        return False
    return all(
        found.get(name) == others.get(name)
        for name in (found.keys() | others.keys()).difference(_GIVES_NO_ACCESS)
    )


def lost_options(
    before: Sequence[str], after: Sequence[str], unasked: Sequence[str] = ()
) -> list[str]:
    """Return the options of ``before`` that ``after`` lacks, except for maps and seals.

    Those in ``unasked`` are left out as well: nobody has asked for them.
    """
    try:
        kept = normalized(after)
        return [
            option
            for option in before
            if option not in unasked
            and not parse_o([quote_o(option)]).keys() & {"map", "seal"}
            and normalized([*after, option]) != kept
        ]
    except (UserError, ValueError, KeyError):
        return []
