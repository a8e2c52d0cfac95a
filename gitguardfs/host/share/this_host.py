"""The facts about this machine and user that the settings of a share depend on."""

from __future__ import annotations

import os
import platform

from gitguardfs.host.share import qemu, selinux, share_settings
from gitguardfs.host.share.share_spec import Host
from gitguardfs.options import accounts

RUNTIME = "XDG_RUNTIME_DIR"
"""Names the user's directory that a reboot empties; systemd makes /run/user/UID at a login."""


def this_host() -> Host:
    """Return the facts about this machine and user that the settings of a share depend on."""
    uid, gid = os.geteuid(), os.getegid()
    return Host(
        uid=uid,
        gid=gid,
        group=accounts.group_name(gid),
        runtime="/run" if uid == 0 else os.environ.get(RUNTIME) or f"/run/user/{uid}",
        selinux=os.path.exists(selinux.ENFORCE),
        is_arm=qemu.is_arm(platform.machine()),
        is_mac=platform.system() == "Darwin",
        firmware=first_of(qemu.FIRMWARE_PLACES),
        virtiofsd=first_of(share_settings.VIRTIOFSD_PLACES),
    )


def first_of(paths: tuple[str, ...]) -> str | None:
    """Return the first of the paths that exists."""
    return next((path for path in paths if os.path.exists(path)), None)
