"""Finds files of a project whose names look like secrets, to offer --hide. Reads names only."""

from __future__ import annotations

import fnmatch
import os
from contextlib import suppress

from gitguardfs import secret_names
from gitguardfs.errors import shown, warn
from gitguardfs.host import directory
from gitguardfs.render import quote

KEY_PLACES = frozenset(name for name in directory.SECRETS if "/" not in name)
"""Names of files and directories in which programs keep keys."""
SKIPPED_DIRECTORIES = secret_names.DEPENDENCIES | {".git", "venv", "target", "__pycache__"}
MAX_ENTRIES = 50_000
"""Entries that are searched at most, since `vm up` waits for the search."""
MAX_LISTED = 5
"""Files that the warning names at most."""


def found(project: str, hidden: tuple[str, ...] = ()) -> list[str]:
    """Return the paths, relative to ``project``, that look like secrets and are not hidden.

    Warns if the project has more than MAX_ENTRIES entries.
    """
    seen = 0
    paths = []
    left = [project]  # os.walk() of Python 3.11 calls itself, and fails in a deep tree
    while left and seen <= MAX_ENTRIES:
        with suppress(OSError), os.scandir(left.pop()) as listing:
            for entry in listing:
                seen += 1
                if is_hidden(entry.name, hidden):
                    continue
                if looks_secret(entry.name):
                    paths.append(os.path.relpath(entry.path, project))
                if entry.name not in SKIPPED_DIRECTORIES and entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
    if seen > MAX_ENTRIES:
        warn(f"searched only {seen} entries of {shown(project)} for secrets")
    return sorted(paths)


def looks_secret(name: str) -> bool:
    """Return whether a file or directory with this name usually holds a secret."""
    return name.lower() in KEY_PLACES or secret_names.is_usually_secret(name)


def is_hidden(name: str, hidden: tuple[str, ...]) -> bool:
    """Return whether a pattern of ``--hide`` matches this name."""
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in hidden)


def warning(paths: list[str]) -> str:
    """Return a warning with the files and the options that hide them."""
    names = sorted({os.path.basename(path) for path in paths})
    options = [word for name in names for word in ("--hide", name)]
    more = f" and {len(paths) - MAX_LISTED} more" if len(paths) > MAX_LISTED else ""
    listed = ", ".join(shown(path) for path in paths[:MAX_LISTED])
    return (
        f"warning: the agent can read {listed}{more}; to hide them:\n"
        f"  gitguard vm up {shown(quote.shell(options))}"
    )
