"""What can be known to be wrong before mounting, said in one line each."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from stat import S_ISDIR

from gitguardfs import mounts
from gitguardfs.core import names, syscalls
from gitguardfs.core.guard import GitPolicy, Rules
from gitguardfs.errors import Exit, UserError

FUSE_DEVICE = "/dev/fuse"
FUSERMOUNT = "fusermount3"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where to look for programs: mount(8) gives its helpers no PATH."""


DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
"""What a FUSE mount without its daemon answers; the second while the daemon is still dying."""


@dataclass(frozen=True)
class Places:
    """The two directories, resolved."""

    source: str
    mountpoint: str


def check(source: str, mountpoint: str, rules: Rules, is_root: bool) -> Places:
    """Resolve and check both directories and the system; raises UserError."""
    _check_system(is_root)
    if is_root:
        _check_symlinks(mountpoint)
    real_mountpoint = _clear_dead(mountpoint, is_root)
    real_source = _directory(source, "source")
    _directory(mountpoint, "mount point")
    top = mounts.top_at(real_mountpoint)
    if top is not None and top.fstype == mounts.FSTYPE:
        raise UserError(
            f"{mountpoint} is a gitguardfs mount already", f"umount {mountpoint}", Exit.MOUNT
        )
    if _inside(real_source, real_mountpoint) or _inside(real_mountpoint, real_source):
        raise UserError(
            f"{source} and {mountpoint} lie inside one another",
            "choose a mount point outside of the source",
        )
    _check_not_below_git(source, real_source, rules)
    return Places(real_source, real_mountpoint)


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


def _directory(path: str, what: str) -> str:
    try:
        st = os.stat(path)
        real = os.path.realpath(path, strict=True)
    except FileNotFoundError:
        hint = f"mkdir -p {path}" if what == "mount point" else ""
        raise UserError(f"no such {what}: {path}", hint, Exit.MOUNT) from None
    except OSError as error:
        hint = ""
        if error.errno in DEAD:
            hint = f"it is a FUSE mount whose program is gone: umount -l {path}"
        raise UserError(f"{what} {path}: {error.strerror}", hint, Exit.MOUNT) from None
    if not S_ISDIR(st.st_mode):
        raise UserError(f"{what} {path} is not a directory", code=Exit.MOUNT)
    return real


def _check_symlinks(mountpoint: str) -> None:
    """Refuse a way to the mount point that another user can bend: root would mount anywhere."""
    path = os.path.abspath(mountpoint)
    while path != "/":
        if os.path.islink(path) and os.lstat(path).st_uid != 0:
            raise UserError(
                f"mount point {mountpoint}: {path} is a symlink that is not root's",
                f"give the directory itself: {os.path.realpath(mountpoint)}",
            )
        path = os.path.dirname(path)


def _clear_dead(mountpoint: str, is_root: bool) -> str:
    """Unmount what a gitguardfs that died left on the mount point."""
    path = os.path.realpath(mountpoint)
    while True:
        try:
            os.statvfs(path)  # stat would be answered from the kernel's cache for a while
        except OSError as error:
            top = mounts.top_at(path)
            ours = top is not None and top.fstype == mounts.FSTYPE
            if error.errno not in DEAD or not ours:
                return path
            _unmount(path, is_root)
        else:
            return path


def _unmount(path: str, is_root: bool) -> None:
    if is_root:
        syscalls.umount(os.fsencode(path), syscalls.MNT_DETACH)
        return
    program = shutil.which(FUSERMOUNT, path=_search_path()) or FUSERMOUNT
    done = subprocess.run([program, "-u", "-z", path], capture_output=True, check=False)
    if done.returncode != 0:
        raise UserError(
            f"{path} is a dead FUSE mount of another user", f"umount -l {path}", Exit.MOUNT
        )


def _inside(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _check_not_below_git(source: str, real: str, rules: Rules) -> None:
    if rules.git is GitPolicy.OFF:
        return
    if any(names.is_dotgit(os.fsencode(part)) for part in real.split("/") if part):
        raise UserError(f"{source} is a .git or lies below one", "give the directory that holds it")
    path = real
    while path != "/":
        path = os.path.dirname(path)
        check_no_repository(path, path, rules)


def check_no_repository(name: str, path: str, rules: Rules) -> None:
    """Refuse a directory that git takes for a repository; ``name`` is how to call it."""
    if rules.git is GitPolicy.OFF or rules.allow_bare:
        return

    def has(entry: str) -> bool:
        return os.path.lexists(os.path.join(path, entry))

    head = os.path.join(path, "HEAD")
    is_file = has("HEAD") and (os.path.islink(head) or not os.path.isdir(head))
    if is_file and (has("refs") or has("commondir")):
        raise UserError(
            f"{name} looks like a git repository itself (it holds HEAD and refs)",
            "give a directory above it, or --allow-bare",
        )
