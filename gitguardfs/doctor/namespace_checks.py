"""Is the raw share open in a mount namespace that the user has kept from before the seal?

A seal covers the share where it is mounted, and where that propagates. A namespace that was made
before and is cut off (``unshare -m`` makes it private) goes on showing what it showed; in one that
is not, its root may be able to unmount the seal. It is the user's if one of its processes is, or if
the user may enter it: also one in which no process is any more, and one of subordinate ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gitguardfs.doctor import namespace_attempts, other_mounts, run_as
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.run_as import Hung, NoAnswer, SetupFailed, User
from gitguardfs.findings import Result, Row
from gitguardfs.linux import mountinfo, namespaces
from gitguardfs.linux.namespaces import MountNamespace


def check(context: Context, user: User, raw: Iterable[str], guards: tuple[int, ...]) -> Result:
    """Try every raw path, as the user, in each other namespace that he can get into."""
    row = Row(
        "share.elsewhere",
        f"{user.name} has no mount namespace that shows the raw share",
        f"{user.name} has a mount namespace that shows the raw share",
    )
    paths = sorted(raw)
    ways: list[str] = []
    unsure: list[str] = []
    spaces = [one for one in namespaces.others(context.system.processes) if is_users(one, user.uid)]
    known = {str(one.identity[1]) for one in spaces}
    for space in spaces:
        if space.identity == (0, 0):
            unsure.append(space.label)
            continue
        try:
            seen = _shown(context, user, space, paths, guards) if space.process else []
            ways += [f"{space.label} sees {place}" for place in seen]
            arguments = (space.path, space.identity, user, context.table, paths, guards)
            open_, kept = run_as.run_as(namespace_attempts.unmount_covers, *arguments)
            verb = "can take off what covers" if space.process else "leads to"
            ways += [f"{space.label} {verb} {place}" for place in open_ if place not in seen]
            unsure += [f"a mount namespace kept in that of {space.label}"] * (not known >= {*kept})
        except (FileNotFoundError, ProcessLookupError):
            if not space.process:  # a process has ended; a descriptor may have been handed on
                unsure.append(space.label)
        except (OSError, SetupFailed, NoAnswer):
            unsure.append(space.label)
    if ways:
        hint = "end it, and what else the user has running: log it out, or start the guest again"
        return row.finding(", ".join(ways), hint)
    if unsure:
        hint = "run it as root of the system itself, or end these"
        return row.unknown(f"could not be checked: {', '.join(unsure)}", hint)
    return row.ok()


def is_users(space: MountNamespace, uid: int) -> bool:
    """Whether a namespace is the user's, or may be: that is found out by entering it."""
    if space.process and uid in space.uids:
        return True
    return uid in space.makers if space.makers is not None else not space.process


def _shown(
    context: Context, user: User, space: MountNamespace, paths: list[str], guards: tuple[int, ...]
) -> list[str]:
    """Where the user gets to a raw path in the namespace, as it is."""
    table = tuple(mountinfo.listed(space.process))
    places = {
        place for path in paths for place in other_mounts.shown_in(table, context.table, path)
    }
    return [place for place in sorted(places) if _is_open(user, space, place, guards)]


def _is_open(user: User, space: MountNamespace, place: str, guards: tuple[int, ...]) -> bool:
    """Whether the user gets to ``place`` in the namespace; SetupFailed if that cannot be tried."""
    call = partial(namespace_attempts.is_open, place, guards)
    try:
        return bool(run_as.run_as(call, user=user, root=f"{space.process}/root"))
    except Hung:
        return True  # it waits for a server that it got through to
