"""From what is asked for and what is found to the list of steps. Pure.

There are two plans, since the owner of a share is known only once it is mounted: one for the
share, one for the guard. A plan without steps says that everything is as it should be.
"""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import dataclass, replace
from typing import Literal

from gitguardfs import mounts
from gitguardfs.errors import Exit, UserError
from gitguardfs.guest import running, steps
from gitguardfs.guest.facts import Facts, Ids, System, Way, not_ours
from gitguardfs.guest.steps import Step
from gitguardfs.options import parse_o, split_o
from gitguardfs.render import fstab, quote, systemd
from gitguardfs.render.guarded import (
    Cache,
    GuardedShare,
    check_guard_options,
    check_tag,
    share_options,
)
from gitguardfs.writer import Change

UTM_TAG = "share"
"""The one tag that UTM gives to shared directories."""

Style = Literal["fstab", "systemd", "none"]
"""How it is brought back at the next boot."""


@dataclass(frozen=True)
class Request:
    """What the user asks for; paths are resolved."""

    tag: str
    mount: Way
    map_mount: Way
    user: Ids
    style: Style
    kind: str | None = None
    options: tuple[str, ...] = ()
    cover: bool = False
    """Mount over a directory that is not empty."""

    def __post_init__(self) -> None:
        check_tag(self.tag, self.kind)
        check_guard_options(self.options)
        if "fsname" in self._parsed():
            raise UserError("fsname would hide what is guarded", "leave it out")

    def _parsed(self) -> dict[str, object]:
        return parse_o([quote.mount_option(option) for option in self.options])

    @property
    def is_sealed(self) -> bool:
        """Whether the raw share is to be covered."""
        return self._parsed().get("seal") is not False


def default_tag(facts: Facts) -> str:
    """The tag to use if none is given: UTM's, if it is the only one. UserError."""
    known = {*facts.tags.p9, *(facts.tags.virtiofs or ())}
    hidden = facts.tags.virtiofs is None and facts.tags.has_virtiofs_device
    if known == {UTM_TAG} or (not known and hidden):
        return UTM_TAG
    raise UserError(f"which share? The kernel sees: {facts.tags.listing()}", "say --label TAG")


def default_mount(system: System, tag: str) -> str:
    """Where a share is mounted if the user does not say: below a directory of root's alone."""
    name = urllib.parse.quote(tag, safe="")
    return os.path.join(system.shares, name.replace(".", "%2E") if not name.strip(".") else name)


# The share


def share_steps(system: System, facts: Facts, request: Request) -> list[Step]:
    """Mount the share, unless it is. UserError if that cannot be done, or could not be closed."""
    mount = request.mount.path
    _check_place(request)
    present = facts.share_at(mount)
    if present is not None:
        if present.source != request.tag:
            raise UserError(f"{mount} shows the share {present.source}", "choose another --mount")
        return []
    top = facts.top_at(mount)
    if top is not None:
        raise UserError(f"{top.fstype} is mounted at {mount}", "choose another --mount")
    _check_not_elsewhere(facts, request)
    kinds = facts.tags.kinds_of(request.tag)
    if request.kind is not None:
        kinds = tuple(kind for kind in kinds if kind == request.kind)
    if not kinds:
        raise UserError(
            f"there is no share {request.tag!r}"
            f"{f' of type {request.kind}' if request.kind else ''};"
            f" the kernel sees: {facts.tags.listing()}"
        )
    return [
        *_private_directory(system, request),
        *_missing(request.mount, root=True),
        steps.MountShare(
            tuple(mount_command(system, kind, request.tag, mount) for kind in kinds),
            mount,
        ),
    ]


def _check_place(request: Request) -> None:
    """Refuse a raw mount point that an ordinary user could get round or move."""
    mount = request.mount.path
    for step in request.mount.parents:
        if not step.is_roots:
            raise UserError(
                f"the raw share cannot be closed off at {mount}: others can change {step.path}",
                "leave --mount out, or give a place below directories that only root can change",
            )
    # What is missing above the mount point will be made private.
    is_private = len(request.mount.missing) > 1
    is_private |= any(not step.mode & 0o011 for step in request.mount.parents)
    if not request.is_sealed and not is_private:
        raise UserError(
            f"without a seal everybody can read the raw share at {mount}",
            "leave no-seal out, or leave --mount out: the default is below a private directory",
        )


def _check_not_elsewhere(facts: Facts, request: Request) -> None:
    for share in facts.shares():
        if share.source == request.tag:
            where = os.fsdecode(share.path)
            raise UserError(
                f"the share {request.tag} is mounted at {where} already",
                f"--mount {where}, or vm-mount --remove --label {request.tag}",
                Exit.MOUNT,
            )


def _private_directory(system: System, request: Request) -> list[Step]:
    if os.path.dirname(request.mount.path) != system.shares:
        return []
    for step in request.mount.steps:
        if step.path == system.shares and step.mode & 0o077:
            return [steps.Close(step.path, step.mode)]
    return []


