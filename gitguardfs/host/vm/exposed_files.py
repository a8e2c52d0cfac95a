"""Finds files of a project whose names look like secrets: which are hidden, and which are not.

Reads names only.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from gitguardfs.base import quote, secret_names
from gitguardfs.base.errors import ascii_shown, shown, warn
from gitguardfs.host.share import directory
from gitguardfs.host.vm import tracked_files
from gitguardfs.host.vm.settings import Settings

KEY_PLACES = frozenset(name for name in directory.SECRETS if "/" not in name)
"""Names of files and directories in which programs keep keys."""
SKIPPED_DIRECTORIES = secret_names.DEPENDENCIES | {".git", "venv", "target", "__pycache__"}
MAX_ENTRIES = 50_000
"""Entries that are searched at most, since `vm up` waits for the search."""
MAX_LISTED = 5
"""Files, and patterns, that the warning names at most."""
MAX_NAME = 40
"""Characters of a name in an option of a message."""
_WIDTH = 74
"""Columns of a row: in a terminal that has more, no row breaks where the agent wants it to."""


class Found(NamedTuple):
    """The files of a project that look like secrets."""

    paths: list[str]
    """Relative to the project."""
    repositories: list[str]
    """Absolute paths of directories with a ``.git``."""


def at_start(settings: Settings, is_first: bool) -> tuple[tuple[str, ...], list[str]]:
    """Return the names to show too from now on, and the texts to tell the user before a start.

    ``is_first``: no start has hidden secrets yet. Names that git tracks then are shown, since the
    agent's git would call such files deleted. Later the user alone decides: the agent's commits can
    name any path. Raises UserError.
    """
    by_user = dataclasses.replace(settings, hide_secrets=False)
    by_default = dataclasses.replace(settings, hide=(), hide_secrets=True, show=())
    paths: dict[str, str] = {}  # each with its path in its share
    tracked: dict[str, str] = {}
    for share in settings.shares:
        below, repositories = found(share.directory, by_user.hides)
        named = tracked_files.hidden(share.directory, repositories, by_default.hides)
        begin = "" if share.directory == settings.project else f"{share.directory}/"
        paths |= {begin + path: path for path in below}
        tracked |= {begin + path: name for path, name in named.items()}
    deleted = {
        path: name
        for path, name in tracked.items()
        if settings.hides(name) and not by_user.hides(name)
    }
    names: tuple[str, ...] = ()
    if is_first:
        names = tuple(sorted({exact(name) for name in deleted.values()}))
        settings = dataclasses.replace(settings, show=(*settings.show, *names))
        deleted = {}
    hidden: list[str] = []
    exposed: list[str] = []
    for path, own in paths.items():
        (hidden if any(map(settings.hides, own.split("/"))) else exposed).append(path)
    said = []
    if exposed:
        said.append(warning(exposed, has_tracked=not tracked.keys().isdisjoint(exposed)))
    if is_first and settings.hide_secrets and (hidden or not settings.show):
        said.append(hidden_text(hidden))
    if deleted:
        said.append(deleted_text(deleted))
    return names, said


def found(project: str, is_skipped: Callable[[str], bool] = lambda _: False) -> Found:
    """Return the files and directories that look like secrets, but for skipped ones.

    Warns if the project has more than MAX_ENTRIES entries.
    """
    seen = 0
    paths, repositories = [], []
    left = [project]  # os.walk() of Python 3.11 calls itself, and fails in a deep tree
    while left and seen <= MAX_ENTRIES:
        above = left.pop()
        with suppress(OSError), os.scandir(above) as listing:
            for entry in itertools.islice(listing, MAX_ENTRIES + 1 - seen):
                seen += 1
                if is_skipped(entry.name):
                    continue
                if entry.name == ".git":
                    repositories.append(above)
                if looks_secret(entry.name):
                    paths.append(os.path.relpath(entry.path, project))
                if entry.name not in SKIPPED_DIRECTORIES and entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
    if seen > MAX_ENTRIES:
        warn(f"searched only {seen} entries of {shown(project)} for secrets")
    return Found(sorted(paths), sorted(repositories))


def looks_secret(name: str) -> bool:
    """Return whether a file or directory with this name usually holds a secret."""
    return name.lower() in KEY_PLACES or secret_names.is_usually_secret(name)


def warning(paths: Collection[str], has_tracked: bool = False) -> str:
    """Return a warning of files that the agent can read, and options that hide them.

    ``has_tracked`` says that git tracks some of them.
    """
    patterns = {_pattern(os.path.basename(path)) for path in paths}
    tracked = "git tracks some of them; hidden, these look deleted to the agent's git\n"
    rows = _rows(paths) + tracked * has_tracked
    return f"warning: the agent can read\n{rows}{_advice('hide', patterns)}"


def hidden_text(paths: Collection[str]) -> str:
    """Return the first start's text about the files that are hidden by default."""
    begin = "hidden from the agent: environment files and keys (.env, id_rsa, *.p12 ...)"
    name = _plain(os.path.basename(next(iter(paths), ".env")))
    show = quote.shell(["gitguard", "vm", "up", "--show", name])
    return f"{begin}\n{_rows(paths)}to show a name, from the next start on: {show}"


def deleted_text(hidden: dict[str, str]) -> str:
    """Return a warning of tracked paths that are hidden, by the component that is hidden."""
    begin = "warning: hidden from the agent, whose git takes these tracked files for deleted"
    return f"{begin}\n{_rows(hidden)}{_advice('show', set(map(_plain, hidden.values())))}"


def _rows(paths: Collection[str]) -> str:
    """Return the first of the paths, one a row. The agent can choose them, and how many."""
    rows = "".join(f"  {_cut(path)}\n" for path in itertools.islice(paths, MAX_LISTED))
    return rows + (f"  and {len(paths) - MAX_LISTED} more\n" if len(paths) > MAX_LISTED else "")


def _advice(option: str, patterns: Collection[str]) -> str:
    first = sorted(patterns)[:MAX_LISTED]
    options = [word for pattern in first for word in (f"--{option}", pattern)]
    some = "" if len(first) == len(patterns) else " some of"
    command = quote.shell_lines(["gitguard", "vm", "up", *options], _WIDTH)
    return f"to {option}{some} them:\n{command}"


def exact(name: str) -> str:
    """Return the narrowest pattern for a name that an option can carry."""
    return "".join(c if c.isprintable() and c not in ",\\" else "?" for c in glob.escape(name))


def _pattern(name: str) -> str:
    """Return a pattern that hides a file, which fits into a row and has no character that acts."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix and looks_secret(f"x{suffix}"):
        return f"*{suffix}"
    return _plain(name)


def _plain(name: str) -> str:
    """Return a pattern for files of exactly this name, which fits into a row and has no character
    that acts.
    """
    plain = "".join(c if c.isascii() and c.isprintable() and c not in ",\\" else "?" for c in name)
    plain = plain.replace("  ", "??")
    return (
        plain if len(plain) <= MAX_NAME else f"{plain[: MAX_NAME // 2]}*{plain[-MAX_NAME // 2 :]}"
    )


def _cut(path: str) -> str:
    """Return a path for one row of a terminal; of a long one the end."""
    text = ascii_shown(path)
    return text if len(text) <= _WIDTH else f"...{text[3 - _WIDTH :]}"
