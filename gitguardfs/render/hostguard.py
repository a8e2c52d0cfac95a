"""The commands that mount and unmount the guard on the host."""

from __future__ import annotations

import os

from gitguardfs.render.share_spec import ShareSpec


def start(spec: ShareSpec) -> list[list[str]]:
    """Return the commands that start the guard, in order.

    The parent directory is closed to other users of the host: a directory above the project may
    keep them out, and the view must as well. install also closes a parent that exists, where mkdir
    would not; for the mount point, install would change the mode of a mounted view.
    """
    parent = os.path.dirname(spec.mountpoint)
    return [
        ["install", "-d", "-m", "0700", parent],
        ["mkdir", "-p", "-m", "0700", spec.mountpoint],
        ["gitguardfs", *arguments(spec)],
    ]


def arguments(spec: ShareSpec) -> list[str]:
    """Return the arguments of gitguardfs. No seal: the host's user works in the directory."""
    return ["--no-seal", spec.directory, spec.mountpoint]


def stop(spec: ShareSpec) -> list[str]:
    """Return the command that unmounts the guard, to be run after the virtual machine ended."""
    if spec.host.is_root:
        return ["umount", spec.mountpoint]
    return ["fusermount3", "-u", spec.mountpoint]
