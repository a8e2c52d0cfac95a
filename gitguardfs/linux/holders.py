"""Finds processes that have something in a directory open.

Such a process has its working directory, its root directory, a descriptor or a mapped file there.
By relative paths it would still reach what lies below, after a mount covers the directory. It may
have opened these by any mount of the same file system, in any mount namespace. So a descriptor's
file system and its path there count, and not the mount by which it was opened.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gitguardfs.base.constants import SHARE_TYPES
from gitguardfs.linux import dead_fuse, mountinfo, processes, syscalls
from gitguardfs.linux.mountinfo import MountInfo

PROC = processes.PROC
MAX_SEARCHES = 50
"""The most searches; each also finds processes that were started during the one before."""
MIN_SEARCHES = 8
"""The fewest searches, each in a random order. Two processes may pass a descriptor to each other,
so that a single search misses it in both."""
OLD_VIEWS_LIMIT = 5.0
"""Seconds for the kernel's caches of an old view to run out: one second, unless --cache-timeout
says more."""
_PATH_ONLY = os.O_PATH | os.O_CLOEXEC


@dataclass(frozen=True)
class MountedDirectory:
    """A directory: its path in this mount namespace, its mount, and its path in the file system."""

    path: bytes
    mount: MountInfo
    """The mount of this namespace that the directory is in."""
    device: int
    """The st_dev of the directory."""

    @property
    def root(self) -> bytes:
        """The path of the directory in its file system."""
        return _joined(self.mount.root, self.path, self.mount.mount_point) or self.mount.root

    def shown_by(self, mount: MountInfo) -> bytes | None:
        """Return the path at which ``mount`` shows it or a part of it; None if ``mount`` does not.

        ``mount`` may be of any mount namespace.
        """
        if mount.device != self.mount.device:
            return None
        inside = _joined(mount.mount_point, self.root, mount.root)
        return inside or (mount.mount_point if is_at_or_below(mount.root, self.root) else None)


def with_shares_below(
    path: bytes, mount: MountInfo, table: Sequence[MountInfo], device: int | None = None
) -> list[MountedDirectory]:
    """Return the directory ``path``, which lies in ``mount``, and the shares mounted below it.

    ``device`` is the st_dev of ``path``; None stands for that of ``mount``.
    """
    below = [
        MountedDirectory(each.mount_point, each, each.st_dev)
        for each in table
        if each.fstype in SHARE_TYPES
        and each.mount_point != path
        and is_at_or_below(each.mount_point, path)
    ]
    return [MountedDirectory(path, mount, mount.st_dev if device is None else device), *below]


@dataclass(frozen=True)
class Holder:
    """A process with a user id other than root's, and what it holds."""

    pid: int
    uid: int
    name: bytes
    """The name that the process chose (comm): any bytes but NUL, to be escaped when shown."""
    held: tuple[str, ...]
    """Working directory, root directory, descriptor N, mapped file: in this order, each once."""


def find_holders(wanted: Sequence[MountedDirectory], proc: str = PROC) -> list[Holder]:
    """Return the processes that hold something at or below one of the ``wanted`` directories.

    Processes that hold a directory in a detached mount are included. Such a mount may remain of a
    mount namespace that has ended, and only its holder knows what is mounted in it. An old view,
    without its daemon, is no such mount: nothing can be reached from there (``dead_fuse``).
    Processes in whose sockets descriptors wait are included too, if some waited in every search.

    Only root may call this. Processes whose user ids are all 0 are left out, and so is a process
    that ends meanwhile; its children are searched. ``proc`` lists the processes. Raises OSError if
    a process cannot be searched, EAGAIN if users keep starting new processes.
    """
    with dead_fuse.OldViews(OLD_VIEWS_LIMIT) as old_views:
        return _search(wanted, proc, old_views)


def _search(
    wanted: Sequence[MountedDirectory], proc: str, old_views: dead_fuse.OldViews
) -> list[Holder]:
    found: dict[int, Holder] = {}
    sent: list[dict[int, Holder]] = []
    seen: set[int] = set()
    for look in range(1, MAX_SEARCHES + 1):
        owners = {int(pid): _user_of(f"{proc}/{pid}") for pid in processes.pids(proc)}
        users = {pid: uid for pid, uid in owners.items() if uid}
        attached = _AttachedMounts(proc, old_views)
        for pid in random.sample(sorted(users), len(users)):
            look_at = partial(_held_objects, wanted=wanted, attached=attached)
            one = _holder(proc, pid, users[pid], look_at)
            if one is not None:
                held = (*found[pid].held, *one.held) if pid in found else one.held
                found[pid] = Holder(pid, one.uid, one.name, tuple(dict.fromkeys(held)))
        waiting = (_holder(proc, pid, uid, _sockets_with_descriptors) for pid, uid in users.items())
        sent.append({one.pid: one for one in waiting if one is not None})
        # Root may start processes all the time, as a build of root's does. One that has ended may
        # have been a user's, with a child that is not listed.
        to_search = {pid for pid, uid in owners.items() if uid != 0}
        is_stable = to_search <= seen
        if (is_stable or found) and (look >= MIN_SEARCHES or (look > 1 and not users)):
            if all(sent):  # a descriptor that is in a socket only for a moment does not count
                found = {**sent[-1], **found}
            return [found[pid] for pid in sorted(found)]
        seen |= to_search
    raise OSError(errno.EAGAIN, "processes of users start and end too fast to be searched")


