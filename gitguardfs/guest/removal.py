"""The way back: what of a share and its guards is to be unmounted and taken out. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gitguardfs import mounts
from gitguardfs.errors import UserError
from gitguardfs.guest import steps
from gitguardfs.guest.facts import Facts, System
from gitguardfs.guest.plan import (
    disable,
    mount_command,
    stop,
    unit_change,
    unit_names,
    write_steps,
)
from gitguardfs.guest.steps import Step
from gitguardfs.render import fstab, systemd
from gitguardfs.writer import Change


@dataclass(frozen=True)
class Found:
    """A share and its guards, as they are mounted or written down."""

    tag: str
    mount: str
    map_mounts: tuple[str, ...]


def find(facts: Facts, tag: str | None, mount: str | None, map_mount: str | None) -> Found | None:
    """What ``--remove`` is about; None if there is nothing like that. UserError if in doubt."""
    matching = [
        one
        for one in everything(facts)
        if tag in (None, one.tag)
        and mount in (None, one.mount)
        and (map_mount is None or map_mount in one.map_mounts)
    ]
    if len(matching) > 1:
        names = ", ".join(f"{one.tag} at {one.mount}" for one in matching)
        raise UserError(f"which share? There are: {names}", "say --label TAG")
    return matching[0] if matching else None


def everything(facts: Facts) -> list[Found]:
    """Every share that we mount or guard, now or at boot."""
    lines = fstab.entries(facts.fstab)
    guards = {os.fsdecode(m.path): m.source for m in facts.guards()}
    guards |= {e.target: e.source for e in lines if e.is_guard and e.is_ours}
    guards |= systemd.guards(facts.units)
    ours = {e.target for e in lines if e.is_share and e.is_ours}
    ours |= set(systemd.shares(facts.units)) | set(guards.values())
    tags = {e.target: e.source for e in lines if e.is_share}
    tags |= {os.fsdecode(m.path): m.source for m in facts.shares()}
    tags |= systemd.shares(facts.units)
    return [
        Found(tags[mount], mount, tuple(sorted(g for g, s in guards.items() if s == mount)))
        for mount in sorted(ours)
        if mount in tags
    ]


def remove_steps(
    system: System, facts: Facts, found: Found, program: tuple[str, ...]
) -> list[Step]:
    """Unmount the guards, then the share, and take their entries out.

    ``program`` is how gitguardfs is run, should a guard have to be brought back.
    """
    found_steps: list[Step] = []
    for path in found.map_mounts:
        if facts.guard_at(path) is not None:
            found_steps.append(stop(system, facts, found.mount, path, program))
        elif (dead := facts.any_guard_at(path)) is not None:
            found_steps.append(steps.Unmount(path, dead.number, lazy=True))
    foreign = any(
        e.is_share and e.target == found.mount and not e.is_ours for e in fstab.entries(facts.fstab)
    )
    share = facts.share_at(found.mount)
    if share is not None and not foreign:
        found_steps += _unmount_share(system, facts, found, share)
    found_steps += [disable(system, path) for path in found.map_mounts if path in facts.enabled]
    text = fstab.remove(facts.fstab, found.mount, found.map_mounts)
    changes = [Change(system.fstab, facts.fstab, text)]
    changes += [
        unit_change(system, facts, name, None)
        for name in sorted(unit_names(facts, found.mount, found.map_mounts))
    ]
    found_steps += write_steps(system, facts, [change for change in changes if change.is_one])
    if os.path.dirname(found.mount) == system.shares and share is not None:
        found_steps.append(steps.RemoveDirectory(found.mount))
    return found_steps


def _unmount_share(system: System, facts: Facts, found: Found, share: mounts.Mount) -> list[Step]:
    top = facts.top_at(found.mount)
    alive = any(facts.guard_at(path) for path in found.map_mounts)
    again = mount_command(system, share.fstype, share.source, found.mount)
    whole: list[Step] = [steps.Unmount(found.mount, share.number, again)]
    if top is not None and top.fstype not in mounts.SHARE_TYPES and not alive:
        # The seal that a dead daemon left is on top; a living one takes its own with it.
        whole.insert(0, steps.Unmount(found.mount, top.number))
    return whole
