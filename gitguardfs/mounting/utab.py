"""Adds and removes entries of /run/mount/utab, the options of mounts that the kernel does not keep.

umount(8) finds the umount helper of a view there. Without that entry it takes the type from
statfs(2), which is only ``fuse``, and unmounts the view without the helper, which signals the
daemon.

systemd finds _netdev there, which makes a mount a remote one. A mount unit stands for what is on
top at its path: first the share, then the seal. Without _netdev the seal orders the unit after
local-fs-pre.target. That is undone when the seal is removed, during shutdown, and systemd (257)
then does not notice that nothing keeps that target from stopping: the machine does not go down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

from gitguardfs.constants import FSTYPE, SUBTYPE, SYSTEM_PATH
from gitguardfs.linux import mountinfo

PATH = "/run/mount/utab"
NETDEV = "_netdev"
LIMIT = 5.0
"""Seconds for mount(8) to write one line; another process may hold the lock of the file."""


def add(mount: mountinfo.MountInfo) -> None:
    """Let mount(8), if it is installed, record that a view has an umount helper."""
    path = mount.path
    helper = ("-t", FSTYPE, "-o", f"uhelper={SUBTYPE}")
    _call("mount", "-f", *helper, "--", mount.source, path)


def remove(mount: mountinfo.MountInfo) -> None:
    """Let umount(8) remove the entry of a view that was unmounted without it."""
    _call("umount", "--fake", "--", mount.path)


def add_seal(share: mountinfo.MountInfo, name: str, fstype: str) -> None:
    """Let systemd take a seal on ``share`` for a remote mount if it takes ``share`` for one.

    To be called when the seal is on: any user can hold the lock of the file and so delay this.
    systemd watches the file. The entry is left when the seal goes: ``umount --fake`` could remove
    the share's instead.
    """
    if NETDEV not in _options(share.source, share.mount_point):
        return
    if NETDEV not in _options(name, share.mount_point):
        _call("mount", "-f", "-t", fstype, "-o", NETDEV, "--", name, share.path)


def _options(source: str, mount_point: bytes) -> set[str]:
    """Return the options that are recorded for the mounts of a source at a mount point."""
    found: set[str] = set()
    with suppress(OSError), open(PATH, "rb") as file:
        for line in file:
            entry = dict(field.partition(b"=")[::2] for field in line.split())
            names = [mountinfo.unescape(entry.get(key, b"")) for key in (b"SRC", b"TARGET")]
            if names == [os.fsencode(source), mount_point]:
                found.update(os.fsdecode(entry.get(b"OPTS", b"")).split(","))
    return found


def _call(program: str, *arguments: str) -> None:
    found = shutil.which(program, path=SYSTEM_PATH)
    if found is None:
        return
    try:
        # -c: the path is the kernel's, and a user may have put a symlink there since.
        subprocess.run(
            [found, "-i", "-c", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LIMIT,
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
