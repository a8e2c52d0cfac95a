"""Plans the steps that guard the mounted share, now and at boot (the second plan). Pure."""

from __future__ import annotations

import shlex

from gitguardfs.base.constants import FSTYPE, SUBTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest import plan_boot, systemd
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.mountpoint import not_ours
from gitguardfs.guest.plan_share import MountRequest, make
from gitguardfs.guest.steps_mount import StartGuard, StopGuard
from gitguardfs.guest.transaction import Step
from gitguardfs.linux import mountinfo
from gitguardfs.mounting import guards, lid
from gitguardfs.options import fstab_entries
from gitguardfs.options.guarded_share import GuardedShare, with_git_mode
from gitguardfs.options.parsing import quote_o, split_o


def guard_steps(
    system: SystemPaths,
    facts: Facts,
    request: MountRequest,
    spec: GuardedShare,
    program: tuple[str, ...],
) -> list[Step]:
    """Return the steps that guard the mounted share now and at boot; empty if nothing is to do.

    ``program`` is the command that runs gitguardfs. Raises UserError.
    """
    _check_guards(facts, request)
    changes = plan_boot.changes(system, facts, request.style, spec)
    is_right = _is_right(facts, request, spec)
    by_service = request.style == "systemd"
    if by_service:
        is_right &= spec.map_mount in facts.active
        changes_boot = bool(changes) or spec.map_mount not in facts.enabled
    else:
        changes_boot = bool(changes)
    if is_right and not changes_boot:
        return []
    request.check_empty(request.map_mount)
    found: list[Step] = []
    if facts.guard_at(spec.map_mount) is not None:
        found.append(stop(system, facts, spec.mount, spec.map_mount, program))
    elif facts.any_guard_at(spec.map_mount) is None:
        found += make(request.map_mount, root=False, user=request.user)
    if not by_service:
        found.append(_start(spec, program))
    found += plan_boot.boot_steps(system, facts, request.style, spec, changes)
    return found


def _is_right(facts: Facts, request: MountRequest, spec: GuardedShare) -> bool:
    """Return whether a guard runs there with the options and the seal that are asked for."""
    if facts.guard_at(spec.map_mount) is None:
        return False
    running = facts.running.get(spec.map_mount)
    wanted = split_o(",".join(spec.guard_options))
    if running is None or not guards.same_options(running, wanted):
        return False
    return facts.is_sealed(spec.mount) == request.is_sealed


def lost_options(facts: Facts, spec: GuardedShare) -> list[str]:
    """Return options that were in force, or in the entries, and are no longer asked for."""
    before = options_of(facts, spec.map_mount)
    return guards.lost_options(before, split_o(",".join(spec.guard_options)), with_git_mode(()))


def options_of(facts: Facts, map_mount: str) -> tuple[str, ...]:
    """Return the options of the daemon that serves a view, or else those in its entries."""
    if (running := facts.running.get(map_mount)) is not None:
        return running
    written = systemd.options(facts.units).get(map_mount, "")
    lines = [e for e in fstab_entries.entries(facts.fstab) if e.is_guard and e.is_ours]
    texts = [",".join(e.options) for e in lines if e.target == map_mount]
    return tuple(split_o(",".join([written, *texts])))


def _check_guards(facts: Facts, request: MountRequest) -> None:
    mount, map_mount = request.mount.path, request.map_mount.path
    top = mountinfo.top_at(map_mount, facts.mounts)
    if top is not None and lid.is_lid(top):
        top = None
    if top is not None and top.fstype != FSTYPE:
        raise UserError(f"{top.fstype} is mounted at {map_mount}", "choose another --map-mount")
    if top is not None and not guards.is_guard(top):
        raise not_ours(map_mount)
    for guard in facts.guards():
        where = guard.path
        if where == map_mount and guard.source not in (mount, SUBTYPE):
            raise UserError(f"{map_mount} shows {guard.source}", "choose another --map-mount")
        if where != map_mount and guard.source == mount and where not in facts.dead:
            raise UserError(
                f"{mount} is guarded at {where} already",
                f"vm-mount --remove --map-mount {shlex.quote(where)}",
                Exit.MOUNT,
            )


def _start(spec: GuardedShare, program: tuple[str, ...]) -> Step:
    # gitguardfs refuses to mount if the path leads elsewhere by then.
    place = f"mountpoint={quote_o(spec.map_mount)}"
    options = ",".join([*spec.guard_options, place])
    command = (*program, "-o", options, "--", spec.mount, spec.map_mount)
    return StartGuard(command, spec.mount, spec.map_mount)


def stop(
    system: SystemPaths, facts: Facts, mount: str, map_mount: str, program: tuple[str, ...]
) -> Step:
    """Return the step that ends a guard and leaves the share sealed.

    Undoing it starts the guard's service, or the daemon with its former options. It never uses
    mount(8), which follows symlinks of any user on the way to the mount point.
    """
    guard = facts.any_guard_at(map_mount)
    assert guard is not None
    running = facts.running.get(map_mount)
    restart: tuple[tuple[str, ...], ...] = ()
    if map_mount in facts.active:
        service = systemd.service_name(map_mount)
        restart = ((system.systemctl, "daemon-reload"), (system.systemctl, "start", service))
    elif running is not None:
        options = [quote_o(o) for o in running if o not in ("foreground", "debug")]
        restart = ((*program, "-o", ",".join(options), "--", mount, map_mount),)
    return StopGuard(map_mount, mount, guard, restart)
