"""Opens paths by descriptors, one component at a time, so that users cannot redirect root.

A user may replace a directory on the path, or put a symlink or a FUSE mount there, while root
walks it.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from stat import S_IMODE, S_ISDIR, S_ISLNK

from gitguardfs.base.constants import DEAD, MAX_SYMLINKS
from gitguardfs.base.errors import Exit, UserError, os_error, shown
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo

_COMPONENT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class ForeignMountError(UserError):
    """A FUSE file system that a user has mounted is on the path."""

    def __init__(self, mount: MountInfo, path: str) -> None:
        super().__init__(
            f"a FUSE file system that is not root's is mounted at {path}"
            f" ({shown(mount.fstype)}, of user {mount.owner})",
            f"umount -i -l {shlex.quote(path)} removes it",
            Exit.MOUNT,
        )


def is_foreign(mount: MountInfo, also: int | None = None) -> bool:
    """Return whether a FUSE mount is of a user other than root, this process's and ``also``."""
    return mount.owner is not None and mount.owner not in (0, os.geteuid(), also)


@dataclass(frozen=True)
class PathComponent:
    """One directory on a path."""

    path: str
    uid: int
    mode: int

    @property
    def only_root_writes(self) -> bool:
        """Whether only root can change the names in it."""
        return self.uid == 0 and not self.mode & 0o022


@dataclass(frozen=True)
class ResolvedPath:
    """A resolved path: its existing part, with a descriptor of that, and the missing names."""

    path: str
    """Absolute, without symlinks as far as it exists."""
    fd: int
    """An O_PATH descriptor of the deepest directory that exists; the caller closes it."""
    components: tuple[PathComponent, ...]
    """The directories that exist, outermost first; without the roots of dead FUSE mounts."""
    missing: tuple[str, ...] = ()
    """The names that do not exist below ``fd``, outermost first."""


def open_directory(path: str, is_root: bool, also: int | None = None) -> int:
    """Return an O_PATH descriptor of the directory ``path``.

    Root walks by descriptors (``resolve``): work on the descriptor is then safe, although the path
    may lead elsewhere a moment later. Raises OSError, and UserError for a symlink that is refused.
    """
    if not is_root:
        return os.open(path, _DIRECTORY)
    found = resolve(path, also)
    if found.missing:
        os.close(found.fd)
        raise os_error(errno.ENOENT)
    return found.fd


def resolve(path: str, also: int | None = None) -> ResolvedPath:
    """Walk ``path`` by descriptors, one component at a time, as far as it exists.

    A user's FUSE file system on the path is refused, except that of the uid ``also``. No request
    is sent to it: one that does not answer would block root for ever.

    A symlink is followed if it is root's and in a directory that only root writes. So no user can
    redirect root, before or during the walk. Raises UserError for any other symlink,
    ForeignMountError, NotADirectoryError, and OSError if a component cannot be opened.
    """
    if not path:
        raise os_error(errno.ENOENT)
    fd = os.open("/" if path.startswith("/") else ".", _DIRECTORY)
    rest = _names(path)
    links = 0
    try:
        number = _passed(fd, 0, also)
        # The stats of the directories from / down to ``fd``, and their names.
        stats, names = [_stat(fd)], _names(path_of(fd))
        while rest:
            try:
                step = os.open(rest[0], _COMPONENT, dir_fd=fd)
            except FileNotFoundError:
                break
            try:
                number = _passed(step, number, also)
                name, st = rest.pop(0), _stat(step)
                if st is not None and S_ISLNK(st.st_mode):
                    links += 1
                    target = _target(step, st, stats[-1], name, path, links)
                    rest = _names(target) + rest
                    if target.startswith("/"):
                        slash = os.open("/", _DIRECTORY)
                        os.close(fd)
                        fd, stats, names = slash, [_stat(slash)], []
                    continue
                if name == "..":
                    stats, names = [*stats[:-2], st], names[:-1]
                else:
                    stats, names = [*stats, st], [*names, name]
                fd, step = step, fd
            finally:
                os.close(step)
        return _result(fd, stats, names, rest)
    except BaseException:
        os.close(fd)
        raise


