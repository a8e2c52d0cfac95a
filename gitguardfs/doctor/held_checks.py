"""Checks that no user's process holds a file of the raw share from before the seal."""

from __future__ import annotations

import os

from gitguardfs.base.errors import shown
from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor import other_mounts
from gitguardfs.doctor.context import Context, Table
from gitguardfs.linux import holders


def check(context: Context, table: Table, sources: tuple[str, ...]) -> Result:
    """Look for users' processes with files below the seals of ``sources``."""
    row = Row(
        "share.held",
        "no user's process holds a file or directory of the raw share",
        "users' processes hold files or directories below the seal",
    )
    raw = dict.fromkeys(
        path
        for source in sources
        for seen in other_mounts.raw_mounts(table, source)
        for path in holders.with_shares_below(os.fsencode(source), seen, table)
    )
    proc = context.system.processes
    if not raw:
        return row.not_checked("no guard with a known source is mounted")
    try:
        found = {
            f"process {one.pid} ({shown(one.name)}, uid {one.uid}): {', '.join(one.held)}": one.pid
            for one in (holders.find_holders(list(raw), proc) if os.path.isdir(proc) else ())
        }
    except OSError as error:
        return row.unknown(error, "run it as root of the system itself")
    if found:
        numbers = " ".join(map(str, dict.fromkeys(found.values())))
        return row.finding("; ".join(found), f"kill {numbers}")
    return row.ok()
