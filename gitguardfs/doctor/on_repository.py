"""Attacks on an existing repository. None destroys anything if it succeeds.

Renames are undone at once, links are removed again, files are only opened, and times and owners
are set to their present values. Attacks that cannot be undone (unlinking, truncating, renaming
over a ``.git`` file) are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from errno import EACCES, EINVAL, ENOENT, ENOTDIR, EOPNOTSUPP, EPERM, EROFS
from functools import partial

from gitguardfs.base.constants import PERMISSION_BITS
from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE
from gitguardfs.doctor import reading
from gitguardfs.doctor.planting import at, write
from gitguardfs.doctor.reading import open_path
from gitguardfs.linux.run_as import preparing, undoing
from gitguardfs.linux.syscalls import linkat_by_proc, linkat_empty_path, rename_path

AWAY = ".gitguard-doctor"
"""Part of the name of an object that is moved for a moment; it shows the origin if left behind."""

RepositoryAttempt = Callable[[str, str], object]
"""Gets the guarded object (for R7 its parent directory) and an empty directory to work in."""


@dataclass(frozen=True)
class RepositoryAttack:
    """One attack on a repository."""

    row: str
    name: str
    on: str
    """What it needs: a ``.git`` that is a directory, file or symlink; root (a directory with a
    ``.git`` that can be moved); or bare."""
    attempt: RepositoryAttempt
    refused: frozenset[int]
    """The errnos by which the guard may refuse it."""
    reads: bool = False
    """Whether it only reads, which --git=readonly allows."""
    fake_root: bool = False
    """Whether it runs as root of new user and mount namespaces."""


def _move(old: str, new: str) -> None:
    """Rename an object, then rename it back."""
    with undoing(lambda: os.rename(new, old), f"{old} is now {new}: move it back"):
        os.rename(old, new)


def _exchange(one: str, other: str) -> None:
    with undoing(lambda: rename_path(one, other, RENAME_EXCHANGE), f"exchanged {one} and {other}"):
        rename_path(one, other, RENAME_EXCHANGE)


def _link(make: Callable[[str], object], new: str) -> None:
    with undoing(lambda: os.unlink(new), f"a link was left at {new}"):
        make(new)


def _prepared(workdir: str) -> str:
    """Make an empty directory; return its path."""
    with preparing():
        os.mkdir(at(workdir, "prepared"))
    return at(workdir, "prepared")


# ---------------------------------------------------------------------- R: rename and exchange


def move_aside(git: str, workdir: str) -> None:
    """Rename the object within its directory."""
    _move(git, git + AWAY)


def move_elsewhere(git: str, workdir: str) -> None:
    """Rename the object into another directory."""
    _move(git, at(workdir, "moved"))


def move_as_git(git: str, workdir: str) -> None:
    """Rename a ``.git`` file to ``.git`` in another directory."""
    _move(git, at(workdir, ".git"))


def move_part_out(git: str, workdir: str) -> None:
    """Rename the object's config to another directory."""
    _move(at(git, "config"), at(workdir, "config"))


def move_noreplace(git: str, workdir: str) -> None:
    """Rename the object with RENAME_NOREPLACE."""
    new = git + AWAY
    with undoing(lambda: os.rename(new, git), f"{git} is now {new}: move it back"):
        rename_path(git, new, RENAME_NOREPLACE)


def exchange(git: str, workdir: str) -> None:
    """Exchange a prepared directory with the object."""
    _exchange(_prepared(workdir), git)


def exchange_backwards(git: str, workdir: str) -> None:
    """Exchange the object, as the first argument of renameat2, with a prepared directory."""
    _exchange(git, _prepared(workdir))


def rename_over(git: str, workdir: str) -> None:
    """Rename a directory over the object. Harmless without a guard: that fails with ENOTEMPTY."""
    os.rename(_prepared(workdir), git)


def move_root(root: str, workdir: str) -> None:
    """Rename the object's parent directory."""
    _move(root, root + AWAY)


def move_root_elsewhere(root: str, workdir: str) -> None:
    """Rename the object's parent directory into another directory."""
    _move(root, at(workdir, "moved"))


# ----------------------------------------------------------------------- C, L, M: the object


def remove(git: str, workdir: str) -> None:
    """Remove the directory. Without a guard that fails with ENOTEMPTY; an empty one is remade."""
    mode = os.lstat(git).st_mode & PERMISSION_BITS
    with undoing(lambda: os.mkdir(git, mode), f"the empty {git} was removed"):
        os.rmdir(git)


def create_inside(git: str, workdir: str) -> None:
    """Make a file in the object."""
    new = at(git, AWAY)
    with undoing(lambda: os.unlink(new), f"a file was left at {new}"):
        write(new, "")


