"""Checks before mounting. A failure is one line: what is wrong, what to do."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

from gitguardfs.base.constants import DEAD, FSTYPE, FUSE_DEVICE, SYSTEM_PATH
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.paths import is_inside, mode_at
from gitguardfs.linux import mountinfo, safe_open
from gitguardfs.mounting import lid
from gitguardfs.names import dotgit, repository
from gitguardfs.names.rules import GitMode, GuardRules
from gitguardfs.options.mount_options import MountOptions

FUSERMOUNT = "fusermount3"


@dataclass(frozen=True)
class MountPaths:
    """Source and mount point: their resolved paths, and descriptors of the checked directories."""

    source: str
    source_fd: int
    mountpoint: str
    mountpoint_fd: int

    @property
    def covers_itself(self) -> bool:
        """Whether the view is mounted over its own source."""
        return self.source == self.mountpoint


def check_paths(options: MountOptions, expected: str | None, is_root: bool) -> MountPaths:
    """Resolve and check both directories and the system. Raises UserError.

    ``expected`` is the mount point in fstab: mount(8) resolves it, and follows symlinks of any
    user, before it passes it on.
    """
    source, mountpoint = options.source, options.mountpoint
    if expected is not None:  # before anything is done there
        fd = _open(mountpoint, "mount point", is_root)
        try:
            _check_is(safe_open.path_of(fd), expected)
        finally:
            os.close(fd)
    _check_system(is_root)
    _clear_dead(mountpoint, is_root)
    source_fd = _open_source(options, is_root)
    mountpoint_fd = _open(mountpoint, "mount point", is_root)
    _refuse_mounts_of_users(mountpoint_fd, mountpoint, None)
    paths = MountPaths(
        safe_open.path_of(source_fd), source_fd, safe_open.path_of(mountpoint_fd), mountpoint_fd
    )
    _check_is(paths.mountpoint, expected)
    top = mountinfo.top_at(paths.mountpoint)
    if top is not None and top.fstype == FSTYPE:
        unmount = ["umount"] if is_root else [FUSERMOUNT, "-u"]
        raise UserError(
            f"{mountpoint} is a gitguardfs mount already",
            shlex.join([*unmount, mountpoint]),
            Exit.MOUNT,
        )
    inside = is_inside(paths.source, paths.mountpoint) or is_inside(paths.mountpoint, paths.source)
    if inside and not paths.covers_itself:
        raise UserError(
            f"{source} and {mountpoint} lie inside one another",
            "choose a mount point outside of the source",
        )
    # Below a lid, and where the view takes the place of its source, nothing more gets hidden.
    if not (options.nonempty or paths.covers_itself or lid.lid_of(mountpoint_fd) is not None):
        check_empty(mountpoint, is_empty(mountpoint_fd))
    _check_not_below_git(source, paths.source, options.rules)
    return paths


def check_source(options: MountOptions, mountpoint: str, mountpoint_fd: int) -> MountPaths:
    """Resolve and check the source alone: a view of it is at the mount point. Raises UserError."""
    _check_system(True)
    source_fd = _open_source(options, True)
    source = safe_open.path_of(source_fd)
    _check_not_below_git(options.source, source, options.rules)
    return MountPaths(source, source_fd, mountpoint, mountpoint_fd)


def _open_source(options: MountOptions, is_root: bool) -> int:
    source, also = options.source, options.source_owner
    fd = _open(source, "source", is_root, answers=True, also=also)
    if lid.lid_of(fd) is not None:
        raise UserError(
            f"{source} is the place of a view that is not mounted", "mount that view", Exit.MOUNT
        )
    _refuse_mounts_of_users(fd, source, also)
    return fd


def check_empty(mountpoint: str, is_empty: bool) -> None:
    """Raise UserError for a mount point that is not empty."""
    if not is_empty:
        raise UserError(
            f"{mountpoint} is not empty: its content would be hidden",
            "move the content away, or add -o nonempty",
            Exit.MOUNT,
        )


def is_empty(directory: int, name: str = ".") -> bool:
    """Return whether a directory, relative to a descriptor, is known to be empty."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError:
        return False
    try:
        with os.scandir(fd) as entries:
            return next(entries, None) is None
    except OSError:
        return False
    finally:
        os.close(fd)


def _refuse_mounts_of_users(fd: int, path: str, also: int | None) -> None:
    """Raise ForeignMountError if a user's FUSE mount is at ``path``, even below other mounts.

    That user may run fusermount3 at any time, which then unmounts what lies on top.
    """
    for mount in mountinfo.stack_of(fd):
        if safe_open.is_foreign(mount, also):
            raise safe_open.ForeignMountError(mount, path)


def _check_is(real: str, expected: str | None) -> None:
    """Raise UserError if the mount point, resolved, is not ``expected``."""
    if expected is not None and real != expected:
        raise UserError(
            f"the mount point must be {expected}, but {real} was given",
            "look for a symlink on its path, or a directory that was moved",
            Exit.MOUNT,
        )


