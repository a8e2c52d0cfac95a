"""Checks of the guest's own directories (``--local``): their disk, access to them, and lost ones.

Only root knows the daemon's options, and sees the store.
"""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from functools import partial

from gitguardfs.base.constants import SHARE_TYPES
from gitguardfs.base.errors import UserError
from gitguardfs.base.findings import Result, Row, Severity
from gitguardfs.base.size import as_size
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.share_checks import PLAIN, guard_devices, reaches
from gitguardfs.guest import local_listing as listing
from gitguardfs.guest.local_listing import Share, State
from gitguardfs.linux import mountinfo
from gitguardfs.linux.local_devices import LocalDevices
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.run_as import NoAnswer


def check(context: Context) -> list[Result]:
    """Check the store of a view with ``--local``; [] without that, or without root's rights."""
    if not context.is_root or context.options is None:
        return []
    try:
        store = listing.store_of(context.options)
        if store is None:
            return []
        with ExitStack() as stack:
            for share in listing.shares(stack, store):
                if share.view == context.mountpoint:
                    return [_path(context, share), _disk(share), _left(share)]
    except (OSError, UserError) as error:
        return [_row(context.mountpoint).unknown(error, "gitguard local list")]
    return [_row(context.mountpoint).unknown(f"{store} has no directory for it", "mount it again")]


def _row(where: str) -> Row:
    return Row(
        "local.path",
        f"the guest's own directories of {where} are reached through the view alone",
        f"the guest's own directories of {where} can be reached past the view",
    )


def _path(context: Context, share: Share) -> Result:
    """Check that only root can enter the store, and that the user indeed does not."""
    row = _row(context.mountpoint)
    tree = os.path.join(share.path, "tree")
    quoted = shlex.quote(tree)
    close = f"chown root:root {quoted} && chmod 700 {quoted}"
    if not _is_roots_alone(share.tree):
        return row.finding(f"{tree} is not root's alone", close)
    if context.user is None:
        return row.ok(share.path)
    guards = guard_devices(context.table)
    for name, attempt in PLAIN.items():
        try:
            if reaches(partial(attempt, tree, guards), context.user):
                return row.finding(f"{context.user.name} reaches {tree} {name}", close)
        except NoAnswer as error:
            return row.disturbed(error)
    return row.ok(share.path)


def _is_roots_alone(fd: int) -> bool:
    st = os.fstat(fd)
    return st.st_uid == 0 and not st.st_mode & 0o077


def _disk(share: Share) -> Result:
    number = mountinfo.number_of(share.tree)
    mount = next((m for m in mountinfo.listed() if m.mnt_id == number), None)
    return judge_disk(share.path, mount, LocalDevices(share.path)(os.fstat(share.tree).st_dev))


def judge_disk(path: str, mount: MountInfo | None, is_local: bool) -> Result:
    """Judge the file system on which the guest's own directories lie."""
    row = Row(
        "local.disk",
        "the guest's own directories lie on a disk of the guest",
        "the guest's own directories do not lie on a disk of the guest",
    )
    fstype = "unknown" if mount is None else mount.fstype
    hint = "mount it with a --local-store on a disk of the guest"
    if fstype in SHARE_TYPES:
        why = f"{path} lies on a share ({fstype}), so the host has them, and no rule guards them"
        return row.finding(why, hint)
    if not is_local:
        why = f"{path} lies on a file system of type {fstype}, which others may share"
        return row.finding(why, hint, Severity.MEDIUM)
    if fstype in ("tmpfs", "ramfs"):
        return row.note(f"{path} lies in memory: nothing of it outlives the guest", hint)
    return row.ok(fstype)


def _left(share: Share) -> Result:
    row = Row(
        "local.left",
        "none of the guest's own directories has lost its place",
        "some of the guest's own directories have lost their places",
    )
    owns = listing.owns(share)
    gone = [own for own in owns if own.state is State.GONE]
    if not gone:
        return row.ok(f"{len(owns)} of them")
    seen: set[int] = set()
    size = sum(listing.size_of(own, seen) for own in gone)
    what = "directory of" if len(gone) == 1 else "directories of"
    hint = "gitguard local list; gitguard local move FROM TO, or gitguard local prune"
    return row.note(f"{len(gone)} {what} {as_size(size)}", hint, row.failed)