def _missing(way: Way, *, root: bool, user: Ids = (0, 0)) -> list[Step]:
    if not way.missing:
        return []
    if root or all(step.is_roots for step in way.steps):
        mode = 0o700 if root else 0o755
        return [steps.Make(way.missing, user, mode=mode)]
    if way.steps[-1].uid != user[0]:
        raise UserError(
            f"{way.path} is to be user {user[0]}'s, and {way.steps[-1].path} is not",
            f"make it first: mkdir {way.path}",
        )
    return [steps.Make(way.missing, user, by=user)]


def mount_command(system: System, kind: str, tag: str, mount: str) -> tuple[str, ...]:
    """The command that mounts a share."""
    options = ",".join(share_options(kind, Cache.NONE))
    return (system.mount, "-t", kind, "-o", options, "--", tag, mount)


# The guard


def guard_steps(
    system: System, facts: Facts, request: Request, spec: GuardedShare, program: tuple[str, ...]
) -> list[Step]:
    """Guard the mounted share and have it come back at boot, as far as that is not so already.

    ``program`` is how gitguardfs is run.
    """
    _check_guards(facts, request)
    changes = [] if request.style == "none" else _changes(system, facts, request.style, spec)
    is_right = _is_right(facts, request, spec)
    by_service = request.style == "systemd"
    if by_service:
        is_right &= spec.map_mount in facts.active
        changes_boot = bool(changes) or spec.map_mount not in facts.enabled
    else:
        changes_boot = bool(changes)
    if is_right and not changes_boot:
        return []
    found: list[Step] = []
    if facts.guard_at(spec.map_mount) is not None:
        found.append(stop(system, facts, spec.mount, spec.map_mount, program))
    elif facts.any_guard_at(spec.map_mount) is None:
        if not request.map_mount.is_empty and not request.cover:
            raise UserError(
                f"{spec.map_mount} is not empty: what is there would be hidden",
                "move it away, or say -y",
            )
        found += _missing(request.map_mount, root=False, user=request.user)
    if not by_service:
        found.append(_start(system, spec, program))
    found += _boot_steps(system, facts, request.style, spec, changes)
    return found


def _is_right(facts: Facts, request: Request, spec: GuardedShare) -> bool:
    """Whether a guard runs there and does what is asked for, by what its daemon was told."""
    if facts.guard_at(spec.map_mount) is None:
        return False
    told = facts.running.get(spec.map_mount)
    wanted = split_o(",".join(spec.guard_options))
    if told is None or not running.are_alike(told, wanted):
        return False
    return facts.is_sealed(spec.mount) == request.is_sealed


def dropped(facts: Facts, spec: GuardedShare) -> list[str]:
    """Options that were in force, or written down, and are not asked for any more."""
    before = facts.running.get(spec.map_mount)
    if before is None:
        written = systemd.options(facts.units).get(spec.map_mount, "")
        lines = [e for e in fstab.entries(facts.fstab) if e.is_guard and e.is_ours]
        texts = [",".join(e.options) for e in lines if e.target == spec.map_mount]
        before = tuple(split_o(",".join([written, *texts])))
    return running.lost(before, split_o(",".join(spec.guard_options)))


def _check_guards(facts: Facts, request: Request) -> None:
    mount, map_mount = request.mount.path, request.map_mount.path
    top = facts.top_at(map_mount)
    if top is not None and top.fstype != mounts.FSTYPE:
        raise UserError(f"{top.fstype} is mounted at {map_mount}", "choose another --map-mount")
    if top is not None and top.number in facts.foreign:
        raise not_ours(map_mount)
    for guard in facts.guards():
        where = os.fsdecode(guard.path)
        if where == map_mount and guard.source not in (mount, mounts.SUBTYPE):
            raise UserError(f"{map_mount} shows {guard.source}", "choose another --map-mount")
        if where != map_mount and guard.source == mount and where not in facts.dead:
            raise UserError(
                f"{mount} is guarded at {where} already",
                f"vm-mount --remove --map-mount {where}",
                Exit.MOUNT,
            )


def _start(system: System, spec: GuardedShare, program: tuple[str, ...]) -> Step:
    options = ",".join(spec.guard_options)
    return steps.StartGuard(
        (*program, "-o", options, "--", spec.mount, spec.map_mount),
        spec.mount,
        spec.map_mount,
    )


def stop(
    system: System, facts: Facts, mount: str, map_mount: str, program: tuple[str, ...]
) -> Step:
    """Unmount a guard; undone by its service, or as it was run.

    Never by mount(8), which follows any user's symlinks to the mount point.
    """
    guard = facts.any_guard_at(map_mount)
    assert guard is not None
    told = facts.running.get(map_mount)
    restart: tuple[tuple[str, ...], ...] = ()
    if map_mount in facts.active:
        service = systemd.service_name(map_mount)
        restart = ((system.systemctl, "daemon-reload"), (system.systemctl, "start", service))
    elif told is not None:
        options = [quote.mount_option(o) for o in told if o not in ("foreground", "debug")]
        restart = ((*program, "-o", ",".join(options), "--", mount, map_mount),)
    return steps.StopGuard(map_mount, mount, guard.number, restart)