def _check_system(is_root: bool) -> None:
    if not os.path.exists(FUSE_DEVICE):
        raise UserError(f"there is no {FUSE_DEVICE}", "modprobe fuse", Exit.SYSTEM)
    if is_root:
        return
    if not os.access(FUSE_DEVICE, os.R_OK | os.W_OK):
        raise UserError(
            f"you may not use {FUSE_DEVICE}", f"ask root for: chmod 666 {FUSE_DEVICE}", Exit.SYSTEM
        )
    if shutil.which(FUSERMOUNT, path=_search_path()) is None:
        raise UserError(f"{FUSERMOUNT} is not installed", "install the package fuse3", Exit.SYSTEM)


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def _open(
    path: str, what: str, is_root: bool, answers: bool = False, also: int | None = None
) -> int:
    try:
        fd = safe_open.open_directory(path, is_root, also)
        if answers:
            _check_answers(fd)
        return fd
    except FileNotFoundError:
        hint = f"mkdir -p {shlex.quote(path)}" if what == "mount point" and path else ""
        raise UserError(f"no such {what}: {path!r}", hint, Exit.MOUNT) from None
    except NotADirectoryError:
        raise UserError(f"{what} {path} is not a directory", code=Exit.MOUNT) from None
    except OSError as error:
        hint = ""
        if error.errno in DEAD:
            hint = f"it is a FUSE mount whose daemon has died: umount -l {shlex.quote(path)}"
        raise UserError(f"{what} {path}: {error.strerror}", hint, Exit.MOUNT) from None


def _check_answers(fd: int) -> None:
    """Raise the OSError of a dead FUSE mount; stat(2) may still be answered from a cache."""
    try:
        os.statvfs(fd)
    except OSError as error:
        if error.errno in DEAD:
            raise


def _clear_dead(mountpoint: str, is_root: bool) -> None:
    """Unmount dead gitguardfs mounts from the mount point. Raises UserError for others."""
    while True:
        fd = _open(mountpoint, "mount point", is_root)
        try:
            os.statvfs(fd)  # not stat(2), which the kernel may answer from its cache
            return
        except OSError as error:
            top = next(iter(mountinfo.stack_of(fd)), None)
            path = os.fsencode(safe_open.path_of(fd))
            if top is None or top.mount_point != path or not top.fstype.startswith("fuse"):
                return
            if safe_open.is_foreign(top):
                raise safe_open.ForeignMountError(top, mountpoint) from None
            if error.errno not in DEAD and not isinstance(error, PermissionError):
                return
            if error.errno not in DEAD or top.fstype != FSTYPE:
                raise UserError(
                    f"mount point {mountpoint}: {error.strerror}",
                    f"it is another FUSE mount, dead or another user's: "
                    f"umount -l {shlex.quote(mountpoint)}",
                    Exit.MOUNT,
                ) from None
        finally:
            os.close(fd)
        _unmount(top, is_root)


def _unmount(mount: mountinfo.MountInfo, is_root: bool) -> None:
    path = mount.path
    if is_root:
        if not mountinfo.detach(mount):
            raise UserError(
                f"something else was mounted at {path} meanwhile", "try again", Exit.MOUNT
            )
        return
    unmount_as_user(path, lazy=True)


def unmount_as_user(path: str, *, lazy: bool) -> None:
    """Unmount a view of the calling user, by fusermount3. Raises UserError."""
    top = mountinfo.top_at(path)
    if top is not None and top.owner not in (None, os.getuid()):
        raise UserError(
            f"{path} was mounted by {'root' if top.owner == 0 else f'user {top.owner}'}",
            f"as that user or as root: umount {shlex.quote(path)}",
            Exit.MOUNT,
        )
    program = shutil.which(FUSERMOUNT, path=_search_path()) or FUSERMOUNT
    options = ["-u", *(["-z"] if lazy else [])]
    done = subprocess.run([program, *options, "--", path], capture_output=True, check=False)
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip().removeprefix(f"{FUSERMOUNT}: ")
        raise UserError(shown(said) or f"cannot unmount {path}", code=Exit.MOUNT)


def _check_not_below_git(source: str, real: str, rules: GuardRules) -> None:
    if rules.git is GitMode.OFF:
        return
    if any(dotgit.is_dotgit(os.fsencode(part)) for part in real.split("/") if part):
        raise UserError(
            f"{source} is a .git or lies below one", "give the directory that contains it"
        )
    path = real
    while path != "/":
        path = os.path.dirname(path)
        check_no_repository(path, path, rules)


def check_no_repository(name: str, path: str, rules: GuardRules) -> None:
    """Raise UserError if git takes ``path`` for a repository; ``name`` is its name in messages.

    Raises UserError (Exit.SYSTEM) as well if the directory cannot be read.
    """
    if rules.git is GitMode.OFF or rules.allow_bare:
        return

    def mode_of(entry: bytes) -> int | None:
        try:
            return mode_at(path, entry)
        except OSError as error:
            inside = os.fsdecode(entry)
            raise UserError(
                f"cannot tell whether {name} is a git repository: {inside}: {error.strerror}",
                f"find out why: stat {shlex.quote(os.path.join(name, inside))}",
                Exit.SYSTEM,
            ) from None

    if repository.is_repository(mode_of):
        raise UserError(
            f"{name} looks like a git repository itself (it holds HEAD and refs)",
            "give a directory above it, or the option allow-bare",
        )
