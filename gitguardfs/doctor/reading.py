"""Attacks that read or enter an existing repository.

Each function gets the guarded object and an empty directory. None changes the repository, or
uses the content that it reads.
"""

from __future__ import annotations

import os

from gitguardfs.doctor.planting import at
from gitguardfs.linux.run_as import preparing
from gitguardfs.linux.syscalls import MNT_DETACH, MS_BIND, MS_REC, mount, umount, watch


def open_path(path: str) -> int:
    """Open an O_PATH descriptor."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)


def list_entries(git: str, workdir: str) -> None:
    """List the directory."""
    os.listdir(git)


def read(path: str, workdir: str) -> None:
    """Open the object for reading."""
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def read_part(git: str, workdir: str) -> None:
    """Open the object's config for reading."""
    read(at(git, "config"), workdir)


def read_below_descriptor(git: str, workdir: str) -> None:
    """Open an O_PATH descriptor, then config relative to it (openat)."""
    with preparing():
        directory = open_path(git)
    os.close(os.open("config", os.O_RDONLY, dir_fd=directory))


def reopen(git: str, workdir: str) -> None:
    """Open an O_PATH descriptor, then reopen that by /proc/self/fd."""
    with preparing():
        held = open_path(git)
    os.close(os.open(f"/proc/self/fd/{held}", os.O_RDONLY))


def change_directory(git: str, workdir: str) -> None:
    """Change into the directory (chdir), then open the object's config."""
    os.chdir(git)
    read("config", workdir)


def look_below(git: str, workdir: str) -> None:
    """Call stat on the object's config."""
    os.stat(at(git, "config"))


def watch_it(git: str, workdir: str) -> None:
    """Watch the object by inotify."""
    watch(git)


def read_link(git: str, workdir: str) -> None:
    """Call readlink."""
    os.readlink(git)


def read_link_by_descriptor(git: str, workdir: str) -> None:
    """Call readlinkat with an O_PATH descriptor and an empty name."""
    with preparing():
        held = open_path(git)
    os.readlink(b"", dir_fd=held)


def list_attributes(git: str, workdir: str) -> None:
    """Call listxattr."""
    os.listxattr(git)


def read_through_bind(git: str, workdir: str) -> None:
    """Read the object through a bind mount elsewhere."""
    mount(git, workdir, flags=MS_BIND)
    _read_and_unmount(at(workdir, "config"), workdir)


def read_through_bound_parent(git: str, workdir: str) -> None:
    """Read the object through a bind mount of its parent directory."""
    with preparing():
        mount(os.path.dirname(git), workdir, flags=MS_BIND | MS_REC)
    _read_and_unmount(at(workdir, os.path.basename(git), "config"), workdir)


def read_through_overlay(git: str, workdir: str) -> None:
    """Read the object through an overlay with its parent directory as a layer."""
    around = os.path.dirname(git)
    with preparing():
        # An overlay needs a second layer; one with mounts in it would be locked.
        data = f"lowerdir={around.replace(':', chr(92) + ':')}:/usr/share,userxattr"
        mount("overlay", workdir, "overlay", data=data)
    _read_and_unmount(at(workdir, os.path.basename(git), "config"), workdir)


def _read_and_unmount(path: str, workdir: str) -> None:
    try:
        read(path, workdir)
    finally:
        umount(workdir, MNT_DETACH)


def change_root(git: str, workdir: str) -> None:
    """Call chroot on the object."""
    os.chroot(git)


def read_through_symlink(git: str, workdir: str) -> None:
    """Read the object's config through a symlink to the object."""
    os.symlink(git, at(workdir, "symlink"))
    read(at(workdir, "symlink/config"), workdir)


def read_through_file_symlink(path: str, workdir: str) -> None:
    """Read the object's config through a symlink to that."""
    os.symlink(at(path, "config"), at(workdir, "symlink"))
    read(at(workdir, "symlink"), workdir)
