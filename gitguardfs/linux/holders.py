"""Processes that hold something of a directory, which covering the directory does not take away.

Whoever has its working directory, its root directory, a descriptor or a mapped file there goes on
working below it by relative paths, whatever is mounted on top later. It may have come there by any
mount of the same file system, in any mount namespace: what counts is the file system that a
descriptor is of, and where in that it lies, not by which mount it was opened.
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
"""How often to look for processes that were started during the look before."""
LOOKS = 8
"""How often to look at all, in another order each time: two processes may hand a descriptor to
each other, so that a single look finds neither with it."""
_PATH_ONLY = os.O_PATH | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """A directory, by where this namespace has it and by where it lies in its file system."""

    path: bytes
    mount: MountInfo
    """The mount of this namespace that has it."""
    device: int
    """Its st_dev."""

    @property
    def root(self) -> bytes:
        """Its path in its file system."""
        return _joined(self.mount.root, self.path, self.mount.mount_point) or self.mount.root

    def shown_by(self, mount: MountInfo) -> bytes | None:
        """Return where a mount, of any namespace, has it or something in it; None if nowhere."""
        if mount.device != self.mount.device:
            return None
        inside = _joined(mount.mount_point, self.root, mount.root)
        return inside or (mount.mount_point if is_at(mount.root, self.root) else None)


def places(
    path: bytes, mount: MountInfo, table: Sequence[MountInfo], device: int | None = None
) -> list[Place]:
    """Return ``path``, which ``mount`` has, and the shares that are mounted below it.

    ``device`` is its st_dev, where that is known; otherwise it is taken to be that of its mount.
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
    """A process that is not root's, and what it holds."""

    pid: int
    uid: int
    name: bytes
    """What it calls itself (comm): any bytes but NUL, so escape it before it is shown."""
    held: tuple[str, ...]
    """Working directory, root directory, descriptor N, mapped file: in this order, each once."""


def holders(wanted: Sequence[Place], proc: str = PROC) -> list[Holder]:
    """Return the processes that hold something at or below one of the places.

    Also those that hold a directory of a file system that is mounted nowhere now: what is mounted
    in that, as in what is left of a mount namespace, nobody else can see. And those in whose
    sockets descriptors wait at each look.

    To be called by root; left out are its own processes, those whose user ids are all 0 here.
    ``proc`` lists the processes. Those that end meanwhile are left out, and those that they have
    started are looked at. Raises OSError if one cannot be looked at, EAGAIN if new ones come all
    the time.
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
            if all(sent):  # what is on its way for a moment is not meant
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
    """The numbers of all mounts of this namespace and, if that is asked, of those of processes."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._own = {mount.mnt_id for mount in mountinfo.listed()}
        self._others: set[int] | None = None

    def is_own(self, number: int) -> bool:
        """Return whether a mount is of this namespace."""
        return number in self._own

    def has(self, number: int) -> bool:
        """Return whether a mount is in any of the namespaces."""
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
    """Yield the sockets of a process in which descriptors wait, of what the kernel does not tell.

    They may wait there for good, and are nobody's meanwhile (unix(7), SCM_RIGHTS).
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
    """Yield what leads to the mapped files of file systems, given as mountinfo has them."""
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
    """Yield ``what``, the name of a link of a task, if it is held.

    All questions are put to a descriptor of ours, which also keeps the mount's number from being
    given to another one. No FUSE server is asked: it could let us wait.
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
    """Return whether what a descriptor is of lies at or below a place, or may do so."""
    try:
        device: int | None = syscalls.device_of(fd)
    except OSError:  # a 9p server may answer so for what was removed
        device = None
    # Volumes of btrfs have devices of their own, which mountinfo does not tell.
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
    """Return a mount by its number: of this namespace, or of any other; None if none shows it.

    A descriptor's mount need not be of its holder's namespace: output is often inherited from a
    namespace around it. So all are asked, the task's own first.
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
    """Return the mounts of a process's namespace; None if it has a root directory of its own.

    That shows in mountinfo's paths, and not in those of links in /proc/self/fd.
    """
    if os.readlink(f"{process}/root") != "/":
        return None
    table = mountinfo.listed(process)
    # It may have left its root directory for the moment in which that was read.
    return table if os.readlink(f"{process}/root") == "/" else None


def _is_adrift(fd: int, task: str, attached: _Attached) -> bool:
    """Return whether a descriptor is of a directory whose mount is in no namespace of a process."""
    number = mountinfo.number_of(fd)
    if attached.is_own(number):
        return False
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", _PATH_ONLY | os.O_DIRECTORY))
    except NotADirectoryError:
        return False
    except OSError:
        return True
    # It may have been mounted since.
    return (
        not attached.has(number)
        and _mount(number, task) is None
        and not _Attached(PROC).has(number)
    )


def _joined(root: bytes, path: bytes, directory: bytes) -> bytes | None:
    """Return where ``path`` lies in the file system of which ``directory`` shows ``root``."""
    if not is_at(path, directory):
        return None
    rest = path[len(directory.rstrip(b"/")) :].lstrip(b"/")
    return os.path.join(root, rest) if rest else root


def is_at(place: bytes, path: bytes) -> bool:
    """Return whether ``place`` is ``path``, or lies in it."""
    inside = path if path.endswith(b"/") else path + b"/"
    return place.removesuffix(b" (deleted)") == path or place.startswith(inside)
