"""Starts the guard of a mounted share, now and at boot, and stops it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from gitguardfs.base.constants import FSTYPE, SUBTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest import boot, mountpoint, systemd
from gitguardfs.guest.changes import Changes
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.request import MountRequest
from gitguardfs.linux import mountinfo
from gitguardfs.linux.programs import call
from gitguardfs.mounting import guards, lid, seal
from gitguardfs.mounting.unmount import (
    remove_seals,
    seal_or_unmount,
    stop_keeping_seal,
    stop_orphan,
)
from gitguardfs.options import fstab_entries
from gitguardfs.options.guarded_share import GuardedShare, with_git_mode
from gitguardfs.options.parsing import quote_o, split_o


def guard(
    changes: Changes, system: SystemPaths, facts: Facts, request: MountRequest, spec: GuardedShare
) -> None:
    """Guard the mounted share now and at boot, unless that is so already. Raises UserError."""
    _check_other_mounts(facts, request)
    view, style = spec.map_mount, request.style
    files = boot.file_changes(system, facts, style, spec)
    by_service = style == "systemd"
    is_right = _is_right(facts, request, spec)
    if by_service:
        is_right &= {view} <= facts.active & facts.enabled
    if is_right and not files:
        if style != "none":
            boot.take_changes(changes, system, facts)
        return
    request.check_empty(request.map_mount)
    if facts.guard_at(view) is not None:
        stop(changes, system, facts, spec.mount, view)
    elif facts.any_guard_at(view) is None:
        mountpoint.make_missing(changes, request.map_mount, request.user)
    if not by_service:
        # gitguardfs refuses to mount if the path leads elsewhere by then.
        options = ",".join([*spec.guard_options, f"mountpoint={quote_o(view)}"])
        command = (*system.guard_command, "-o", options, "--", spec.mount, view)
        _start(changes, command, spec)
    if style == "none":
        return
    if style == "fstab" and view in facts.enabled:
        boot.disable(changes, system, view)
    boot.write(changes, system, facts, files)
    if by_service:
        service = systemd.service_name(view)
        if view not in facts.enabled:
            boot.enable(changes, system, view)
        stop_service = (system.systemctl, "stop", service)
        _start(changes, (system.systemctl, "restart", service), spec, stop_service)
    boot.take_changes(changes, system, facts)


def _is_right(facts: Facts, request: MountRequest, spec: GuardedShare) -> bool:
    """Return whether a guard with the requested options and seal runs there."""
    running = facts.running.get(spec.map_mount)
    if facts.guard_at(spec.map_mount) is None or running is None:
        return False
    wanted = split_o(",".join(spec.guard_options))
    return guards.same_options(running, wanted) and facts.is_sealed(spec.mount) == request.is_sealed


def _check_other_mounts(facts: Facts, request: MountRequest) -> None:
    share, view = request.mount.path, request.map_mount.path
    top = mountinfo.top_at(view, facts.mounts)
    if top is not None and not lid.is_lid(top):
        if top.fstype != FSTYPE:
            raise UserError(f"{top.fstype} is mounted at {view}", "choose another --map-mount")
        if not guards.is_guard(top):
            raise mountpoint.not_ours(view)
    for other in facts.guards():
        if other.path == view and other.source not in (share, SUBTYPE):
            raise UserError(f"{view} shows {other.source}", "choose another --map-mount")
        if other.path != view and other.source == share and other.path not in facts.dead:
            raise UserError(
                f"{share} is guarded at {other.path} already",
                f"vm-mount --remove --map-mount {shlex.quote(other.path)}",
                Exit.MOUNT,
            )


def _start(
    changes: Changes,
    command: Sequence[str],
    spec: GuardedShare,
    stop_command: Sequence[str] = (),
) -> None:
    """Start a guard by ``command``, which returns when the view answers."""
    share, view = spec.mount, spec.map_mount
    before = {one.identity for one in guards.guards() if one.mount_point != os.fsencode(view)}
    was_sealed, had_lid = seal.is_sealed(share), lid.is_at(view)

    def start() -> None:
        stop_orphan(share)
        try:
            call(command)
        except UserError as error:
            raise _without_seal_remark(error, share) from None

    def undo() -> None:
        for one in guards.guards():
            is_new = one.identity not in before and one.source in (share, SUBTYPE)
            if is_new and not guards.is_dead(one.mount_point):
                stop_keeping_seal(one, share)
        if stop_command:  # else systemd restarts a failing service again and again
            call(stop_command)
        if not had_lid:
            lid.remove_at(view)
        if not was_sealed:
            remove_seals(share)

    changes.make(shlex.join(command), start, undo)


def _without_seal_remark(error: UserError, share: str) -> UserError:
    """Return the error without gitguardfs's remark about its new seal, which is undone."""
    remark = re.escape(seal.remark(share))
    return UserError(re.sub(rf" \({remark}\)|; {remark}", "", str(error)), code=error.code)


def stop(changes: Changes, system: SystemPaths, facts: Facts, share: str, view: str) -> None:
    """End a guard and leave the share sealed. Fails if the view is busy.

    The undo starts the guard's service, or the daemon with its former options. It never uses
    mount(8), which follows symlinks of any user on the way to the mount point. If the undo fails,
    the raw share stays sealed.
    """
    found = facts.any_guard_at(view)
    assert found is not None
    running = facts.running.get(view)
    commands: list[Sequence[str]] = []
    if view in facts.active:
        service = systemd.service_name(view)
        commands = [(system.systemctl, "daemon-reload"), (system.systemctl, "start", service)]
    elif running is not None:
        options = [quote_o(o) for o in running if o not in ("foreground", "debug")]
        commands = [(*system.guard_command, "-o", ",".join(options), "--", share, view)]

    def start_again() -> None:
        if mountinfo.current(found) is not None:
            return
        try:
            if not commands:
                raise UserError("the command that started it is not known")
            for command in commands:
                call(command)
        except UserError as error:
            why = f"{view} is no longer guarded: {error}"
            raise UserError(f"{why}; {seal_or_unmount(share)}", code=Exit.SYSTEM) from None

    changes.make(
        f"umount {shlex.quote(view)}", lambda: stop_keeping_seal(found, share), start_again
    )


def lost_options(facts: Facts, spec: GuardedShare) -> Iterator[str]:
    """Yield a line if options were in force, or in the entries, that are no longer asked for."""
    wanted = split_o(",".join(spec.guard_options))
    lost = guards.lost_options(options_of(facts, spec.map_mount), wanted, with_git_mode(()))
    if lost:
        options = shlex.quote(",".join(map(quote_o, lost)))
        yield f"No longer in force, since it was not given again: -o {options}"


def options_of(facts: Facts, view: str) -> tuple[str, ...]:
    """Return the options of the daemon that serves a view, or else those in its entries."""
    if (running := facts.running.get(view)) is not None:
        return running
    written = systemd.options(facts.units).get(view, "")
    lines = [e for e in fstab_entries.entries(facts.fstab) if e.is_guard and e.is_ours]
    texts = [",".join(e.options) for e in lines if e.target == view]
    return tuple(split_o(",".join([written, *texts])))
