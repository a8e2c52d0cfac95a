"""Finds users' processes that still reach a source after it was sealed. Called once for a seal.

A seal covers a path. It does not reach what a process held before: a working directory, a root
directory, a descriptor, a mapped file, a mount namespace with a copy of the source's mount.

Each process is searched once. Descriptors that wait in sockets or in io_uring are not found, nor is
a process that hands them on meanwhile. Below a directory that only root enters, a copy of the
source's mount is closed as well; a user may have another one, from where the share was before.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from gitguardfs.base.constants import DEAD, SHARE_TYPES
from gitguardfs.base.errors import os_error, shown
from gitguardfs.linux import mountinfo, processes, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import seal

NAMED = 5
"""Processes that the message names; more would make the line unreadable."""
MAX_LISTINGS = 50
"""Listings of /proc at most: users could start processes for ever. An idle machine needs two."""
END_THEM = "leave the directory or end it, then start again; or the option allow-holders"
SEARCH_FAILED = "the option allow-holders starts all the same, with a warning"
_NS_GET_USERNS = 0xB701
"""ioctl_ns(2): the user namespace that owns a namespace."""


@dataclass(frozen=True)
class _Source:
    """The sealed directory."""

    path: bytes
    mount: MountInfo
    """The mount that the seal covers."""
    device: int
    """The st_dev of the directory, which mountinfo lacks for a subvolume of btrfs."""

    @property
    def root(self) -> bytes:
        """The path of the directory in its file system."""
        return _moved(self.path, self.mount.mount_point, self.mount.root) or self.mount.root

    def is_shown_by(self, mount: MountInfo) -> bool:
        """Return whether a mount, of any namespace, shows the directory or a part of it."""
        return mount.device == self.mount.device and (
            _is_in(self.root, mount.root) or _is_in(mount.root, self.root)
        )


@dataclass(frozen=True)
class _Closed:
    """A directory above the source that only root enters."""

    mount: MountInfo
    path: bytes
    """Its path in its file system."""

    def is_above(self, mount: MountInfo, mounts: list[MountInfo], source: _Source) -> bool:
        """Return whether the way to the source in a mount, one of ``mounts``, leads through it."""
        if self.mount == source.mount and _is_in(self.path, mount.root):
            return True
        by_number = {one.mnt_id: one for one in mounts}
        while (above := by_number.pop(mount.parent_id, None)) is not None:
            place = _moved(mount.mount_point, above.mount_point, above.root)
            if above.device == self.mount.device and place and _is_in(place, self.path):
                return True
            mount = above
        return False


@dataclass
class _Namespace:
    """A mount namespace and its mounts."""

    mounts: list[MountInfo] = field(default_factory=list)
    """Empty if each process in it has a root directory of its own."""
    user: str = ""
    """A user's process in it, or with a descriptor of it; empty if there is none."""
    is_users: bool = False
    """Whether a user made it (user_namespaces(7)): that user can unmount later mounts in it."""

    def shows(self, source: _Source, closed: _Closed | None) -> bool:
        """Return whether a user in the namespace reaches the source, perhaps by unmounting."""
        if not self.mounts:
            return closed is None or self.is_users  # nobody can tell
        if self.is_users and any(m.root.startswith(b"mnt:[") for m in self.mounts):
            return True  # it keeps another namespace
        sealed = {m.parent_id for m in self.mounts if seal.is_seal(m)}
        return any(
            source.is_shown_by(mount)
            and (self.is_users or mount.mnt_id not in sealed)
            and not (closed and closed.is_above(mount, self.mounts, source))
            for mount in self.mounts
        )


def describe(source: str, number: int, device: int) -> tuple[str, str]:
    """Return a message that names who reaches a sealed source, and a hint; both empty for nobody.

    ``number`` is the mnt_id of the mount that the seal covers; ``device`` is the st_dev of the
    source.
    """
    try:
        found = find(source, number, device)
    except OSError as error:
        return failed(f"cannot find what holds {source} from before the seal", error)
    if not found:
        return "", ""
    return f"processes hold {source} from before the seal: {named(found)}", END_THEM


def failed(what: str, error: OSError) -> tuple[str, str]:
    """Return the message about a search that failed, and a hint."""
    needs = " (CAP_SYS_PTRACE)" if isinstance(error, PermissionError) else ""
    return f"{what}: {error.strerror}{needs}", SEARCH_FAILED


def named(found: list[str]) -> str:
    """Return the text that names the first of the processes that were found."""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more