def link_part(git: str, workdir: str) -> None:
    """Link the object's config."""
    _link(partial(os.link, at(git, "config")), at(workdir, "linked"))


def link(git: str, workdir: str) -> None:
    """Link the object."""
    _link(partial(os.link, git, follow_symlinks=False), at(workdir, "linked"))


def link_by_empty_path(git: str, workdir: str) -> None:
    """Link the object by linkat(AT_EMPTY_PATH)."""
    _link(partial(linkat_empty_path, open_path(git)), at(workdir, "linked"))


def link_by_proc(git: str, workdir: str) -> None:
    """Link the object by linkat of /proc/self/fd."""
    _link(partial(linkat_by_proc, open_path(git)), at(workdir, "linked"))


def change_owner(git: str, workdir: str) -> None:
    """Set the object's owner to the present one."""
    st = os.lstat(git)
    os.chown(git, st.st_uid, st.st_gid, follow_symlinks=False)


def change_nothing(git: str, workdir: str) -> None:
    """Call chown(-1, -1), which needs no ownership and only updates the ctime."""
    os.chown(git, -1, -1, follow_symlinks=False)


def set_times(git: str, workdir: str) -> None:
    """Set the object's times to the present ones."""
    st = os.lstat(git)
    os.utime(git, ns=(st.st_atime_ns, st.st_mtime_ns), follow_symlinks=False)


def set_attribute(git: str, workdir: str) -> None:
    """Set an extended attribute, then remove it."""
    name = f"user{AWAY}"
    with undoing(lambda: os.removexattr(git, name), f"{git} has an attribute {name}"):
        os.setxattr(git, name, b"")


def remove_attribute(git: str, workdir: str) -> None:
    """Remove an extended attribute that does not exist."""
    os.removexattr(git, f"user{AWAY}")


def open_to_write(path: str, workdir: str) -> None:
    """Open the object for writing, and write nothing."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK))


def open_part_to_write(git: str, workdir: str) -> None:
    """Open the object's config for writing, and write nothing."""
    open_to_write(at(git, "config"), workdir)


def reopen_to_write(git: str, workdir: str) -> None:
    """Reopen the object for writing by /proc/self/fd, and write nothing."""
    os.close(os.open(f"/proc/self/fd/{open_path(git)}", os.O_WRONLY | os.O_APPEND))


_REFUSED = frozenset({EACCES, EROFS})
# EPERM is the kernel's: it refuses without asking the daemon if the caller is not the owner, may
# not write, or uses a descriptor of other credentials; and mounts, where AppArmor restricts them.
_NOT_OWN = _REFUSED | {EPERM}
_LINK = _REFUSED | {EPERM, ENOENT}
_FLAGS = _REFUSED | {EINVAL}
_XATTR = _REFUSED | {EPERM, EOPNOTSUPP}


def _reading(
    row: str, name: str, on: str, attempt: RepositoryAttempt, refused: frozenset[int] = _REFUSED
) -> RepositoryAttack:
    return RepositoryAttack(row, name, on, attempt, refused, reads=True)


def _as_fake_root(attack: RepositoryAttack) -> RepositoryAttack:
    return replace(attack, fake_root=True)


