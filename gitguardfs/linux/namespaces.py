"""Lists mount namespaces other than this process's, and what keeps each alive.

A namespace is kept by a process in it, by an open descriptor of its file (/proc/PID/ns/mnt), or by
a mount of that file (namespaces(7)). A user with capabilities in its user namespace can enter it
again.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from gitguardfs.linux import mountinfo, processes
from gitguardfs.linux.mountinfo import MountInfo

NS_GET_USERNS, NS_GET_PARENT, NS_GET_OWNER_UID = 0xB701, 0xB702, 0xB704
"""Requests of ioctl(2) (ioctl_ns(2)). On a namespace: the user namespace that owns it. On a user
namespace: its parent, and the uid that made it."""
LOOKS = 3
"""How often to search: two processes may hand a descriptor to each other meanwhile."""

_NAME = re.compile(rb"mnt:\[([0-9]+)\]")
NamespaceId = tuple[int, int]


@dataclass(frozen=True)
class MountNamespace:
    """One mount namespace, by one of the things that keep it."""

    identity: NamespaceId
    """Device and inode number (namespaces(7)); (0, 0) if the kernel does not show them."""
    path: str
    """The file to open for it, which may lie in a user's directory."""
    label: str
    """What keeps it alive, with names that users have chosen."""
    process: str = ""
    """The directory in /proc of a process in it; empty if none is known."""
    uids: frozenset[int] = field(default=frozenset(), compare=False)
    """The user ids of the processes that keep it alive."""
    makers: frozenset[int] | None = field(default=None, compare=False)
    """The uids that made its user namespace and those above, up to our own: these may enter it.

    Empty if it belongs to our own user namespace; None if that is not known.
    """


def own() -> NamespaceId:
    """Return the identity of this process's mount namespace."""
    st = os.stat("/proc/self/ns/mnt")
    return st.st_dev, st.st_ino


def others(proc: str = processes.PROC) -> list[MountNamespace]:
    """Return each mount namespace but this process's once, and all of unknown identity.

    A namespace is given by a process in it, with the user ids of all its processes. Without one, it
    is given by a descriptor, or by a mount here or in a process's namespace. ``proc`` lists the
    processes. Raises OSError.
    """
    found: dict[object, MountNamespace] = {}
    for _ in range(LOOKS):
        inside = list(_inside(proc))
        kept = [*_by_descriptors(proc), *_mounted(_distinct(inside))]
        for one in (*inside, *kept):
            key: object = one.path if one.identity == (0, 0) else one.identity
            if one.identity == own():
                continue
            first = found.setdefault(key, one)
            if one.process and first.process:
                uids = first.uids | one.uids
                found[key] = MountNamespace(
                    first.identity, first.path, first.label, first.process, uids, first.makers
                )
    return list(found.values())


def _distinct(found: Iterable[MountNamespace]) -> Iterator[MountNamespace]:
    seen = {own()}
    for one in found:
        if one.identity not in seen:
            seen.add(one.identity)
            yield one


def _pids(proc: str) -> list[str]:
    return sorted(processes.pids(proc), key=int) if os.path.isdir(proc) else []


def _inside(proc: str) -> Iterator[MountNamespace]:
    for pid in _pids(proc):
        process = f"{proc}/{pid}"
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            label, uids = _named(process)
            identity, makers = _asked(f"{process}/ns/mnt")
            yield MountNamespace(identity, f"{process}/ns/mnt", label, process, uids, makers)


def _by_descriptors(proc: str) -> Iterator[MountNamespace]:
    device = own()[0]
    for pid in _pids(proc):
        process = f"{proc}/{pid}"
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            label, uids = _named(process)
            for path in _descriptors(process):
                with suppress(FileNotFoundError, ProcessLookupError):
                    name = _NAME.fullmatch(processes.link_of(os.fsencode(path)) or b"")
                    if name is not None:
                        number = path.rpartition("/")[2]
                        identity = device, int(name[1])
                        makers = _asked(path)[1]
                        said = f"descriptor {number} of {label}"
                        yield MountNamespace(identity, path, said, uids=uids, makers=makers)


def _descriptors(process: str) -> Iterator[str]:
    # Threads may have descriptors of their own (unshare(2), CLONE_FILES).
    for task in os.listdir(f"{process}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for number in os.listdir(f"{process}/task/{task}/fd"):
                yield f"{process}/task/{task}/fd/{number}"


def _mounted(spaces: Iterable[MountNamespace]) -> Iterator[MountNamespace]:
    """Yield the namespaces that are mounted here, or in one of ``spaces``."""
    device = own()[0]
    for process in ("", *(one.process for one in spaces)):
        with suppress(OSError):  # it has ended
            for mount in mountinfo.listed(process or "/proc/self"):
                name = mounted_namespace(mount)
                if name is not None:
                    place = mount.path
                    inside = f" in the mount namespace of {_named(process)[0]}" if process else ""
                    path = f"{process}/root{place}" if process else place
                    # Its makers stay unknown: opening it could block if a user serves the path.
                    yield MountNamespace((device, int(name)), path, f"the mount {place}{inside}")


def mounted_namespace(mount: MountInfo) -> str | None:
    """Return the inode number of the namespace that is mounted; None for other mounts."""
    name = _NAME.fullmatch(mount.root) if mount.fstype == "nsfs" else None
    return name[1].decode() if name is not None else None


def _named(process: str) -> tuple[str, frozenset[int]]:
    status = processes.status_of(process)
    name = status.partition(b"\n")[0].removeprefix(b"Name:\t")
    label = f"process {os.path.basename(process)} ({os.fsdecode(name)})"
    return label, frozenset(processes.user_ids(status))


def _asked(path: str) -> tuple[NamespaceId, frozenset[int] | None]:
    """Return identity and makers of a namespace; (0, 0) and None if opening it is denied."""
    try:
        namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return (0, 0), None
    try:
        st = os.fstat(namespace)
        return (st.st_dev, st.st_ino), makers_of(namespace)
    finally:
        os.close(namespace)


def makers_of(namespace: int) -> frozenset[int]:
    """Return the uids that made a namespace's user namespace and those above, up to our own.

    There are several if user namespaces are nested. Empty if it belongs to our own user namespace
    or to one above. Raises OSError.
    """
    makers: set[int] = set()
    here = os.stat("/proc/self/ns/user")
    fd = os.dup(namespace)
    question = NS_GET_USERNS
    try:
        while True:
            try:
                above = fcntl.ioctl(fd, question)
            except PermissionError:  # above our own
                return frozenset(makers)
            os.close(fd)
            fd, question = above, NS_GET_PARENT
            if os.path.samestat(os.fstat(fd), here):
                return frozenset(makers)
            makers.add(int.from_bytes(fcntl.ioctl(fd, NS_GET_OWNER_UID, bytes(4)), sys.byteorder))
    finally:
        os.close(fd)
