"""``vm-mount --remove``: unmounts guards and share, and deletes their entries."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gitguardfs.base.errors import UserError, failing
from gitguardfs.guest import boot, guard, raw_share, systemd
from gitguardfs.guest.changes import Changes
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.request import directory_name
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import lid
from gitguardfs.mounting.unmount import unmount
from gitguardfs.options import fstab_entries


@dataclass(frozen=True)
class InstalledShare:
    """A share and its guards, as they are mounted or in the entries for the next boot.

    The tag is None if only an entry for a guard is left.
    """

    tag: str | None
    mount: str
    map_mounts: tuple[str, ...]

    def __str__(self) -> str:
        """Return the share's tag and the places that show it, or the place of a guard alone."""
        return " at ".join([self.tag or "a guard", " and ".join([self.mount, *self.map_mounts])])

    def is_called(self, tag: str) -> bool:
        """Return whether ``tag`` names this share; its mount point counts if its tag is unknown."""
        if self.tag is None:
            return os.path.basename(self.mount) in (tag, directory_name(tag))
        return self.tag == tag


def find(
    facts: Facts, tag: str | None, mount: str | None, map_mount: str | None
) -> InstalledShare | None:
    """Return the installed share that matches; None if none does. UserError if several do."""
    matching = [
        one
        for one in installed_shares(facts)
        if (tag is None or one.is_called(tag))
        and mount in (None, one.mount)
        and (map_mount is None or map_mount in one.map_mounts)
    ]
    if len(matching) > 1:
        names = ", ".join(map(str, matching))
        raise UserError(f"which share? There are: {names}", "--tag TAG, or --mount PATH")
    return matching[0] if matching else None


def installed_shares(facts: Facts) -> list[InstalledShare]:
    """Return every share that we mount or guard, now or at boot."""
    lines = fstab_entries.entries(facts.fstab)
    written = {e.target: e.source for e in lines if e.is_guard and e.is_ours}
    written |= systemd.guards(facts.units)
    guards = {m.path: m.source for m in facts.guards()} | written
    ours = {e.target for e in lines if e.is_share and e.is_ours}
    ours |= set(systemd.shares(facts.units)) | set(guards.values())
    tags = {e.target: e.source for e in lines if e.is_share}
    tags |= {m.path: m.source for m in facts.shares()}
    tags |= systemd.shares(facts.units)
    return [
        InstalledShare(
            tags.get(mount), mount, tuple(sorted(g for g, s in guards.items() if s == mount))
        )
        for mount in sorted(ours)
        if mount in tags or mount in written.values()
    ]


def remove(
    changes: Changes, system: SystemPaths, facts: Facts, found: InstalledShare
) -> str | None:
    """Unmount the guards, and the share if that is ours, and delete their entries.

    Returns why the share stays mounted; None if it does not. Raises UserError if a mount that is
    not a seal covers the share.
    """
    for view in found.map_mounts:
        if facts.guard_at(view) is not None:
            guard.stop(changes, system, facts, found.mount, view)
        elif (dead := facts.any_guard_at(view)) is not None:
            _unmount_dead(changes, dead)
        if facts.has_lid(view):  # a guard that an undo starts puts on its own
            text = f"umount {shlex.quote(view)}  # the lid"
            with failing(f"cannot remove the lid at {view}"):  # a user moves the way to it
                changes.make(text, partial(lid.remove_at, view))
    share = facts.share_at(found.mount)
    reason = None
    if share is not None:
        raw_share.check_not_covered(facts, share)
        is_sealed = facts.is_sealed(found.mount)
        reason = _mounted_by_others(system, facts, found.mount)
        if reason is None:
            raw_share.unmount(changes, system, share, was_sealed=is_sealed)
        elif is_sealed:
            raw_share.unseal(changes, found.mount)
    for view in found.map_mounts:
        if view in facts.enabled:
            boot.disable(changes, system, view)
    boot.leave_changes(changes, system, facts, found.map_mounts)
    files = boot.removals(system, facts, found.mount, found.map_mounts)
    boot.write(changes, system, facts, files)
    if share is not None and os.path.dirname(found.mount) == system.shares:
        changes.make(f"rmdir {shlex.quote(found.mount)}", partial(_remove_if_empty, found.mount))
    return reason


def _remove_if_empty(directory: str) -> None:
    with suppress(OSError):  # not empty, or in use
        os.rmdir(directory)


def _unmount_dead(changes: Changes, view: MountInfo) -> None:
    """Unmount a view whose daemon is gone; no process can use it any more."""
    changes.make(f"umount --lazy -- {shlex.quote(view.path)}", lambda: unmount(view, lazy=True))


def _mounted_by_others(system: SystemPaths, facts: Facts, share: str) -> str | None:
    """Return what else mounts the share, which then stays without its guard; None if nothing."""
    lines = [e for e in fstab_entries.entries(facts.fstab) if e.is_share and e.target == share]
    for entry in lines:
        if not entry.is_ours:
            return f"line {entry.number} of fstab mounts it"
    unit = systemd.mount_name(share)
    if unit in facts.units and not systemd.is_ours(facts.units[unit]):
        return f"{unit} mounts it"
    if lines or unit in facts.units or os.path.dirname(share) == system.shares:
        return None
    return "it was mounted by hand"
