"""Installs and removes a guarded share, as ``vm-mount`` is asked to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest import boot, facts, guard, mountpoint, raw_share, removal, report, seeding
from gitguardfs.guest.changes import Changes
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.request import MountRequest, Style, check_not_of_the_system, default_mount
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.programs import call
from gitguardfs.names.rules import GitMode
from gitguardfs.options.guarded_share import MODULES as TRANSPORT_MODULES
from gitguardfs.options.guarded_share import GuardedShare

MODULES = (*dict.fromkeys(chain(*TRANSPORT_MODULES.values())), "9p", "fuse")


@dataclass(frozen=True)
class Arguments:
    """The command line; paths and names as they were typed."""

    tag: str | None = None
    mount: str | None = None
    map_mount: str | None = None
    transport: str | None = None
    style: Style | None = None
    user: str | None = None
    options: tuple[str, ...] = ()
    persist: bool = True
    git_off: bool = False
    dry_run: bool = False
    confirm: Callable[[], None] | None = None
    """Asks the user before anything is changed; raises an exception if the answer is no."""

    @property
    def previews(self) -> bool:
        """Whether to show the changes before any is made."""
        return self.dry_run or self.confirm is not None


def install(system: SystemPaths, arguments: Arguments) -> MountRequest:
    """Mount the share, guard it and write the entries for the next boot; print the result.

    Raises UserError; then all finished changes are undone.
    """
    state = facts.gather(system)
    with closing(_request(system, state, arguments)) as request:
        # All refusals come before the first change, which would have to be undone.
        rehearsal = Changes(report.say if arguments.previews else lambda _: None, is_rehearsal=True)
        spec = _install(rehearsal, system, state, request)
        if rehearsal.count and not arguments.dry_run:
            if arguments.confirm:
                arguments.confirm()
                state = facts.gather(system)  # it may have changed while the user was asked
            with Changes(report.say) as changes:
                spec = _install(changes, system, state, request)
            if request.policy is GitMode.PRIVATE:
                _say(seeding.seed(spec.map_mount))
                _say(seeding.commands_to_name(request.user[0]))
        changed = bool(rehearsal.count)
        _say(report.result(state, request, spec, changed=changed, would=arguments.dry_run))
        return request


def _install(
    changes: Changes, system: SystemPaths, state: Facts, request: MountRequest
) -> GuardedShare:
    path = request.mount.path
    if raw_share.mount(changes, system, state, request):
        if changes.is_rehearsal:
            state = _with_share(state, request)
            changes.report(
                "# The share's owner is not known before it is mounted: shown as the user's."
            )
        else:
            state = facts.gather(system)
    share = state.share_at(path)
    if share is None:
        raise UserError(f"no share is mounted at {path}, although mount succeeded", code=Exit.MOUNT)
    is_mounted = bool(share.device)
    owner = facts.owner_of_share(state, path) if is_mounted else request.user
    spec = request.guarded_share(share.fstype, owner)
    for line in guard.lost_options(state, spec):
        changes.report(line)
    guard.guard(changes, system, state, request, spec)
    return spec


def _with_share(state: Facts, request: MountRequest) -> Facts:
    """Return the facts as they would be after the share is mounted, for a rehearsal."""
    (transport, *_) = state.tags.transports_of(request.tag, request.transport)
    point = request.mount.path.encode(errors="surrogateescape")
    share = MountInfo(device="", mount_point=point, fstype=transport, source=request.tag)
    return replace(state, mounts=(*state.mounts, share))


def load_modules() -> None:
    """Load the kernel modules that make mount tags visible. Errors are ignored."""
    with suppress(UserError):  # a kernel without modules
        call(["modprobe", "--quiet", "--all", *MODULES])


def _request(system: SystemPaths, state: Facts, arguments: Arguments) -> MountRequest:
    """Return the validated request. Raises UserError."""
    tag, view = arguments.tag, arguments.map_mount
    assert tag is not None
    if view is None:
        raise UserError("no mount point for the view", "--map-mount /home/agent/projects")
    if arguments.style == "systemd" and arguments.persist and not state.has_systemd:
        raise UserError("systemd does not run here", "--style fstab")
    if arguments.persist and system.guard is None:
        raise UserError(
            "gitguardfs is not installed, so nothing could mount the view at boot",
            "guest-setup/install.sh, or --no-persist",
            Exit.SYSTEM,
        )
    known = [one.mount for one in removal.installed_shares(state) if one.tag == tag]
    share = arguments.mount or next(iter(known), default_mount(system, tag))
    mount, map_mount = mountpoint.resolve_all((share, view), state.mounts)
    check_not_of_the_system(map_mount.path)  # a home itself lies in no home
    style = arguments.style or boot.style_of(state, map_mount.path)
    return MountRequest(
        tag=tag,
        mount=mount,
        map_mount=map_mount,
        user=facts.owner_of_view(map_mount.path, arguments.user),
        style=style if arguments.persist else "none",
        transport=arguments.transport,
        options=("git=off", *arguments.options) if arguments.git_off else arguments.options,
        git_off=arguments.git_off,
    )


def remove(system: SystemPaths, arguments: Arguments) -> None:
    """Unmount view and share, and delete their entries; print what is left.

    Raises UserError; then all finished changes are undone.
    """
    state = facts.gather(system)
    share = arguments.mount and _resolved(arguments.mount)
    view = arguments.map_mount and _resolved(arguments.map_mount)
    found = removal.find(state, arguments.tag, share, view)
    rehearsal = Changes(report.say if arguments.previews else lambda _: None, is_rehearsal=True)
    if found is not None:
        removal.remove(rehearsal, system, state, found)
    if found is None or not rehearsal.count:
        there = ", ".join(map(str, removal.installed_shares(state)))
        report.say(f"Nothing to remove{f': there is only {there}' if there else ''}.")
        return
    if arguments.dry_run:
        return
    if arguments.confirm:
        arguments.confirm()
    with Changes(report.say) as changes:
        why_mounted = removal.remove(changes, system, state, found)
    for path in found.map_mounts:
        _say(report.kept(guard.options_of(state, path)))
    if why_mounted:
        report.say(
            f"The share stays mounted at {found.mount}, open now to all who can enter it:"
            f" {why_mounted}."
        )


def _resolved(path: str) -> str:
    with closing(mountpoint.resolve(path)) as found:
        return found.path


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        report.say(line)