def resolve_all(paths: Sequence[str]) -> list[ResolvedPath]:
    """Walk several paths as ``resolve`` does. On an error no descriptor is left open."""
    found: list[ResolvedPath] = []
    try:
        for path in paths:
            found.append(resolve(path))
    except BaseException:
        for one in found:
            os.close(one.fd)
        raise
    return found


def _passed(fd: int, former: int, also: int | None) -> int:
    """Return the mnt_id of the mount of ``fd``; ``former`` is that of a checked mount.

    Raises ForeignMountError for a user's FUSE file system, without sending a request to it.
    """
    number = mountinfo.number_of(fd)
    if number != former:
        # Read while ``fd`` is open, so that the kernel cannot give the number to another mount.
        mount = next((m for m in mountinfo.listed() if m.mnt_id == number), None)
        if mount is not None and is_foreign(mount, also):
            raise ForeignMountError(mount, mount.path)
    return number


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _stat(fd: int) -> os.stat_result | None:
    """Return the stat of ``fd``; None for the root of a dead FUSE mount."""
    try:
        return os.fstat(fd)
    except OSError as error:
        if error.errno in DEAD:
            return None
        top = next(iter(mountinfo.stack_of(fd)), None)
        if top is not None and is_foreign(top):
            raise ForeignMountError(top, top.path) from None
        raise OSError(error.errno, error.strerror, path_of(fd)) from None


def _target(
    fd: int,
    link: os.stat_result,
    directory: os.stat_result | None,
    name: str,
    path: str,
    links: int,
) -> str:
    """Return the target of a symlink on the path. UserError if a user may have put it there."""
    if links > MAX_SYMLINKS:
        raise os_error(errno.ELOOP)
    target = os.readlink("", dir_fd=fd)
    others = ""
    if link.st_uid != 0:
        others = "that is not root's"
    elif directory is None or directory.st_uid != 0 or directory.st_mode & 0o022:
        others = "in a directory that others can change"
    if others:
        raise UserError(
            f"{path}: {name} is a symlink {others}, and leads to {shown(target)}",
            "give the directory itself",
        )
    return target


def _result(
    fd: int, stats: list[os.stat_result | None], names: list[str], rest: list[str]
) -> ResolvedPath:
    last = stats[-1]
    if last is not None and not S_ISDIR(last.st_mode):
        raise os_error(errno.ENOTDIR, path_of(fd))
    if ".." in rest:
        raise os_error(errno.ENOENT)
    found = [
        PathComponent("/" + "/".join(names[: len(names) - above]), st.st_uid, S_IMODE(st.st_mode))
        for above, st in enumerate(reversed(stats))
        if st is not None
    ]
    path = "/" + "/".join([*names, *rest])
    return ResolvedPath(path, fd, tuple(reversed(found)), tuple(rest))


def open_file(path: str, is_root: bool, flags: int) -> int:
    """Return a descriptor of the file ``path``. Raises what ``open_file_in`` raises."""
    parent = open_directory(os.path.dirname(path) or ".", is_root)
    try:
        return open_file_in(parent, os.path.basename(path), is_root, flags)
    finally:
        os.close(parent)


def open_file_in(parent: int, name: str, is_root: bool, flags: int) -> int:
    """Return a descriptor of a file in the directory ``parent``; a new one gets the mode 0600.

    Root opens only a file that no other user can have put there: it is root's, has one link, and
    only root may write it. Raises OSError, and UserError for any other file.
    """
    # O_NONBLOCK: opening a FIFO without a reader fails, and does not wait.
    flags |= os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(name, flags | (os.O_NOFOLLOW if is_root else 0), 0o600, dir_fd=parent)
    st = os.fstat(fd)
    if not is_root or (st.st_uid == 0 and st.st_nlink == 1 and not st.st_mode & 0o022):
        os.set_blocking(fd, True)
        return fd
    path = os.path.join(path_of(parent), name)
    os.close(fd)
    raise UserError(
        f"{path} must belong to root, have one link, and be writable by root alone",
        f"stat {shlex.quote(path)} shows it; choose a file in a directory that only root writes",
    )


def path_of(fd: int) -> str:
    """Return the path of the object behind a descriptor, as the kernel has it now."""
    return os.readlink(f"/proc/self/fd/{fd}")