def find(source: str, number: int, device: int) -> list[str]:
    """Return the users' processes that reach the source, each with its name and the held objects.

    Raises OSError if a process cannot be searched.
    """
    own = {mount.mnt_id: mount for mount in mountinfo.listed()}
    if number not in own:
        raise OSError(errno.ENOENT, "its mount is not listed; in a chroot, bind / onto itself")
    sealed = _Source(os.fsencode(source), own[number], device)
    sources = [sealed] + [
        _Source(mount.mount_point, mount, mount.st_dev)
        for mount in own.values()
        if mount.fstype in SHARE_TYPES
        and sealed.path != mount.mount_point
        and _is_in(mount.mount_point, sealed.path)
    ]
    namespaces = _namespaces()
    others = {m.mnt_id: m for space in namespaces.values() for m in space.mounts}
    closed = _closed_above(source, own)

    def kind_of(link: str, what: str, label: str) -> str:
        if _leads_to(link, sources, own, others):
            return what
        is_space = _is_namespace(link, label, namespaces)
        return f"{what}, a mount namespace without a process" if is_space else ""

    found = find_holders({one.mount.device for one in sources}, kind_of)
    return found + [
        f"{space.user}: a mount namespace that shows it"
        for space in namespaces.values()
        if space.user and any(space.shows(one, closed) for one in sources)
    ]


def find_holders(devices: set[str], kind_of: Callable[[str, str, str], str]) -> list[str]:
    """Return the users' processes with what counts of all that they hold.

    ``kind_of`` gets a link in /proc, its name and the process's; it returns the name of what is
    held, "" if that does not count. Mapped files come from ``devices``, given as in mountinfo.
    Raises OSError if a process cannot be searched.
    """
    found = []
    for pid in _until_settled(processes.pids):
        process = f"{processes.PROC}/{pid}"
        held: dict[str, None] = {}
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if any(processes.uids_of(process)):
                label = f"{pid} ({shown(processes.name_of(process))})"
                for link, what in _held(process, devices):
                    if kind := kind_of(link, what, label):
                        held[kind] = None
        found += [f"{label}: {', '.join(held)}"] if held else []
    return found


def _closed_above(source: str, own: dict[int, MountInfo]) -> _Closed | None:
    path = seal.closed_above(source, 0)
    if path is None:
        return None
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        mount = own.get(mountinfo.number_of(fd))
    finally:
        os.close(fd)
    if mount is None:
        return None
    inside = _moved(os.fsencode(path), mount.mount_point, mount.root)
    return None if inside is None else _Closed(mount, inside)