def _changes(system: System, facts: Facts, style: Style, spec: GuardedShare) -> list[Change]:
    """What is to be written; what the other style left goes."""
    wanted: dict[str, str] = {}
    if style == "fstab":
        text = fstab.install(facts.fstab, spec)
    else:
        text = fstab.remove(facts.fstab, spec.mount, (spec.map_mount,))
        _check_foreign_guard(text, spec)
        wanted = systemd.files(spec, system.guard or systemd.COMMAND)
        if any(e.is_share and e.target == spec.mount for e in fstab.entries(text)):
            del wanted[systemd.mount_name(spec.mount)]  # somebody's own line mounts it
    gone = unit_names(facts, spec.mount, (spec.map_mount,)) - set(wanted)
    found = [Change(system.fstab, facts.fstab, text)]
    found += [unit_change(system, facts, name, new.encode()) for name, new in wanted.items()]
    found += [unit_change(system, facts, name, None) for name in sorted(gone)]
    return [change for change in found if change.is_one]


def _check_foreign_guard(text: bytes, spec: GuardedShare) -> None:
    for entry in fstab.entries(text):
        if entry.target == spec.map_mount:
            raise UserError(
                f"line {entry.number} of fstab already mounts {entry.source} at {entry.target}",
                "take it out, or choose another --map-mount",
            )


def unit_change(system: System, facts: Facts, name: str, after: bytes | None) -> Change:
    """A change of a file of units; UserError if it is not ours."""
    before = facts.units.get(name)
    path = os.path.join(system.units, name)
    if before is not None and not systemd.is_ours(before):
        raise UserError(f"{path} was not written by gitguardfs", "move it away, or --style fstab")
    return Change(path, before, after)


def unit_names(facts: Facts, mount: str, map_mounts: tuple[str, ...]) -> set[str]:
    """Our unit files for these; the template among them if nothing else needs it."""
    guards = systemd.guards(facts.units)
    found = {systemd.drop_in_name(path) for path in map_mounts if path in guards}
    if mount in systemd.shares(facts.units):
        found.add(systemd.mount_name(mount))
    if found and set(guards) <= set(map_mounts) and systemd.TEMPLATE in facts.units:
        found.add(systemd.TEMPLATE)
    return found


def write_steps(system: System, facts: Facts, changes: list[Change]) -> list[Step]:
    """Write the files, and tell systemd, also when they are put back."""
    reload = (system.systemctl, "daemon-reload") if facts.has_systemd else ()
    found: list[Step] = [
        # The first one is undone last.
        steps.Write(change, change.path == system.fstab, reload if number == 0 else ())
        for number, change in enumerate(changes)
    ]
    if reload and changes:
        found.append(steps.Run(reload))
    return found


def _boot_steps(
    system: System, facts: Facts, style: Style, spec: GuardedShare, changes: list[Change]
) -> list[Step]:
    if style == "none":
        return []
    found = write_steps(system, facts, changes)
    if style == "fstab":
        if spec.map_mount in facts.enabled:
            found.insert(0, disable(system, spec.map_mount))
        if changes:
            found.append(steps.Verify(system.fstab, (spec.mount, spec.map_mount)))
        return found
    service = systemd.service_name(spec.map_mount)
    if spec.map_mount not in facts.enabled:
        found.append(steps.Run(*_enabling(system, service)))
    found.append(
        steps.Run((system.systemctl, "restart", service), (system.systemctl, "stop", service))
    )
    return found


def disable(system: System, map_mount: str) -> Step:
    """Have a guard's service no longer started at boot."""
    enable, disable_ = _enabling(system, systemd.service_name(map_mount))
    return steps.Run(disable_, enable)


def _enabling(system: System, service: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (
        (system.systemctl, "enable", "--quiet", service),
        (system.systemctl, "disable", "--quiet", service),
    )


def with_owner(request: Request, kind: str, the_map: str) -> GuardedShare:
    """The spec, once the type of the share and the map are known."""
    return GuardedShare(
        tag=request.tag,
        kind=kind,
        mount=request.mount.path,
        map_mount=request.map_mount.path,
        map=the_map,
        options=request.options,
        cache=Cache.NONE,
    )


def without_unmounted(facts: Facts, request: Request) -> Facts:
    """For a dry run: the look that there would be once the share is mounted."""
    kind = request.kind or next(iter(facts.tags.kinds_of(request.tag)), "9p")
    share = mounts.Mount("", os.fsencode(request.mount.path), kind, request.tag)
    return replace(facts, mounts=(*facts.mounts, share))
