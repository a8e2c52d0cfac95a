"""Adds and removes entries of /run/mount/utab, the options of mounts that the kernel does not keep.

umount(8) finds the umount helper of a view there. Without that entry it takes the type from
statfs(2), which is only ``fuse``, and unmounts the view without the helper, which signals the
daemon.

systemd finds _netdev there, which marks a mount as remote. Its mount unit is for the topmost mount
at the path: first the share, then the seal. If the share is remote and the seal is not, systemd
orders the unit after remote-fs-pre.target, and after local-fs-pre.target once the seal is on. In a
shutdown the seal is removed, and systemd orders the unit after remote-fs-pre.target again. systemd
257 then does not try again to stop local-fs-pre.target and waits for it for ever: the machine does
not go down. The same holds for a view that fstab mounts, and the lid below it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

from gitguardfs.base.constants import FSTYPE, SUBTYPE, SYSTEM_PATH
from gitguardfs.linux import mountinfo

PATH = "/run/mount/utab"
_NETDEV = "_netdev"
_REMOTE_TYPES = {
    "afs", "ceph", "cifs", "davfs", "gfs", "gfs2", "glusterfs", "lustre", "ncp", "ncpfs", "nfs",
    "nfs4", "ocfs2", "pvfs2", "smb3", "smbfs", "sshfs",
}  # fmt: skip
"""What systemd takes for a remote mount without _netdev (fstype_is_network)."""
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


def add_cover(mount: mountinfo.MountInfo, cover: mountinfo.MountInfo) -> None:
    """Mark a seal or a lid as remote for systemd if the share or view there counts as remote.

    To be called when the cover is on: any user can hold the lock of the file and so delay this.
    systemd watches the file. The entry is left when the cover goes: ``umount --fake`` could remove
    the other mount's instead. A cover below the top of the share has a mount unit of its
    own, which ends with the cover.
    """
    if cover.mount_point != mount.mount_point or _NETDEV in _options(cover):
        return
    if mount.fstype.removeprefix("fuse.") in _REMOTE_TYPES or _NETDEV in _options(mount):
        _call("mount", "-f", "-t", cover.fstype, "-o", _NETDEV, "--", cover.source, cover.path)


def _options(mount: mountinfo.MountInfo) -> set[str]:
    """Return the recorded options for mounts of this source at this mount point."""
    found: set[str] = set()
    with suppress(OSError), open(PATH, "rb") as file:
        for line in file:
            entry = dict(field.partition(b"=")[::2] for field in line.split())
            names = [mountinfo.unescape(entry.get(key, b"")) for key in (b"SRC", b"TARGET")]
            if names == [os.fsencode(mount.source), mount.mount_point]:
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
