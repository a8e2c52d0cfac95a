"""A note if the host can tell of its changes and none arrive: then programs see them late."""

from __future__ import annotations

import os

from gitguardfs.base.constants import CHANGES_PORT
from gitguardfs.base.errors import shown
from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor.context import Context


def check(context: Context) -> list[Result]:
    """Note a port by which no changes arrive, or not all of them."""
    port = f"/dev/virtio-ports/{CHANGES_PORT}"
    if not context.is_root or context.guard is None or not os.path.exists(port):
        return []
    from gitguardfs.guest import host_lines  # takes time to load

    row = Row("changes.arrive", "changes on the host arrive", "")
    for one in host_lines.status([context.mountpoint]):
        if not one["arrives"]:
            why = "programs here see them after a second, and by no event (inotify)"
            hint = "systemctl status gitguardfs-changes; on the host: gitguard watch --status"
            return [row.note(why, hint, "no changes on the host arrive")]
        if not one["whole"] and one["why"]:
            return [row.note(shown(one["why"]), title="not all changes on the host arrive")]
    return []
