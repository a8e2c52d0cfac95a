"""Plans the entries for the next boot, in fstab or in systemd units. Pure."""

from __future__ import annotations

import os

from gitguardfs.base.config_files import FileChange
from gitguardfs.base.errors import UserError
from gitguardfs.guest import fstab, systemd
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.plan_share import Style
from gitguardfs.guest.steps_files import Run, VerifyFstab, Write
from gitguardfs.guest.steps_mount import StartService
from gitguardfs.guest.transaction import Step
from gitguardfs.options import fstab_entries
from gitguardfs.options.guarded_share import GuardedShare


def style_of(facts: Facts, map_mount: str) -> Style:
    """Return the style of the entries for this view; if there are none, the one that suits."""
    lines = fstab_entries.entries(facts.fstab)
    if any(line.is_guard and line.is_ours and line.target == map_mount for line in lines):
        return "fstab"
    return "systemd" if facts.has_systemd else "fstab"


def changes(
    system: SystemPaths, facts: Facts, style: Style, spec: GuardedShare
) -> list[FileChange]:
    """Return the changes of files for this style; entries of the other style are deleted.

    Raises UserError if fstab has a conflicting line that is not ours. That holds for both styles,
    since systemd mounts fstab's lines as well.
    """
    if style == "none":
        return []
    wanted: dict[str, str] = {}
    if style == "fstab":
        _check_not_confined(facts)
        text = fstab.install(facts.fstab, spec)
    else:
        text = fstab.remove(facts.fstab, spec.mount, (spec.map_mount,))
        wanted = systemd.files(spec, system.guard or systemd.COMMAND)
        if fstab.is_adopted(text, spec):
            del wanted[systemd.mount_name(spec.mount)]  # the user's own line mounts it
        if facts.has_packaged_template:
            del wanted[systemd.TEMPLATE]
    gone = unit_names(facts, spec.mount, (spec.map_mount,)) - set(wanted)
    if facts.has_packaged_template and systemd.is_ours(facts.units.get(systemd.TEMPLATE, b"")):
        gone.add(systemd.TEMPLATE)  # it would override the package's, updates included
    found = [FileChange(system.fstab, facts.fstab, text)]
    found += [unit_change(system, facts, name, new.encode()) for name, new in wanted.items()]
    found += [unit_change(system, facts, name, None) for name in sorted(gone)]
    return [change for change in found if change.is_needed]


def _check_not_confined(facts: Facts) -> None:
    if facts.confined is None:
        return
    raise UserError(
        f"SELinux would stop the guard at boot: fstab would run it as {facts.confined.domain},"
        f" without {', '.join(facts.confined.missing)}",
        "--style systemd" if facts.has_systemd else "--no-persist",
    )


def unit_change(system: SystemPaths, facts: Facts, name: str, after: bytes | None) -> FileChange:
    """Return the change of one unit file. Raises UserError if the file is not ours."""
    before = facts.units.get(name)
    path = os.path.join(system.units, name)
    if before is not None and not systemd.is_ours(before):
        hint = "move it away" if after is None else "move it away, or --style fstab"
        raise UserError(f"{path} was not written by gitguardfs", hint)
    return FileChange(path, before, after)


def unit_names(facts: Facts, mount: str, map_mounts: tuple[str, ...]) -> set[str]:
    """Return the names of our unit files for these mounts, to be deleted.

    Includes what nothing else needs then: the template, and shares that only guards at
    ``map_mounts`` used. Such a share would be mounted unguarded otherwise.
    """
    guards = systemd.guards(facts.units)
    found = {systemd.drop_in_name(path) for path in map_mounts if path in guards}
    shares = {source for path, source in guards.items() if path in map_mounts}
    shares -= {source for path, source in guards.items() if path not in map_mounts}
    present = systemd.shares(facts.units)
    found |= {systemd.mount_name(share) for share in {mount, *shares} if share in present}
    template = facts.units.get(systemd.TEMPLATE)
    # A template of the administrator's may override the package's: keep it.
    is_kept = facts.has_packaged_template and not systemd.is_ours(template or b"")
    if found and set(guards) <= set(map_mounts) and template is not None and not is_kept:
        found.add(systemd.TEMPLATE)
    return found


def write_steps(system: SystemPaths, facts: Facts, changes: list[FileChange]) -> list[Step]:
    """Return the steps that write the files and reload systemd, also after an undo."""
    reload = (system.systemctl, "daemon-reload") if facts.has_systemd else ()
    found: list[Step] = [
        # The first one is undone last.
        Write(change, change.path == system.fstab, reload if number == 0 else ())
        for number, change in enumerate(changes)
    ]
    if reload and changes:
        found.append(Run(reload))
    return found


def boot_steps(
    system: SystemPaths, facts: Facts, style: Style, spec: GuardedShare, changes: list[FileChange]
) -> list[Step]:
    """Return the steps that write the entries, check fstab, and start systemd's service."""
    if style == "none":
        return []
    found = write_steps(system, facts, changes)
    if style == "fstab":
        if spec.map_mount in facts.enabled:
            found.insert(0, disable(system, spec.map_mount))
        if changes:
            found.append(VerifyFstab(system.fstab, (spec.mount, spec.map_mount)))
        return found
    service = systemd.service_name(spec.map_mount)
    if spec.map_mount not in facts.enabled:
        found.append(Run(*_enabling(system, service)))
    found.append(StartService(system.systemctl, service, spec.mount, spec.map_mount))
    return found


def disable(system: SystemPaths, map_mount: str) -> Step:
    """Return the step that disables the start of a guard's service at boot."""
    enable, disable_ = _enabling(system, systemd.service_name(map_mount))
    return Run(disable_, enable)


def _enabling(system: SystemPaths, service: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (
        (system.systemctl, "enable", "--quiet", service),
        (system.systemctl, "disable", "--quiet", service),
    )


def left_at_boot(facts: Facts, spec: GuardedShare) -> str:
    """Return which older entry mounts share or view at boot, for ``--no-persist``; or "not"."""
    if spec.map_mount in facts.enabled:
        return f"as before, by {systemd.service_name(spec.map_mount)}"
    lines = [e for e in fstab_entries.entries(facts.fstab) if "noauto" not in e.options]
    for entry in lines:
        if entry.target == spec.map_mount:
            return f"as before, by line {entry.number} of fstab"
    for entry in lines:
        if entry.target == spec.mount and entry.is_share:
            return f"the raw share alone, unguarded, by line {entry.number} of fstab"
    return "not"