def _user_of(process: str) -> int | None:
    """Return a user id of a process that is not 0; 0 if it has none; None if it has ended."""
    try:
        return next((uid for uid in processes.uids_of(process) if uid != 0), 0)
    except (FileNotFoundError, ProcessLookupError):
        return None


class _AttachedMounts:
    """The mnt_ids in this namespace and, read when needed, in the namespaces of all processes."""

    def __init__(self, proc: str, old_views: dead_fuse.OldViews) -> None:
        self.old_views = old_views
        self._proc = proc
        self._own = {mount.mnt_id for mount in mountinfo.listed()}
        self._others: set[int] | None = None

    def is_own(self, number: int) -> bool:
        """Return whether the mount with this mnt_id is in this namespace."""
        return number in self._own

    def has(self, number: int) -> bool:
        """Return whether the mount with this mnt_id is in the namespace of any process."""
        if self._others is None:
            self._others = self._read()
        return number in self._own or number in self._others

    def _read(self) -> set[int]:
        numbers: set[int] = set()
        namespaces = set()
        for pid in processes.pids(self._proc):
            with suppress(OSError):  # it has ended
                st = os.stat(f"{self._proc}/{pid}/ns/mnt")
                if (st.st_dev, st.st_ino) not in namespaces:
                    numbers |= {mount.mnt_id for mount in mountinfo.listed(f"{self._proc}/{pid}")}
                    namespaces.add((st.st_dev, st.st_ino))
        return numbers


def _holder(proc: str, pid: int, uid: int, look: Callable[[str], Iterable[str]]) -> Holder | None:
    process = f"{proc}/{pid}"
    try:
        held = tuple(dict.fromkeys(look(process)))
        if not held:
            return None
        return Holder(pid, uid, processes.name_of(process), held)
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended


