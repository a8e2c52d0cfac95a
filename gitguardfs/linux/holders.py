"""Finds processes that hold something in a directory, and keep it when the directory is covered.

A process that has its working directory, its root directory, a descriptor or a mapped file there
can go on using relative paths below the directory, whatever is mounted on top later. It may have
opened these by any mount of the same file system, in any mount namespace. So what counts is a
descriptor's file system and the place in it, not the mount by which it was opened.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gitguardfs.linux import mountinfo, processes, syscalls
from gitguardfs.linux.mountinfo import MountInfo

PROC = processes.PROC
PASSES = 50
"""How often to search again, at most, for processes that were started during the last search."""
LOOKS = 8
"""How often to search at least, in a random order each time: two processes may hand a descriptor
to each other, so that a single search misses it in both."""
_PATH_ONLY = os.O_PATH | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """A directory: its path in this mount namespace, and its place in its file system."""

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
        """Return where ``mount``, of any namespace, shows it or a part of it; None if nowhere."""
        if mount.device != self.mount.device:
            return None
        inside = _joined(mount.mount_point, self.root, mount.root)
        return inside or (mount.mount_point if is_at(mount.root, self.root) else None)


def places(
    path: bytes, mount: MountInfo, table: Sequence[MountInfo], device: int | None = None
) -> list[Place]:
    """Return the place ``path``, which is in ``mount``, and those of the shares mounted below it.

    ``device`` is the st_dev of ``path``; None stands for that of ``mount``.
    """
    below = [
        Place(each.mount_point, each, each.st_dev)
        for each in table
        if each.fstype in mountinfo.SHARE_TYPES
        and each.mount_point != path
        and is_at(each.mount_point, path)
    ]
    return [Place(path, mount, mount.st_dev if device is None else device), *below]


@dataclass(frozen=True)
class Holder:
    """A process with a user id other than root's, and what it holds."""

    pid: int
    uid: int
    name: bytes
    """The name that the process chose (comm): any bytes but NUL, to be escaped when shown."""
    held: tuple[str, ...]
    """Working directory, root directory, descriptor N, mapped file: in this order, each once."""


def holders(wanted: Sequence[Place], proc: str = PROC) -> list[Holder]:
    """Return the processes that hold something at or below one of the places.

    Also returned are processes that hold a directory of a file system that is mounted nowhere now.
    Such a directory may be left of a mount namespace, and nobody else can see what is mounted in
    it. So are processes in whose sockets descriptors wait, if some waited in every search.

    Must be called by root. Root's own processes, whose user ids are all 0, are left out.
    ``proc`` lists the processes. A process that ends meanwhile is left out, and its children are
    looked at. Raises OSError if a process cannot be looked at, EAGAIN if new ones keep coming.
    """
    found: dict[int, Holder] = {}
    sent: list[dict[int, Holder]] = []
    seen: set[int] = set()
    for look in range(1, PASSES + 1):
        listed = set(map(int, filter(str.isdecimal, os.listdir(proc))))
        users = {pid: uid for pid in listed if (uid := _user_of(f"{proc}/{pid}")) != 0}
        attached = _Attached(proc)
        for pid in random.sample(sorted(users), len(users)):
            look_at = partial(_held, wanted=wanted, attached=attached)
            one = _holder(proc, pid, users[pid], look_at)
            if one is not None:
                held = (*found[pid].held, *one.held) if pid in found else one.held
                found[pid] = Holder(pid, one.uid, one.name, tuple(dict.fromkeys(held)))
        waiting = (_holder(proc, pid, uid, _sent) for pid, uid in users.items())
        sent.append({one.pid: one for one in waiting if one is not None})
        is_stable = listed <= seen
        if (is_stable or found) and (look >= LOOKS or (look > 1 and not users)):
            if all(sent):  # a descriptor that is in a socket only for a moment does not count
                found = {**sent[-1], **found}
            return [found[pid] for pid in sorted(found)]
        seen |= listed
    raise OSError(errno.EAGAIN, "processes come and go too fast to be looked through")


