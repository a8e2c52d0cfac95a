"""Finds other mounts that show the guarded directory: bind mounts, bindfs, a second guard."""

from __future__ import annotations

import os

from gitguardfs.base import quote
from gitguardfs.base.constants import FSTYPE
from gitguardfs.base.errors import UserError
from gitguardfs.base.findings import Result, Row
from gitguardfs.base.paths import is_inside
from gitguardfs.doctor.context import Context, Table, holding
from gitguardfs.doctor.mount_checks import mounts_of_daemons, serving, sources_of
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards, seal
from gitguardfs.options.accounts import user_id


def shown_at(root: str, path: str, wanted: str) -> str | None:
    """Return where a mount of ``root`` at ``path`` shows ``wanted`` or a part of it; else None."""
    if is_inside(wanted, root):
        return os.path.normpath(os.path.join(path, os.path.relpath(wanted, root)))
    return path if is_inside(root, wanted) else None


def by_device(table: Table, source: str) -> set[str]:
    """Return the other paths at which uncovered mounts of the same device show ``source``."""
    unsealed = tuple(seen for seen in table if seen.source != seal.NAME)
    own = holding(unsealed, source)
    wanted = shown_at(own.path, os.fsdecode(own.root), source) if own is not None else None
    if own is None or wanted is None:
        return set()
    found = set()
    for seen in table:
        path = shown_at(os.fsdecode(seen.root), seen.path, wanted)
        if seen.device == own.device and path is not None and holding(table, path) is seen:
            found.add(path)
    return found - {source}


def by_fuse(
    table: Table, source: str, by_mount: dict[int, tuple[str, ...]]
) -> dict[str, MountInfo]:
    """Return the FUSE mounts that show ``source``, by path. ``by_mount``: sources by mnt_id."""
    found = {}
    for seen in table:
        for root in by_mount.get(seen.mnt_id, ()):
            path = shown_at(root, seen.path, source)
            if path is not None and holding(table, path) is seen:
                found[path] = seen
    return found


def sources_by_mount(context: Context) -> dict[int, tuple[str, ...]]:
    """Return the sources of every FUSE mount but the guard of ``context``, by mnt_id."""
    return {
        seen.mnt_id: sources_of(seen, serving(seen, context.servers))
        for seen in context.table
        if seen.is_fuse and seen is not context.guard
    }


def unguarded_paths(context: Context, sources: tuple[str, ...]) -> set[str]:
    """Return the paths at which the guarded directory is visible without any guard."""
    by_mount = sources_by_mount(context)
    found: set[str] = set()
    for source in sources:
        found |= by_device(context.table, source)
        mounts = by_fuse(context.table, source, by_mount)
        found |= {path for path, seen in mounts.items() if seen.fstype != FSTYPE}
    return found


def other_guards(context: Context) -> list[str]:
    """Return the mount points of other guards that show a part of the same directory."""
    if context.guard is None:
        return []
    by_mount = sources_by_mount(context)
    found = {
        seen.path
        for source in sources_of(context.guard, context.daemons)
        for seen in by_fuse(context.table, source, by_mount).values()
        if seen.fstype == FSTYPE
    }
    return sorted(found - {context.mountpoint})


def check_foreign(context: Context) -> Result:
    """Check that no ordinary user has a FUSE mount on, in or around the view or its source.

    A user may unmount their own FUSE mount by fusermount3, which runs as root. By a race they
    could have it unmount what is on top instead: the view, or the seal.
    """
    row = Row(
        "guard.foreign",
        f"all FUSE mounts on, in and around {context.mountpoint} and its source are root's",
        f"another user has a FUSE mount on, in or around {context.mountpoint} or its source",
    )
    sources = sources_of(context.guard, context.daemons) if context.guard is not None else ()
    guarded = (context.mountpoint, *(it for it in sources if it != context.mountpoint))
    table = (*context.table, *mounts_of_daemons(context.daemons))
    found = {
        f"{seen.path} is mounted by uid {seen.owner} ({where} {path})": seen
        for seen in table
        if seen.owner not in (None, 0) and seen != context.guard
        for path in guarded
        if (where := _relation(seen.path, path)) is not None
        and not (path in sources and seen.owner == _trusted_owner(context))
    }
    if found:
        mounted = tuple(dict.fromkeys(seen.path for seen in found.values()))
        hint = f"stop the guard, then {quote.shell(['umount', *mounted])}, then start the guard"
        return row.finding(", ".join(found), hint)
    return row.ok()


def _trusted_owner(context: Context) -> int | None:
    """Return the uid of --source-owner; None if it is not given, or is the agent's user."""
    key = "source-owner="
    options = (guards.options_of(context.guard) if context.guard is not None else None) or ()
    try:
        named = [user_id(option.removeprefix(key)) for option in options if option.startswith(key)]
    except UserError:
        return None
    owner = named[-1] if named else None
    return owner if context.user is not None and owner != context.user.uid else None


def _relation(path: str, guarded: str) -> str | None:
    """Return where the mount at ``path`` is relative to ``guarded``: on, in, around or None."""
    if path == guarded:
        return "on"
    if is_inside(path, guarded):
        return "in"
    return "around" if is_inside(guarded, path) else None


def note_mounts_inside(context: Context) -> list[Result]:
    """Return a note on mounts inside the view, which the guard does not serve."""
    below = os.path.join(context.mountpoint, "")
    found = [
        f"{seen.path} ({seen.fstype})"
        for seen in context.table
        if seen.path.startswith(below) and seen.fstype != FSTYPE
    ]
    if context.guard is None or not found:
        return []
    row = Row("guard.within", "", f"something else is mounted in {context.mountpoint}")
    hint = "unmount it, unless it is meant to be there"
    return [row.note(f"not guarded: {', '.join(found)}", hint, row.failed)]