def _held_objects(
    process: str, wanted: Sequence[MountedDirectory], attached: _AttachedMounts
) -> Iterator[str]:
    # Threads may have directories and descriptors of their own (unshare(2), CLONE_FS).
    for task in os.listdir(f"{process}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for link, what in _links(f"{process}/task/{task}"):
                yield from _check_link(link, what, f"{process}/task/{task}", wanted, attached)
    devices = {directory.mount.device for directory in wanted}
    for link in _mapped(process, devices):
        yield from _check_link(link, "a mapped file", process, wanted, attached)


def _sockets_with_descriptors(process: str) -> Iterator[str]:
    """Yield the sockets of a process in which descriptors wait (unix(7), SCM_RIGHTS).

    The kernel does not show what these descriptors lead to. They may wait there for ever, and
    belong to no process meanwhile.
    """
    for task in os.listdir(f"{process}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for number in os.listdir(f"{process}/task/{task}/fd"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    link = processes.link_of(f"{process}/task/{task}/fd/{number}")
                    is_socket = link is not None and link.startswith("socket:")
                    if is_socket and processes.fdinfo(number, f"{process}/task/{task}").scm_fds:
                        yield f"descriptors that wait in its socket {number}"


def _links(task: str) -> Iterator[tuple[str, str]]:
    yield f"{task}/cwd", "its working directory"
    yield f"{task}/root", "its root directory"
    for number in sorted(map(int, os.listdir(f"{task}/fd"))):
        yield f"{task}/fd/{number}", f"descriptor {number}"


def _mapped(process: str, devices: set[str]) -> Iterator[str]:
    """Yield the map_files links of files mapped from ``devices``, given as in mountinfo."""
    seen = set()
    with open(f"{process}/maps", "rb") as file:
        for line in file:
            addresses, _mode, _offset, device, mapped = line.split(None, 4)
            major, _, minor = device.partition(b":")
            wanted = f"{int(major, 16)}:{int(minor, 16)}" in devices
            if wanted and (device, mapped) not in seen:  # a file is mapped in several parts
                seen.add((device, mapped))
                first, _, last = addresses.partition(b"-")
                # map_files has no leading zeros (proc(5)).
                yield f"{process}/map_files/{int(first, 16):x}-{int(last, 16):x}"


def _check_link(
    link: str, what: str, task: str, wanted: Sequence[MountedDirectory], attached: _AttachedMounts
) -> Iterator[str]:
    """Yield ``what``, a description of ``link``, if the link leads into a wanted directory.

    The link is opened first, and all checks use that descriptor. While it is open, the kernel gives
    the mount's mnt_id to no other mount. No user's FUSE server gets a request: it might never
    answer.
    """
    try:
        fd = os.open(link, _PATH_ONLY)
    except (FileNotFoundError, ProcessLookupError):
        return  # closed meanwhile
    except PermissionError:
        raise
    except OSError as error:
        yield f"{what}, which cannot be opened ({error.strerror})"
        return
    try:
        if any(_lies_in(fd, task, directory) for directory in wanted):
            yield what
        elif _is_detached(fd, task, attached):
            yield f"{what}, in a detached mount"
    finally:
        os.close(fd)


def _lies_in(fd: int, task: str, directory: MountedDirectory) -> bool:
    """Return whether the object of a descriptor is, or may be, at or below ``directory``."""
    try:
        device: int | None = syscalls.device_of(fd)
    except OSError:  # a 9p server may fail for a removed file
        device = None
    # Subvolumes of btrfs have devices of their own, which mountinfo does not list.
    if device not in (None, directory.device) and directory.mount.fstype != "btrfs":
        return False
    number = mountinfo.number_of(fd)
    path = processes.link_of(b"/proc/self/fd/%d" % fd)
    if path is None:  # somewhere on this file system
        return True
    if number == directory.mount.mnt_id:
        return is_at_or_below(path, directory.path)
    mount = _mount(number, task)
    if mount is None:
        return device in (None, directory.device)
    inside = _joined(mount.root, path, mount.mount_point)
    return mount.device == directory.mount.device and (
        inside is None or is_at_or_below(inside, directory.root)
    )


def _mount(number: int, task: str) -> MountInfo | None:
    """Return a mount by its mnt_id, from this or any other namespace; None if none lists it.

    A descriptor's mount need not be in the holder's namespace: standard output is often inherited
    from another one. So all namespaces are searched, the task's own first.
    """
    own = next((mount for mount in mountinfo.listed() if mount.mnt_id == number), None)
    if own is not None:
        return own
    asked = set()
    for process in (task, *(f"{PROC}/{pid}" for pid in processes.pids())):
        with suppress(OSError):  # it has ended
            namespace = os.stat(f"{process}/ns/mnt").st_ino
            if namespace not in asked and (table := _whole_table(process)) is not None:
                asked.add(namespace)
                own = next((mount for mount in table if mount.mnt_id == number), None)
                if own is not None:
                    return own
    return None


def _whole_table(process: str) -> list[MountInfo] | None:
    """Return the mounts of a process's namespace; None if the process has changed its root.

    Its mountinfo then has paths relative to that root; links in /proc/self/fd do not.
    """
    if os.readlink(f"{process}/root") != "/":
        return None
    table = mountinfo.listed(process)
    # Checked again: it may have changed its root while mountinfo was read.
    return table if os.readlink(f"{process}/root") == "/" else None


def _is_detached(fd: int, task: str, attached: _AttachedMounts) -> bool:
    """Return whether ``fd`` is of a directory whose mount is in no mount namespace of a process.

    A directory from which nothing can be reached any more does not count.
    """
    number = mountinfo.number_of(fd)
    if attached.is_own(number):
        return False
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", _PATH_ONLY | os.O_DIRECTORY))
    except NotADirectoryError:
        return False
    except OSError:
        return True
    if attached.has(number):
        return False
    old_views = attached.old_views
    # The tables are read again: it may have been mounted since.
    if not old_views.has(fd) and (
        _mount(number, task) is not None or _AttachedMounts(PROC, old_views).has(number)
    ):
        return False
    return not old_views.leads_nowhere(fd)


def _joined(root: bytes, path: bytes, directory: bytes) -> bytes | None:
    """Return ``path`` with the prefix ``directory`` replaced by ``root``; None if it has not."""
    if not is_at_or_below(path, directory):
        return None
    rest = path[len(directory.rstrip(b"/")) :].lstrip(b"/")
    return os.path.join(root, rest) if rest else root


def is_at_or_below(path: bytes, directory: bytes) -> bool:
    """Return whether ``path`` is ``directory``, or lies in it."""
    inside = directory if directory.endswith(b"/") else directory + b"/"
    return path.removesuffix(b" (deleted)") == directory or path.startswith(inside)
