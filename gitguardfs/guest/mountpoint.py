"""Mount points that the user names: resolved by descriptors, and made if they are missing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest.changes import Changes
from gitguardfs.linux import mountinfo, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.programs import Ids, call
from gitguardfs.linux.safe_open import PathComponent, ResolvedPath
from gitguardfs.mounting import guards, lid, preflight

_MADE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Mountpoint:
    """A resolved path, and how much of it exists. The existing part contains no symlinks."""

    path: str
    components: tuple[PathComponent, ...]
    """The directories that exist, from / on; the last one is ``path`` if that exists."""
    missing: tuple[str, ...] = ()
    """The paths of the directories to create, outermost first."""
    is_empty: bool = True
    """Whether the directory is empty; where a view is mounted, the directory below the view."""
    fd: int = -1
    """If ``missing`` is not empty: an O_PATH descriptor of the directory to create it in."""

    @property
    def parents(self) -> tuple[PathComponent, ...]:
        """Existing directories above ``path``."""
        return tuple(found for found in self.components if found.path != self.path)

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)


def resolve(path: str) -> Mountpoint:
    """Resolve one path; see ``resolve_all``."""
    return resolve_all([path], mountinfo.listed())[0]


def resolve_all(paths: Sequence[str], mounts: Sequence[MountInfo]) -> list[Mountpoint]:
    """Resolve paths by descriptors, once: later steps use the result, not the paths as typed.

    ``mounts`` are the current mounts; a view of ours is recognised by them. Raises UserError for
    a symlink that a user may have created, OSError for a directory that cannot be read.
    """
    try:
        found = safe_open.resolve_all([os.path.abspath(path) for path in paths])
    except PermissionError as error:  # root is refused only by a FUSE mount of another user
        raise not_ours(str(error.filename)) from None
    except NotADirectoryError as error:
        raise UserError(f"{error.filename or paths[0]} is not a directory") from None
    with ExitStack() as opened:
        for one in found:
            opened.callback(os.close, one.fd)
        made = [_mountpoint(one, mounts) for one in found]
        return [
            replace(one, fd=os.dup(resolved.fd)) if one.missing else one
            for one, resolved in zip(made, found, strict=True)
        ]


def _mountpoint(found: ResolvedPath, mounts: Sequence[MountInfo]) -> Mountpoint:
    missing = [
        found.path.removesuffix("/".join(["", *found.missing[count + 1 :]]))
        for count in range(len(found.missing))
    ]
    above = os.path.dirname(missing[0]) if missing else found.path
    if safe_open.path_of(found.fd) != above:
        raise UserError(f"{above} was moved while its path was resolved", "try again", Exit.SYSTEM)
    is_empty = bool(missing) or _is_empty(found, mounts)
    return Mountpoint(found.path, found.components, tuple(missing), is_empty)


def not_ours(path: str) -> UserError:
    """Return the error for a FUSE mount at ``path`` that belongs to an ordinary user."""
    return UserError(
        f"a FUSE file system that is not root's is mounted at {path}",
        f"see findmnt {shlex.quote(path)}; umount -i -l {shlex.quote(path)} removes it",
        Exit.MOUNT,
    )


def _is_empty(found: ResolvedPath, mounts: Sequence[MountInfo]) -> bool:
    """Return whether a directory is empty; look below a view or a lid that is mounted on it."""
    number = mountinfo.number_of(found.fd)
    top = next((mount for mount in mounts if mount.mnt_id == number), None)
    if top is None or not (guards.is_guard(top) or lid.is_lid(top)):
        return preflight.is_empty(found.fd)
    try:
        parent = safe_open.open_directory(os.path.dirname(found.path), True)
        try:
            below = syscalls.clone_tree(b"/proc/self/fd/%d" % parent, recursive=False)
        finally:
            os.close(parent)
        try:
            return preflight.is_empty(below, os.path.basename(found.path))
        finally:
            os.close(below)
    except OSError:
        return False  # not known: treated as not empty


def make_missing(changes: Changes, mountpoint: Mountpoint, owner: Ids, mode: int = 0o755) -> None:
    """Make a missing mount point, which becomes ``owner``'s. Raises UserError.

    Where a user may write, only that user's rights are used, since the user can replace a new
    directory by a symlink. Such a directory is made for that user alone.
    """
    if not mountpoint.missing:
        return
    by = None
    if not all(above.only_root_writes for above in mountpoint.components):
        nearest = mountpoint.components[-1]
        if nearest.uid != owner[0]:
            raise UserError(
                f"{mountpoint.path} cannot be made for user {owner[0]}:"
                f" {nearest.path} belongs to another user",
                f"make the directory first: mkdir {shlex.quote(mountpoint.path)}",
            )
        by = owner
    who = f" (as user {by[0]})" if by else f" and chown {owner[0]}" if owner != (0, 0) else ""
    made: list[str] = []

    def make() -> None:
        here = os.dup(mountpoint.fd)
        try:
            for path in mountpoint.missing:
                name = f"./{os.path.basename(path)}"
                call(["mkdir", "-m", f"{mode:o}", "--", name], by, here)
                made.append(os.path.join(*made[-1:], name))
                below = os.open(name, _MADE, dir_fd=here)
                os.close(here)
                here = below
            if by is None:
                os.chown(f"/proc/self/fd/{here}", *owner)
        finally:
            os.close(here)

    def remove() -> None:
        for name in reversed(made):
            call(["rmdir", "--", name], by, mountpoint.fd)

    changes.make(f"mkdir -m {mode:o} {shlex.join(mountpoint.missing)}{who}", make, remove)
