"""The guard below the export: the commands that mount and unmount it on the host."""

from __future__ import annotations

import os

from gitguardfs.render.share_spec import ShareSpec


def start(spec: ShareSpec) -> list[list[str]]:
    """What to run, in this order.

    The parent directory is closed to others: the view must not open to the host's other users
    what the way to the project closes to them. mkdir would leave one that is there as it is,
    and install would change the mode of a view that is mounted.
    """
    parent = os.path.dirname(spec.mountpoint)
    return [
        ["install", "-d", "-m", "0700", parent],
        ["mkdir", "-p", "-m", "0700", spec.mountpoint],
        ["gitguardfs", *arguments(spec)],
    ]


def arguments(spec: ShareSpec) -> list[str]:
    """What gitguardfs is given. No seal: the host's user goes on working in the directory."""
    return ["--no-seal", spec.directory, spec.mountpoint]


def stop(spec: ShareSpec) -> list[str]:
    """What ends it, after the virtual machine."""
    if spec.host.is_root:
        return ["umount", spec.mountpoint]
    return ["fusermount3", "-u", spec.mountpoint]