TABLE: tuple[RepositoryAttack, ...] = (
    RepositoryAttack("R1", "rename it aside", "directory", move_aside, _REFUSED),
    RepositoryAttack("R1", "rename it to another directory", "directory", move_elsewhere, _REFUSED),
    RepositoryAttack("R1", "rename a .git file aside", "file", move_aside, _REFUSED),
    RepositoryAttack("R1", "rename config out of it", "directory", move_part_out, _REFUSED),
    RepositoryAttack("R2a", "exchange with it", "directory", exchange, _FLAGS),
    RepositoryAttack("R2a", "exchange it", "directory", exchange_backwards, _FLAGS),
    RepositoryAttack("R2a", "exchange with a .git file", "file", exchange, _FLAGS),
    RepositoryAttack("R3a", "RENAME_NOREPLACE of it", "directory", move_noreplace, _FLAGS),
    RepositoryAttack("R3a", "RENAME_NOREPLACE of a .git file", "file", move_noreplace, _FLAGS),
    RepositoryAttack("R4", "move a .git file", "file", move_as_git, _REFUSED),
    RepositoryAttack("R6", "rename over it", "directory", rename_over, _REFUSED),
    RepositoryAttack("R7", "rename a repository's root", "root", move_root, _REFUSED),
    RepositoryAttack("R7", "move a repository's root", "root", move_root_elsewhere, _REFUSED),
    RepositoryAttack("R7", "exchange a repository's root", "root", exchange, _FLAGS),
    RepositoryAttack("C2", "rmdir", "directory", remove, _REFUSED),
    RepositoryAttack("C2", "make a file in it", "directory", create_inside, _REFUSED),
    RepositoryAttack("L1", "link of config", "directory", link_part, _LINK),
    RepositoryAttack("L1", "link of a .git file", "file", link, _LINK),
    RepositoryAttack("L1", "linkat(AT_EMPTY_PATH)", "file", link_by_empty_path, _LINK),
    RepositoryAttack("L1", "linkat by /proc/self/fd", "file", link_by_proc, _LINK),
    RepositoryAttack("L1", "link of a .git symlink", "symlink", link, _LINK),
    *(
        RepositoryAttack("M1", f"{name}, {on}", on, attempt, _NOT_OWN)
        for on in ("directory", "file", "symlink")
        for name, attempt in (
            ("chown", change_owner),
            ("chown(-1, -1)", change_nothing),
            ("utimens", set_times),
        )
    ),
    RepositoryAttack("M1", "setxattr", "directory", set_attribute, _XATTR),
    RepositoryAttack("M1", "removexattr", "directory", remove_attribute, _XATTR),
    RepositoryAttack("M1", "open config for writing", "directory", open_part_to_write, _REFUSED),
    _reading("M2", "list it", "directory", reading.list_entries),
    _reading("M2", "open config", "directory", reading.read_part),
    _reading("M2", "stat of config", "directory", reading.look_below),
    _reading("M2", "O_PATH and openat", "directory", reading.read_below_descriptor),
    _reading("M2", "reopen by /proc/self/fd", "directory", reading.reopen),
    _reading("M2", "chdir", "directory", reading.change_directory),
    _reading("M2", "inotify", "directory", reading.watch_it),
    _reading("M2", "listxattr", "directory", reading.list_attributes, _XATTR),
    _reading("M2", "read a .git file", "file", reading.read),
    _reading("M2", "reopen a .git file", "file", reading.reopen),
    RepositoryAttack("M2", "reopen a .git file for writing", "file", reopen_to_write, _REFUSED),
    _reading("M2", "readlink", "symlink", reading.read_link),
    _reading("M2", "readlink by descriptor", "symlink", reading.read_link_by_descriptor),
    *map(
        _as_fake_root,
        (
            _reading("U1", "list it", "directory", reading.list_entries),
            _reading("U1", "open config", "directory", reading.read_part),
            _reading("U1", "read a .git file", "file", reading.read),
            _reading("U2", "bind it", "directory", reading.read_through_bind, _NOT_OWN),
            _reading(
                "U2", "bind its parent", "directory", reading.read_through_bound_parent, _NOT_OWN
            ),
            _reading("U2", "overlay", "directory", reading.read_through_overlay, _NOT_OWN),
            _reading("U2", "chroot", "directory", reading.change_root, _NOT_OWN),
        ),
    ),
    _reading("S1", "symlink to it", "directory", reading.read_through_symlink),
    _reading("S1", "symlink to config", "directory", reading.read_through_file_symlink),
    RepositoryAttack("P4", "open config for writing", "bare", open_part_to_write, _REFUSED),
    _reading("P4", "open config", "bare", reading.read_part),
    RepositoryAttack("P4", "make a file in it", "bare", create_inside, _REFUSED),
    RepositoryAttack("P4", "rename it", "bare", move_aside, _REFUSED),
    RepositoryAttack("P4", "exchange it", "bare", exchange_backwards, _FLAGS),
    RepositoryAttack("F1", "open a .git file for writing", "file", open_to_write, _REFUSED),
)
"""All attacks on an existing repository; row is the threat's id."""

_OF_A_FILE = frozenset({reading.read, reading.reopen, reading.watch_it, reading.list_attributes})
"""What the agent may do with the file that ``--git=private`` shows as ``.git``."""


def refused_by(policy: str) -> tuple[RepositoryAttack, ...]:
    """Return the attacks that a guard with a policy for ``.git`` has to refuse.

    Where ``--git=private`` shows a file, the attacks on a directory are carried out on the file:
    nothing may be found below it.
    """
    if policy == "readonly":
        return tuple(attack for attack in TABLE if not attack.reads)
    if policy == "private":
        return tuple(_on_file(attack) for attack in TABLE if attack.attempt not in _OF_A_FILE)
    return TABLE


def _on_file(attack: RepositoryAttack) -> RepositoryAttack:
    if attack.on != "directory":
        return attack
    return replace(attack, on="file", refused=attack.refused | {ENOTDIR})