def _until_settled(listed: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Yield the listed processes; list again until no new one can be a user's.

    A process that has ended meanwhile may have left a child with all that it held. Raises
    OSError(EAGAIN) after too many listings.
    """
    seen: set[str] = set()
    for _ in range(MAX_LISTINGS):
        new = [process for process in listed() if process not in seen]
        yield from new
        if not any(map(_may_be_of_user, new)):
            return
        seen.update(new)
    raise os_error(errno.EAGAIN)


def _may_be_of_user(process: str) -> bool:
    try:
        return any(processes.uids_of(process))
    except (FileNotFoundError, ProcessLookupError):
        return True


def _namespaces() -> dict[int, _Namespace]:
    """Return the mount namespaces of all processes but our own, by inode number."""
    own = os.stat("/proc/self/ns/mnt").st_ino
    user_namespace = os.stat("/proc/self/ns/user")
    found: dict[int, _Namespace] = {}
    for process in _until_settled(processes.tasks):
        is_user = False
        try:
            is_user = any(processes.uids_of(process))
            number = os.stat(f"{process}/ns/mnt").st_ino
            if number == own:
                continue
            name = f"{process.split('/')[2]} ({shown(processes.name_of(process))})"
            # After chroot(2), mountinfo lacks mounts outside of the new root.
            mounts = mountinfo.listed(process)
            if (
                os.readlink(f"{process}/root") != "/"
                or os.stat(f"{process}/ns/mnt").st_ino != number
            ):
                mounts = []
            space = found.setdefault(number, _Namespace())
            space.mounts = space.mounts or mounts
            space.user = name if is_user else space.user
            with open(f"{process}/ns/mnt", "rb") as file, suppress(PermissionError):  # above ours
                owner = fcntl.ioctl(file, _NS_GET_USERNS)
                space.is_users = not os.path.samestat(os.fstat(owner), user_namespace)
                os.close(owner)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError:
            if is_user:
                raise
            # A process of root's has more rights than this one, as a container's first one may.
    return found


def _held(process: str, devices: set[str]) -> Iterator[tuple[str, str]]:
    """Yield ``processes.held_by``, and the files mapped from devices, given as in mountinfo."""
    yield from processes.held_by(process)
    thread, lines = processes.maps_of(process)
    files = {}
    for line in lines:
        addresses, _mode, _offset, numbers, inode = line.split(None, 5)[:5]
        files[numbers, inode] = addresses  # a file is mapped in several parts
    for (numbers, _), addresses in files.items():
        if ":".join(str(int(part, 16)) for part in numbers.split(b":")) in devices:
            # map_files has no leading zeros (proc(5)).
            first, last = (int(part, 16) for part in addresses.split(b"-"))
            yield f"{thread}/map_files/{first:x}-{last:x}", "a mapped file"


def _leads_to(
    link: str,
    sources: list[_Source],
    own: dict[int, MountInfo],
    others: dict[int, MountInfo],
) -> bool:
    """Return whether a link leads to a source or below it; True if that cannot be told.

    ``own`` and ``others`` are the mounts of this namespace and of all others, by mnt_id. A
    directory in a mount of none of them counts: a copy of a source may be mounted further down,
    and nobody can look. No request is sent to a user's FUSE server, which need not
    answer.
    """
    try:
        fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        try:
            processes.link_of(link)
        except (FileNotFoundError, ProcessLookupError):
            return False  # closed meanwhile, or of a process that has ended
        return True  # the file's server says so
    try:
        number = mountinfo.number_of(fd)
        path = processes.link_of(b"/proc/self/fd/%d" % fd)
        here = own.get(number)
        if here is not None and path is not None and _is_in(path, sources[0].path):
            return not seal.is_seal(here)
        try:
            device: int | None = syscalls.device_of(fd)
        except OSError:  # a 9p server may fail for a removed file
            device = None
        mount = here or others.get(number)
        if mount is None:
            return device in (None, *(source.device for source in sources)) or (
                is_directory(fd) and not _is_old_view(fd, device)
            )
        inside = None if path is None else _moved(path, mount.mount_point, mount.root)
        return any(
            mount.device == source.mount.device
            # Subvolumes of btrfs have devices of their own.
            and (device in (None, source.device) or mount.fstype == "btrfs")
            and (inside is None or _is_in(inside, source.root))
            for source in sources
        )
    finally:
        os.close(fd)


def is_directory(fd: int) -> bool:
    """Return whether a descriptor is of a directory, without a request to its file system."""
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except NotADirectoryError:
        return False
    return True


def _is_old_view(fd: int, device: int | None) -> bool:
    """Return whether a descriptor is in a FUSE file system of root's without a daemon.

    Nothing can be reached from a view of ours then. The kernel says in fusectl whose it is.
    """
    control = syscalls.new_mount("fusectl", "none", syscalls.MOUNT_ATTR_NOSUID, {})
    try:
        is_roots = os.stat(str(os.minor(device or 0)), dir_fd=control).st_uid == 0
    except OSError:  # not of FUSE
        return False
    finally:
        os.close(control)
    return is_roots and has_ended(fd)


def has_ended(fd: int) -> bool:
    """Return whether a descriptor is in a FUSE file system without a daemon."""
    try:
        os.statvfs(fd)  # never answered from a cache
    except OSError as error:
        return error.errno in DEAD
    return False


def _is_namespace(link: str, label: str, namespaces: dict[int, _Namespace]) -> bool:
    """Return whether a link leads to a mount namespace without a process.

    Nobody can look into that without entering it. A user's descriptor of another one is noted in
    ``namespaces``, since its holder may enter.
    """
    try:
        text = processes.link_of(link) or ""
    except OSError:
        return False
    if not text.startswith("mnt:[") or text == os.readlink("/proc/self/ns/mnt"):
        return False
    space = namespaces.get(int(text[5:-1]))
    if space is not None:
        space.user = space.user or label
    return space is None


def _is_in(path: bytes, directory: bytes) -> bool:
    """Return whether a path is that of a directory, or lies in the directory."""
    return path.removesuffix(b" (deleted)") == directory or path.startswith(
        directory.rstrip(b"/") + b"/"
    )


def _moved(path: bytes, old: bytes, new: bytes) -> bytes | None:
    """Return a path with the directory ``old`` at its beginning replaced by ``new``, or None."""
    if not _is_in(path, old):
        return None
    return os.path.normpath(new + b"/" + path[len(old.rstrip(b"/")) :]).replace(b"//", b"/")
