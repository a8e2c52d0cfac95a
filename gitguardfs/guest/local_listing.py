"""Finds the guest's own directories in a store, and what has become of their places.

Everything is opened by one name relative to a descriptor, and no symlink is followed: the agent
chooses what is in the directories, and the host which directories are above them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from stat import S_IFDIR, S_ISDIR
from typing import NamedTuple

from gitguardfs.base.constants import LOCAL_OWN, LOCAL_STAND_IN, LOCAL_STORE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.paths import is_inside
from gitguardfs.base.walk import DIRECTORY_FLAGS, TreeScan
from gitguardfs.fs.nodes import is_local
from gitguardfs.linux import mountinfo, run_as, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.local import store
from gitguardfs.mounting import guards
from gitguardfs.names.local_names import LocalNames
from gitguardfs.names.rules import RuleSet, Verdict
from gitguardfs.options import mount_options
from gitguardfs.options.parsing import parse_o, quote_o

BLOCK = 512
"""Bytes in a unit of st_blocks (stat(2))."""
ASKED = 200
"""How many places one child process asks for: its answer stays far below ANSWER_BYTES."""
_STEP = os.O_PATH | os.O_DIRECTORY
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for a place at which there is no directory: nothing, a file or a symlink."""
_FLOCK = "hhqqi4x"
"""struct flock: type, whence, start, length, pid (fcntl(2))."""

Say = Callable[[int, str], None]


class State(Enum):
    """The state of one of the guest's own directories in the view."""

    IN_USE = "in use"
    GONE = "its place is gone"
    HIDDEN = "hidden: the share has a file or symlink of that name"
    UNNAMED = "not shown: --local does not name it"
    CLOSED = "not shown: an option of the view covers its place"
    UNMOUNTED = "the view is not mounted"
    EMPTY = "not known: the share is empty"
    UNKNOWN = "not known: the view gave no clear answer"


@dataclass(frozen=True)
class Share:
    """The directories of one share in a store; whoever opened it closes the descriptors."""

    name: str
    """The share's tag or device, and the place in it."""
    view: str
    """Where its view is, or was the last time."""
    path: str
    """Its directory in the store."""
    fd: int
    tree: int
    lock: int

    def shown(self, names: Sequence[bytes]) -> str:
        """Return the path in the view for the names of a path in the share."""
        return os.path.join(self.view, *map(os.fsdecode, names))

    def holder(self) -> int | None:
        """Return the process of the daemon that serves the directories; None without one."""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(self.lock, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)


class Own(NamedTuple):
    """One of the guest's own directories."""

    share: Share
    above: tuple[bytes, ...]
    """The path of the directory above it, from the share's root."""
    name: bytes
    used: float
    """When it was last read or changed, as its times say: seconds since 1970."""
    state: State

    @property
    def names(self) -> tuple[bytes, ...]:
        """Its path from the share's root."""
        return *self.above, self.name

    @property
    def path(self) -> str:
        """Its path in the view."""
        return self.share.shown(self.names)

    def is_at_or_below(self, names: Sequence[bytes]) -> bool:
        """Return whether it is the directory at a path in the share, or lies below that."""
        return self.names[: len(names)] == tuple(names)