def _user_of(process: str) -> int:
    """Return one of a process's user ids that is not 0; 0 if there is none, or it has ended."""
    try:
        with open(f"{process}/status", "rb") as file:
            return next((uid for uid in processes.user_ids(file.read()) if uid != 0), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


class _Attached:
    """The mnt_ids in this namespace and, read when needed, in the namespaces of all processes."""

    def __init__(self, proc: str) -> None:
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
        for pid in filter(str.isdecimal, os.listdir(self._proc)):
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
        with open(f"{process}/comm", "rb") as file:
            return Holder(pid, uid, file.read().removesuffix(b"\n"), held)
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended


def _held(process: str, wanted: Sequence[Place], attached: _Attached) -> Iterator[str]:
    # Threads may have directories and descriptors of their own (unshare(2), CLONE_FS).
    for task in os.listdir(f"{process}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for link, what in _links(f"{process}/task/{task}"):
                yield from _looked_at(link, what, f"{process}/task/{task}", wanted, attached)
    devices = {place.mount.device for place in wanted}
    for link in _mapped(process, devices):
        yield from _looked_at(link, "a mapped file", process, wanted, attached)


def _sent(process: str) -> Iterator[str]:
    """Yield the sockets of a process in which descriptors wait (unix(7), SCM_RIGHTS).

    The kernel does not tell what these descriptors lead to. They may wait there for ever, and
    belong to no process meanwhile.
    """
    for task in os.listdir(f"{process}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for number in os.listdir(f"{process}/task/{task}/fd"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    link = os.readlink(f"{process}/task/{task}/fd/{number}")
                    is_socket = link.startswith("socket:")
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


def _looked_at(
    link: str, what: str, task: str, wanted: Sequence[Place], attached: _Attached
) -> Iterator[str]:
    """Yield ``what``, the description of a task's ``link``, if the link leads to a wanted place.

    The link is opened first, and all checks use that descriptor. It also keeps the kernel from
    giving the mount's mnt_id to another mount. No FUSE server is asked: it could let us wait.
    """
    try:
        fd = os.open(link, _PATH_ONLY)
    except (FileNotFoundError, ProcessLookupError):
        return  # closed meanwhile
    except PermissionError:
        raise
    except OSError as error:
        yield f"{what}, which cannot be looked at ({error.strerror})"
        return
    try:
        if any(_lies_in(fd, task, place) for place in wanted):
            yield what
        elif _is_adrift(fd, task, attached):
            yield f"{what}, in what is mounted nowhere now"
    finally:
        os.close(fd)


def _lies_in(fd: int, task: str, place: Place) -> bool:
    """Return whether the object of a descriptor lies, or may lie, at or below a place."""
    try:
        device: int | None = syscalls.device_of(fd)
    except OSError:  # a 9p server may fail for a removed file
        device = None
    # Subvolumes of btrfs have devices of their own, which mountinfo does not list.
    if device not in (None, place.device) and place.mount.fstype != "btrfs":
        return False
    number = mountinfo.number_of(fd)
    path = os.readlink(b"/proc/self/fd/%d" % fd)
    if number == place.mount.mnt_id:
        return is_at(path, place.path)
    mount = _mount(number, task)
    if mount is None:
        return device in (None, place.device)
    inside = _joined(mount.root, path, mount.mount_point)
    return mount.device == place.mount.device and (inside is None or is_at(inside, place.root))


def _mount(number: int, task: str) -> MountInfo | None:
    """Return a mount by its mnt_id, from this or any other namespace; None if none lists it.

    A descriptor's mount need not be in the holder's namespace: standard output is often inherited
    from another one. So all namespaces are searched, the task's own first.
    """
    own = next((mount for mount in mountinfo.listed() if mount.mnt_id == number), None)
    if own is not None:
        return own
    asked = set()
    for process in (task, *(f"{PROC}/{pid}" for pid in filter(str.isdecimal, os.listdir(PROC)))):
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


def _is_adrift(fd: int, task: str, attached: _Attached) -> bool:
    """Return whether ``fd`` is of a directory whose mount is in no process's namespace."""
    number = mountinfo.number_of(fd)
    if attached.is_own(number):
        return False
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", _PATH_ONLY | os.O_DIRECTORY))
    except NotADirectoryError:
        return False
    except OSError:
        return True
    # The tables are read again: it may have been mounted since.
    return (
        not attached.has(number)
        and _mount(number, task) is None
        and not _Attached(PROC).has(number)
    )


def _joined(root: bytes, path: bytes, directory: bytes) -> bytes | None:
    """Return where ``path`` lies below ``root``, shown at ``directory``; None if outside."""
    if not is_at(path, directory):
        return None
    rest = path[len(directory.rstrip(b"/")) :].lstrip(b"/")
    return os.path.join(root, rest) if rest else root


def is_at(place: bytes, path: bytes) -> bool:
    """Return whether ``place`` is ``path``, or lies in it."""
    inside = path if path.endswith(b"/") else path + b"/"
    return place.removesuffix(b" (deleted)") == path or place.startswith(inside)
