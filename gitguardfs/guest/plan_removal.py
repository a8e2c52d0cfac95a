"""Plans ``vm-mount --remove``: what to unmount, which entries to delete. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gitguardfs.base.config_files import FileChange
from gitguardfs.base.errors import UserError
from gitguardfs.guest import fstab, plan_share, systemd
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.plan_boot import disable, unit_change, unit_names, write_steps
from gitguardfs.guest.plan_guard import stop
from gitguardfs.guest.steps_files import RemoveDirectory
from gitguardfs.guest.steps_mount import RemoveLid, UnmountDead, UnmountShare, Unseal
from gitguardfs.guest.transaction import Step
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
            return os.path.basename(self.mount) in (tag, plan_share.directory_name(tag))
        return self.tag == tag


def find(
    facts: Facts, tag: str | None, mount: str | None, map_mount: str | None
) -> InstalledShare | None:
    """Return the share to remove; None if nothing matches. Raises UserError if several do."""
    matching = [
        one
        for one in everything(facts)
        if (tag is None or one.is_called(tag))
        and mount in (None, one.mount)
        and (map_mount is None or map_mount in one.map_mounts)
    ]
    if len(matching) > 1:
        names = ", ".join(map(str, matching))
        raise UserError(f"which share? There are: {names}", "--tag TAG, or --mount PATH")
    return matching[0] if matching else None


def everything(facts: Facts) -> list[InstalledShare]:
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


def remove_steps(
    system: SystemPaths, facts: Facts, found: InstalledShare, program: tuple[str, ...]
) -> list[Step]:
    """Return the steps that unmount guards and share, if that is ours, and delete their entries.

    ``program`` is the command that runs gitguardfs, to start a guard again on an undo. Raises
    UserError if a mount that is not a seal covers the share.
    """
    found_steps: list[Step] = []
    for path in found.map_mounts:
        if facts.guard_at(path) is not None:
            found_steps.append(stop(system, facts, found.mount, path, program))
        elif (dead := facts.any_guard_at(path)) is not None:
            found_steps.append(UnmountDead(path, dead))
        if facts.has_lid(path):
            found_steps.append(RemoveLid(path))
    share = facts.share_at(found.mount)
    if share is not None:
        plan_share.check_not_covered(facts, share)
        sealed = facts.is_sealed(found.mount)
        if left(system, facts, found) is None:
            again = plan_share.mount_command(system, share.fstype, share.source, found.mount)
            found_steps.append(UnmountShare(found.mount, share, again, sealed))
        elif sealed:
            found_steps.append(Unseal(found.mount))
    found_steps += [disable(system, path) for path in found.map_mounts if path in facts.enabled]
    text = fstab.remove(facts.fstab, found.mount, found.map_mounts)
    changes = [FileChange(system.fstab, facts.fstab, text)]
    changes += [
        unit_change(system, facts, name, None)
        for name in sorted(unit_names(facts, found.mount, found.map_mounts))
    ]
    found_steps += write_steps(system, facts, [change for change in changes if change.is_needed])
    if os.path.dirname(found.mount) == system.shares and share is not None:
        found_steps.append(RemoveDirectory(found.mount))
    return found_steps


def left(system: SystemPaths, facts: Facts, found: InstalledShare) -> str | None:
    """Return what else mounts the share, so that it stays, without its guard; None if nothing."""
    if facts.share_at(found.mount) is None:
        return None
    lines = [
        e for e in fstab_entries.entries(facts.fstab) if e.is_share and e.target == found.mount
    ]
    for entry in lines:
        if not entry.is_ours:
            return f"line {entry.number} of fstab mounts it"
    unit = systemd.mount_name(found.mount)
    if unit in facts.units and not systemd.is_ours(facts.units[unit]):
        return f"{unit} mounts it"
    if lines or unit in facts.units or os.path.dirname(found.mount) == system.shares:
        return None
    return "it was mounted by hand"
