"""Checks that no mount namespace of the user, older than the seal, shows the raw share.

A seal propagates to other namespaces. A private one that is older (``unshare -m``) still shows
the raw share; in one that is not private, its root may be able to unmount the seal. A namespace
is the user's if one of the user's processes is in it, or if the user may enter it. That includes
namespaces without processes, and those of subordinate ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor import namespace_attempts, other_mounts
from gitguardfs.doctor.context import Context
from gitguardfs.linux import mountinfo, namespaces, run_as
from gitguardfs.linux.namespaces import MountNamespace
from gitguardfs.linux.run_as import Hung, NoAnswer, SetupFailed, User


def check(context: Context, user: User, raw: Iterable[str], guards: tuple[int, ...]) -> Result:
    """Try every path of the raw share, as the user, in each namespace that the user can enter."""
    row = Row(
        "share.elsewhere",
        f"{user.name} has no mount namespace that shows the raw share",
        f"{user.name} has a mount namespace that shows the raw share",
    )
    paths = sorted(raw)
    if not paths:
        return row.not_checked("no path of the raw share is known")
    routes: list[str] = []
    unchecked: list[str] = []
    spaces = [
        one for one in namespaces.others(context.system.processes) if may_enter(one, user.uid)
    ]
    known = {str(one.identity[1]) for one in spaces}
    for space in spaces:
        if space.identity == (0, 0):
            unchecked.append(space.label)
            continue
        try:
            seen = _shown(context, user, space, paths, guards) if space.process else []
            routes += [f"{space.label} sees {place}" for place in seen]
            arguments = (space.path, space.identity, user, context.table, paths, guards)
            open_, kept = run_as.run_as(namespace_attempts.unmount_covers, *arguments)
            verb = "can unmount what covers" if space.process else "leads to"
            routes += [f"{space.label} {verb} {place}" for place in open_ if place not in seen]
            unchecked += [f"a mount namespace kept in that of {space.label}"] * (
                not known >= {*kept}
            )
        except (FileNotFoundError, ProcessLookupError):
            if not space.process:  # its holder has ended, but may have passed the descriptor on
                unchecked.append(space.label)
        except (OSError, SetupFailed, NoAnswer):
            unchecked.append(space.label)
    if routes:
        hint = "end all processes of the user (loginctl terminate-user), or restart the guest"
        return row.finding(", ".join(routes), hint)
    if unchecked:
        hint = "run it as root of the system itself, or end these processes"
        return row.unknown(f"could not be checked: {', '.join(unchecked)}", hint)
    return row.ok()


def may_enter(space: MountNamespace, uid: int) -> bool:
    """Return whether a namespace is, or may be, the user's; entering it decides."""
    if space.process and uid in space.uids:
        return True
    return uid in space.makers if space.makers is not None else not space.process


def _shown(
    context: Context, user: User, space: MountNamespace, paths: list[str], guards: tuple[int, ...]
) -> list[str]:
    """Return the paths at which the user reaches the raw share in the unchanged namespace."""
    table = tuple(mountinfo.listed(space.process))
    places = {
        place for path in paths for place in other_mounts.shown_in(table, context.table, path)
    }
    return [place for place in sorted(places) if _is_open(user, space, place, guards)]


def _is_open(user: User, space: MountNamespace, place: str, guards: tuple[int, ...]) -> bool:
    """Return whether the user reaches ``place`` in the namespace. Raises SetupFailed, NoAnswer."""
    call = partial(namespace_attempts.is_open, place, guards)
    try:
        return bool(run_as.run_as(call, user=user, root=f"{space.process}/root"))
    except Hung:
        return True  # the child hangs in a request to the share's server, so it reached it