def shares(stack: ExitStack, place: str) -> list[Share]:
    """Open all shares of the store ``place``; [] without a store. ``stack`` closes them.

    Raises UserError if another user could have made it, or something is mounted in it; OSError.
    """
    try:
        top = safe_open.open_directory(place, is_root=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    stack.callback(os.close, top)
    path = safe_open.path_of(top)
    st = os.fstat(top)
    if st.st_uid != 0 or st.st_mode & 0o022:
        raise UserError(f"{path} is no store: others than root can change it", code=Exit.SYSTEM)
    below = os.path.join(path, "")
    for mount in mountinfo.listed():
        if mount.path.startswith(below):
            hint = "unmount it: nothing else than the guest's own directories belongs there"
            raise UserError(f"{mount.path} is mounted in the store", hint, Exit.SYSTEM)
    listing = os.open(".", DIRECTORY_FLAGS, dir_fd=top)
    stack.callback(os.close, listing)
    found = []
    for name in sorted(os.listdir(listing)):
        with suppress(FileNotFoundError, NotADirectoryError):  # not made wholly yet, or no share's
            fd = _opened(stack, name, DIRECTORY_FLAGS, top)
            tree = _opened(stack, store.TREE, DIRECTORY_FLAGS, fd)
            lock = _opened(stack, store.LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, fd)
            view = os.open(store.VIEW, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            with open(view, "rb") as file:
                where = os.fsdecode(file.read())
            found.append(Share(store.share_of(name), where, f"{path}/{name}", fd, tree, lock))
    return found


def _opened(stack: ExitStack, name: str, flags: int, directory: int) -> int:
    fd = os.open(name, flags, dir_fd=directory)
    stack.callback(os.close, fd)
    return fd


# What is there


def owns(share: Share) -> list[Own]:
    """Return the guest's own directories of a share, by their paths. Raises OSError."""
    found = []
    walk = TreeScan(share.tree, "", _failed)
    for directory in walk.directories():
        above = tuple(os.fsencode(name)[1:] for name in directory.path.split("/") if name)
        for name, file_type in directory.entries.items():
            if os.fsencode(name[:1]) != LOCAL_OWN or file_type != S_IFDIR:
                continue
            with suppress(FileNotFoundError):  # removed since
                st = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
                used = max(st.st_atime, st.st_mtime)
                found.append(Own(share, above, os.fsencode(name)[1:], used, State.UNKNOWN))
        directory.enter[:] = [
            name for name in directory.enter if os.fsencode(name[:1]) == LOCAL_STAND_IN
        ]
    return with_states(sorted(found, key=lambda own: own.names))


def _failed(path: str, error: OSError) -> None:
    if error.errno not in _NOWHERE:  # removed or replaced meanwhile
        raise OSError(error.errno, error.strerror, path)


def size_of(own: Own, seen: set[int], say: Say = lambda *_: None) -> int:
    """Return how many bytes of the disk a directory takes, as du(1) does. Raises OSError.

    ``seen`` holds the inodes with several names that were counted; ``say`` is told how far it is.
    """
    try:
        with opened_place(own.share, own.above) as above:
            top = os.open(LOCAL_OWN + own.name, DIRECTORY_FLAGS, dir_fd=above)
    except FileNotFoundError:  # removed since
        return 0
    try:
        size = os.fstat(top).st_blocks * BLOCK
        walk = TreeScan(top, "", _failed)
        for directory in walk.directories():
            say(walk.names, own.path)
            for name in directory.entries:
                size += _size_at(directory.fd, name, seen)
    finally:
        os.close(top)
    return size


def _size_at(directory: int, name: str, seen: set[int]) -> int:
    try:
        st = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if st.st_nlink > 1 and not S_ISDIR(st.st_mode):
        if st.st_ino in seen:
            return 0
        seen.add(st.st_ino)
    return st.st_blocks * BLOCK


@contextmanager
def opened_place(share: Share, place: Iterable[bytes], makes: bool = False) -> Iterator[int]:
    """Open the store's directory for one of the share; with ``makes``, make it if it is not there.

    Raises OSError.
    """
    fd = os.dup(share.tree)
    try:
        for name in place:
            if makes:
                with suppress(FileExistsError):
                    os.mkdir(LOCAL_STAND_IN + name, 0o700, dir_fd=fd)
            below = os.open(LOCAL_STAND_IN + name, DIRECTORY_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


# What has become of their places


def with_states(wanted: Iterable[Own]) -> list[Own]:
    """Return the directories with their present states. Raises OSError."""
    return [
        own
        for share, owns in groupby(wanted, key=lambda own: own.share)
        for own in _with_states(share, list(owns))
    ]


def _with_states(share: Share, wanted: Sequence[Own]) -> list[Own]:
    """Do the same for one share.

    A child process asks the view, which may hang. The daemon of the mount on top there has to be
    the one that holds the lock: another view may cover it.
    """
    mount = mountinfo.top_at(share.view)
    pid = share.holder()
    daemon = None
    if pid is not None and mount is not None and guards.is_guard(mount):
        daemon = guards.daemon_of(mount)
    if mount is None or daemon is None or daemon.pid != pid:
        return [own._replace(state=State.UNMOUNTED) for own in wanted]
    try:
        options = mount_options.build("", "", parse_o(map(quote_o, daemon.options or ())))
    except UserError:
        return [own._replace(state=State.UNKNOWN) for own in wanted]
    rules, names = RuleSet(options.rules), LocalNames(options.local)
    found = []
    for start in range(0, len(wanted), ASKED):
        part = wanted[start : start + ASKED]
        for own, state in zip(part, _asked(mount, part), strict=True):
            is_closed = any(map(names.marker, own.above)) or any(
                rules.verdict_of_name(name)[0] >= Verdict.DENY for name in own.names
            )
            is_away = state is State.GONE and is_closed
            found.append(own._replace(state=State.CLOSED if is_away else state))
    return found


def _asked(mount: MountInfo, wanted: Sequence[Own]) -> list[State]:
    words = [[list(map(os.fsdecode, own.above)), os.fsdecode(own.name)] for own in wanted]
    try:
        answer = run_as.run_as(_look, mount.path, mount.mnt_id, words, limit=guards.ANSWER_LIMIT)
    except (run_as.NoAnswer, OSError):
        return [State.UNKNOWN] * len(wanted)
    return [State[name] for name in answer]


def _look(view: str, number: int, wanted: list[tuple[list[str], str]]) -> list[str]:
    """Return the names of the states, as the view says. Called in a child process."""
    try:
        top = safe_open.open_directory(view, is_root=True)
    except UserError as error:
        raise OSError(errno.EIO, str(error)) from None
    if mountinfo.number_of(top) != number:
        return [State.UNMOUNTED.name] * len(wanted)
    found = [_state_at(top, place, name) for place, name in wanted]
    if State.GONE in found and _is_empty(top):
        found = [State.EMPTY if state is State.GONE else state for state in found]
    return [state.name for state in found]


def _is_empty(top: int) -> bool:
    """Return whether the share has nothing to show, as when the host's disk is not there."""
    listing = os.open(".", DIRECTORY_FLAGS, dir_fd=top)
    try:
        with os.scandir(listing) as entries:
            return all(is_local(entry.inode()) for entry in entries)
    finally:
        os.close(listing)


def _state_at(top: int, place: list[str], name: str) -> State:
    fd = os.dup(top)
    try:
        for step in place:
            below = syscalls.open_beneath(fd, os.fsencode(step), _STEP, crosses_mounts=False)
            os.close(fd)
            fd = below
        if is_local(os.fstat(fd).st_ino):  # below a directory of the guest's, nothing is one
            return State.CLOSED
    except OSError as error:
        os.close(fd)
        return State.GONE if error.errno in _NOWHERE else State.UNKNOWN
    try:
        st = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return State.UNNAMED
    except OSError:
        return State.UNKNOWN
    finally:
        os.close(fd)
    if not S_ISDIR(st.st_mode):
        return State.HIDDEN
    return State.IN_USE if is_local(st.st_ino) else State.UNNAMED


def store_of(options: Iterable[str]) -> str | None:
    """Return the store of a daemon with these options; None without ``--local``.

    Raises UserError for options that cannot be read.
    """
    found = mount_options.build("", "", parse_o(map(quote_o, options)))
    return (found.local_store or LOCAL_STORE) if found.local else None


def path_in(share: Share, path: str) -> tuple[bytes, ...] | None:
    """Return the names of a path in a view, absolute or relative to it; None if it is elsewhere."""
    path = os.path.normpath(os.path.join(share.view, path))
    if not is_inside(path, share.view):
        return None
    inside = os.path.relpath(path, share.view)
    return () if inside == "." else tuple(map(os.fsencode, inside.split("/")))
