"""Other mounts that show what a guard guards: bind mounts, bindfs, a second guard."""

from __future__ import annotations

import os

from gitguardfs.accounts import user_id
from gitguardfs.doctor.context import Context, Table, holding
from gitguardfs.doctor.mount_checks import mounts_of_daemons, serving, sources_of
from gitguardfs.errors import UserError
from gitguardfs.findings import Result, Row
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards, seal
from gitguardfs.render import quote


def shown_at(root: str, path: str, wanted: str) -> str | None:
    """Where ``root``, shown at ``path``, shows ``wanted`` or something in it; None if nowhere."""
    if is_inside(wanted, root):
        return os.path.normpath(os.path.join(path, os.path.relpath(wanted, root)))
    return path if is_inside(root, wanted) else None


def is_inside(path: str, directory: str) -> bool:
    """Whether ``path`` is ``directory``, or lies in it."""
    return os.path.commonpath([path, directory]) == directory


def by_device(table: Table, source: str) -> set[str]:
    """Where else mounts of the same file system show ``source``; not what another one covers."""
    return shown_in(table, table, source) - {source}


def shown_in(other: Table, table: Table, source: str) -> set[str]:
    """Where the mounts of ``other`` show ``source`` of ``table``; not what another one covers."""
    found = parts_in(other, table, source)
    return {path for seen, path in found if holding(other, path) is seen}


def parts_in(other: Table, table: Table, source: str) -> list[tuple[MountInfo, str]]:
    """The mounts of ``other`` that have ``source`` of ``table``, and where, covered or not."""
    unsealed = tuple(seen for seen in table if seen.source != seal.NAME)
    own = holding(unsealed, source)
    wanted = shown_at(own.path, os.fsdecode(own.root), source) if own is not None else None
    if own is None or wanted is None:
        return []
    found = []
    for seen in other:
        if seen.device != own.device:
            continue
        path = shown_at(os.fsdecode(seen.root), seen.path, wanted)
        if path is not None:
            found.append((seen, path))
    return found


def raw_mounts(table: Table, source: str) -> list[MountInfo]:
    """The mounts that have ``source`` itself: without guards and seals, and all in one place."""
    covers = {seen for seen in table if seen.fstype == mountinfo.FSTYPE}
    covers |= {seen for seen in table if seen.source == seal.NAME}
    bare = tuple(seen for seen in table if seen not in covers)
    own = holding(bare, source)
    return [seen for seen in bare if own is not None and seen.path == own.path]


def by_fuse(table: Table, source: str, backing: dict[int, tuple[str, ...]]) -> dict[str, MountInfo]:
    """Where FUSE mounts show ``source``, and which; ``backing`` has the sources of each."""
    found = {}
    for seen in table:
        for root in backing.get(seen.mnt_id, ()):
            path = shown_at(root, seen.path, source)
            if path is not None and holding(table, path) is seen:
                found[path] = seen
    return found


def backing_of(context: Context) -> dict[int, tuple[str, ...]]:
    """What every FUSE mount but the one of ``context`` shows, by the mount's number."""
    return {
        seen.mnt_id: sources_of(seen, serving(seen, context.servers))
        for seen in context.table
        if seen.is_fuse and seen is not context.guard
    }


def raw(context: Context, sources: tuple[str, ...]) -> set[str]:
    """Paths at which the guarded directory can be seen without this guard, or another."""
    backing = backing_of(context)
    found: set[str] = set()
    for source in sources:
        found |= by_device(context.table, source)
        ways = by_fuse(context.table, source, backing)
        found |= {path for path, seen in ways.items() if seen.fstype != mountinfo.FSTYPE}
    return found


def other_guards(context: Context) -> list[str]:
    """Mount points of other guards that show something of the same directory."""
    if context.guard is None:
        return []
    backing = backing_of(context)
    found = {
        seen.path
        for source in sources_of(context.guard, context.daemons)
        for seen in by_fuse(context.table, source, backing).values()
        if seen.fstype == mountinfo.FSTYPE
    }
    return sorted(found - {context.mountpoint})


def not_roots(context: Context) -> Result:
    """Whether a FUSE mount of another user's is where it can bend the guard.

    Whoever has one may have it taken off, by the set-user-id program fusermount3, and race that to
    take off what is on top of it: the view, or the seal.
    """
    row = Row(
        "guard.foreign",
        f"all FUSE mounts on, in and around {context.mountpoint} and its source are root's",
        f"another user has a FUSE mount on, in or around {context.mountpoint} or its source",
    )
    sources = sources_of(context.guard, context.daemons) if context.guard is not None else ()
    places = (context.mountpoint, *(path for path in sources if path != context.mountpoint))
    table = (*context.table, *mounts_of_daemons(context.daemons))
    found = {
        f"{seen.path} is mounted by uid {seen.owner} ({where} {place})": seen
        for seen in table
        if seen.owner not in (None, 0) and seen != context.guard
        for place in places
        if (where := _relation(seen.path, place)) is not None
        and not (place in sources and seen.owner == _trusted_owner(context))
    }
    if found:
        places = tuple(dict.fromkeys(seen.path for seen in found.values()))
        hint = f"stop the guard, {quote.shell(['umount', *places])}, and start it again"
        return row.finding(", ".join(found), hint)
    return row.ok()


def _trusted_owner(context: Context) -> int | None:
    """Return whose file system the source may be in (--source-owner): never the agent's own."""
    key = "source-owner="
    options = (guards.options_of(context.guard) if context.guard is not None else None) or ()
    try:
        named = [user_id(option.removeprefix(key)) for option in options if option.startswith(key)]
    except UserError:
        return None
    owner = named[-1] if named else None
    return owner if context.user is not None and owner != context.user.uid else None


def _relation(path: str, place: str) -> str | None:
    """Where a mount is, seen from ``place``; None if it has nothing to do with it."""
    if path == place:
        return "on"
    if is_inside(path, place):
        return "in"
    return "around" if is_inside(place, path) else None


def within(context: Context) -> list[Result]:
    """A note about what is mounted inside of the view: the guard does not serve it."""
    below = os.path.join(context.mountpoint, "")
    found = [
        f"{seen.path} ({seen.fstype})"
        for seen in context.table
        if seen.path.startswith(below) and seen.fstype != mountinfo.FSTYPE
    ]
    if context.guard is None or not found:
        return []
    row = Row("guard.within", "", f"something else is mounted in {context.mountpoint}")
    hint = "unmount it, unless it is meant to be there"
    return [row.note(f"not guarded: {', '.join(found)}", hint, row.failed)]
