"""Writes the entries that mount share and view at the next boot: fstab lines, or systemd units."""

from __future__ import annotations

import os
from functools import partial

from gitguardfs.base.errors import UserError
from gitguardfs.guest import fstab, systemd
from gitguardfs.guest.changes import Changes
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.request import Style
from gitguardfs.linux.programs import call
from gitguardfs.options import config_files, fstab_entries
from gitguardfs.options.config_files import FileChange
from gitguardfs.options.guarded_share import GuardedShare

PACKAGED = (systemd.TEMPLATE, systemd.CHANGES)
"""Units that a package brings."""


def style_of(facts: Facts, view: str) -> Style:
    """Return the style of the entries for this view; if there are none, the one that suits."""
    lines = fstab_entries.entries(facts.fstab)
    if any(line.is_guard and line.is_ours and line.target == view for line in lines):
        return "fstab"
    return "systemd" if facts.has_systemd else "fstab"


def file_changes(
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
        del wanted[systemd.CHANGES]
    if _can_take_changes(facts):
        wanted[systemd.CHANGES] = systemd.changes_unit(system.guard or systemd.COMMAND)
    if facts.has_packaged_template:
        wanted = {name: text for name, text in wanted.items() if name not in PACKAGED}
    gone = unit_names(facts, spec.mount, (spec.map_mount,)) - set(wanted)
    if facts.has_packaged_template:  # ours would override the package's, updates included
        gone |= {name for name in PACKAGED if systemd.is_ours(facts.units.get(name, b""))}
    return [
        *_fstab_change(system, facts, text),
        *_unit_changes(system, facts, {name: new.encode() for name, new in wanted.items()}),
        *_unit_changes(system, facts, dict.fromkeys(sorted(gone))),
    ]


def removals(
    system: SystemPaths, facts: Facts, share: str, views: tuple[str, ...]
) -> list[FileChange]:
    """Return the changes of files that delete all our entries for these mounts."""
    names = sorted(unit_names(facts, share, views))
    return [
        *_fstab_change(system, facts, fstab.remove(facts.fstab, share, views)),
        *_unit_changes(system, facts, dict.fromkeys(names)),
    ]


def _fstab_change(system: SystemPaths, facts: Facts, text: bytes) -> list[FileChange]:
    return [FileChange(system.fstab, facts.fstab, text)] if text != facts.fstab else []


def _unit_changes(
    system: SystemPaths, facts: Facts, wanted: dict[str, bytes | None]
) -> list[FileChange]:
    """Return the needed changes of unit files. Raises UserError for a file that is not ours."""
    found = []
    for name, after in wanted.items():
        before = facts.units.get(name)
        path = os.path.join(system.units, name)
        if before is not None and not systemd.is_ours(before):
            hint = "move it away" if after is None else "move it away, or --style fstab"
            raise UserError(f"{path} was not written by gitguardfs", hint)
        if before != after:
            found.append(FileChange(path, before, after))
    return found


def _check_not_confined(facts: Facts) -> None:
    if facts.confined is not None:
        raise UserError(
            f"SELinux would stop the guard at boot: fstab would run it as {facts.confined.domain},"
            f" without {', '.join(facts.confined.missing)}",
            "--style systemd" if facts.has_systemd else "--no-persist",
        )


def unit_names(facts: Facts, share: str, views: tuple[str, ...]) -> set[str]:
    """Return the names of our unit files for these mounts, to be deleted.

    Includes units that nothing else needs then: the template, and shares that only guards at
    ``views`` used. Such a share would be mounted unguarded otherwise.
    """
    guards = systemd.guards(facts.units)
    found = {systemd.drop_in_name(path) for path in views if path in guards}
    shares = {source for path, source in guards.items() if path in views}
    shares -= {source for path, source in guards.items() if path not in views}
    present = systemd.shares(facts.units)
    found |= {systemd.mount_name(one) for one in {share, *shares} if one in present}
    template = facts.units.get(systemd.TEMPLATE)
    # A template of the administrator's may override the package's: keep it.
    is_kept = facts.has_packaged_template and not systemd.is_ours(template or b"")
    if found and set(guards) <= set(views) and template is not None and not is_kept:
        found.add(systemd.TEMPLATE)
    if systemd.is_ours(facts.units.get(systemd.CHANGES, b"")) and _are_last(facts, views):
        found.add(systemd.CHANGES)
    return found


def write(changes: Changes, system: SystemPaths, facts: Facts, files: list[FileChange]) -> None:
    """Write or delete files, and have systemd read them, also after an undo."""
    reload = (system.systemctl, "daemon-reload")
    if files and facts.has_systemd:
        changes.add_undo("", lambda: call(reload))
    for file in files:
        changes.make(
            f"{'remove' if file.after is None else 'write'} {file.path}",
            partial(config_files.write, file, backup=file.path == system.fstab),
            partial(_restore, file),
            detail=file.diff().removesuffix("\n"),
        )
    if files and facts.has_systemd:
        changes.run(reload)


def _restore(file: FileChange) -> None:
    if config_files.read(file.path) != file.before:
        config_files.revert(file)


def enable(changes: Changes, system: SystemPaths, view: str) -> None:
    """Have systemd start a guard's service at boot."""
    changes.run(_systemctl(system, "enable", view), _systemctl(system, "disable", view))


def disable(changes: Changes, system: SystemPaths, view: str) -> None:
    """Disable the start of a guard's service at boot."""
    changes.run(_systemctl(system, "disable", view), _systemctl(system, "enable", view))


def _systemctl(system: SystemPaths, verb: str, view: str) -> tuple[str, ...]:
    return (system.systemctl, verb, "--quiet", systemd.service_name(view))


def take_changes(changes: Changes, system: SystemPaths, facts: Facts) -> None:
    """Have systemd take in the host's changes, now and at boot, if the host can tell of them."""
    if _can_take_changes(facts) and not facts.takes_changes:
        changes.run(_for_changes(system, "enable"), _for_changes(system, "disable"))


def leave_changes(
    changes: Changes, system: SystemPaths, facts: Facts, views: tuple[str, ...]
) -> None:
    """End that if ``views`` are the last ones."""
    if facts.has_systemd and facts.takes_changes and _are_last(facts, views):
        changes.run(_for_changes(system, "disable"), _for_changes(system, "enable"))


def _for_changes(system: SystemPaths, verb: str) -> tuple[str, ...]:
    return (system.systemctl, verb, "--quiet", "--now", systemd.CHANGES)


def _can_take_changes(facts: Facts) -> bool:
    return facts.has_systemd and facts.has_changes_port


def _are_last(facts: Facts, views: tuple[str, ...]) -> bool:
    lines = fstab_entries.entries(facts.fstab)
    written = {line.target for line in lines if line.is_guard and line.is_ours}
    return written | set(systemd.guards(facts.units)) <= set(views)


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
