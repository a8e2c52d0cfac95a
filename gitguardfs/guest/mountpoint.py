"""Mount points that the user names: resolved by descriptors, and made if they are missing.

quickstart.sh runs ``main``, since its shell cannot walk a path by descriptors.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.guest.steps_files import MakeDirectories
from gitguardfs.linux import mountinfo, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.safe_open import PathComponent, ResolvedPath
from gitguardfs.mounting import guards, lid, preflight


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
        """Return the existing directories above ``path``."""
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
        made = []
        try:
            for one in found:
                made.append(_mountpoint(one, mounts))
        except BaseException:
            for mountpoint in made:
                mountpoint.close()
            raise
        return made


def _mountpoint(found: ResolvedPath, mounts: Sequence[MountInfo]) -> Mountpoint:
    missing = [
        found.path.removesuffix("/".join(["", *found.missing[count + 1 :]]))
        for count in range(len(found.missing))
    ]
    above = os.path.dirname(missing[0]) if missing else found.path
    if safe_open.path_of(found.fd) != above:
        raise UserError(f"{above} was moved while its path was resolved", "try again", Exit.SYSTEM)
    mountpoint = Mountpoint(found.path, found.components, tuple(missing))
    if missing:
        return replace(mountpoint, fd=os.dup(found.fd))
    return replace(mountpoint, is_empty=_is_empty(found, mounts))


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


def main(program: str, path: str) -> None:
    """Make the directory ``path``. On an error, exit with one line that begins with ``program``."""
    try:
        make(path)
    except UserError as error:
        sys.exit(shown(f"{program}: {error}"))
    except OSError as error:
        sys.exit(shown(f"{program}: {path}: {error.strerror}"))


def make(path: str) -> None:
    """Make the missing directories of ``path``, as the owner of the nearest existing one.

    That user owns them afterwards. Because root's rights are not used, a user who may write there
    cannot redirect them to another place. Raises UserError, OSError.
    """
    with closing(resolve(path)) as mountpoint:
        if mountpoint.missing:
            st = os.fstat(mountpoint.fd)
            owner = st.st_uid, st.st_gid
            MakeDirectories(mountpoint.missing, owner, by=owner, fd=mountpoint.fd).do()
