"""Checks that symlinks which lead out of their work tree lead nowhere on the host.

The guard stores such a symlink with another text than it shows, and does not let one be moved to
where it would lead out. So the check makes and moves some through the view, as the agent's user,
and looks at them in the guard's source, as root. Below a seal root sees no source; the row says so.
"""

from __future__ import annotations

import os
from contextlib import suppress
from errno import EXDEV

from gitguardfs.base.errors import UserError, shown
from gitguardfs.base.findings import Result, Row, Severity
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.mount_checks import sources_of
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, User
from gitguardfs.linux.safe_open import open_directory

OUTSIDE = "etc"
"""A directory in the root directory of every system: a symlink to it leads somewhere."""
TEXTS = {"absolute": f"/{OUTSIDE}", "upward": f"{'../' * 64}{OUTSIDE}"}
"""Names of symlinks, and their texts; 64 is more levels than trees have."""
RAW = "mount it without -o links=raw, unless programs of the host need such symlinks"


def check_option(context: Context) -> list[Result]:
    """Check whether symlinks are stored as given, as far as the daemon's arguments are known."""
    row = Row(
        "guard.links",
        f"no symlink that is made in {context.mountpoint} leads out on the host",
        f"symlinks that are made in {context.mountpoint} are stored as given",
    )
    if context.options is None or context.option("git") == "off":
        return []
    if context.option("links") == "raw":
        why = "links=raw: git and other programs of the host write where they lead"
        return [row.finding(why, RAW, Severity.MEDIUM)]
    return [row.ok()]


def check(context: Context, user: User, workdir: str) -> Result:
    """Make symlinks in the new directory ``workdir`` of the view, and look where they lead."""
    row = Row(
        "attack.G6",
        "symlinks that lead out of their work tree lead nowhere on the host",
        "symlinks lead out of their work tree on the host",
    )
    inner = os.path.relpath(workdir, context.mountpoint)
    try:
        was_moved, texts = run_as.run_as(_make, workdir, len(inner.split("/")) + 1, user=user)
    except (NoAnswer, OSError) as error:
        return row.unknown(f"could not be checked: {error}", "run this again")
    changed = [
        f"{text} reads as {shown(texts[name])}"
        for name, text in TEXTS.items()
        if texts[name] != text
    ]
    if changed:
        hint = "mount the guard again; if this stays, report it"
        return row.finding(f"their texts change: {', '.join(changed)}", hint, Severity.MEDIUM)
    stored = _look(context, inner)
    leading = [f"{TEXTS[name]} is stored as {shown(text)}" for name, text in (stored or {}).items()]
    if was_moved:
        leading.append("one can be moved to where it leads out of the view")
    if leading:
        return row.finding(", ".join(leading), RAW)
    if stored is None:
        why = "the source is sealed" if context.is_root else "only root could look at the source"
        return row.ok(f"by what can be moved; {why}, so what is stored was not seen")
    return row.ok("seen in the source")


def _make(workdir: str, levels: int) -> tuple[bool, dict[str, str]]:
    """Make symlinks; return whether one can be moved so that it leads out, and how others read."""
    os.mkdir(workdir, 0o755)
    for name, text in TEXTS.items():
        os.symlink(text, os.path.join(workdir, name))
    inner = os.path.join(workdir, *["d"] * levels)
    os.makedirs(inner)
    os.symlink(f"{'../' * levels}x", os.path.join(inner, "inner"))
    try:
        os.rename(os.path.join(inner, "inner"), os.path.join(workdir, "inner"))
        was_moved = True
    except OSError as error:
        if error.errno != EXDEV:
            raise
        was_moved = False
    return was_moved, {name: os.readlink(os.path.join(workdir, name)) for name in TEXTS}


def _look(context: Context, inner: str) -> dict[str, str] | None:
    """Return the stored texts of the symlinks that lead somewhere; None if none can be seen."""
    guard = context.guard
    if guard is None or not context.is_root:
        return None
    for source in sources_of(guard, context.daemons):
        with suppress(OSError, UserError):
            directory = open_directory(os.path.join(source, inner), context.is_root)
            try:
                if os.fstat(directory).st_dev == guard.st_dev:
                    continue  # the view covers it
                stored = {name: os.readlink(name, dir_fd=directory) for name in TEXTS}
                return {name: text for name, text in stored.items() if _leads(directory, name)}
            finally:
                os.close(directory)
    return None


def _leads(directory: int, name: str) -> bool:
    """Return whether a symlink leads to something. Raises OSError if that is unknown."""
    try:
        os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True
