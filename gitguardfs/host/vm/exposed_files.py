"""Finds files of a project whose names look like secrets, to offer --hide. Reads names only."""

from __future__ import annotations

import fnmatch
import itertools
import os
from contextlib import suppress

from gitguardfs.base import quote, secret_names
from gitguardfs.base.errors import ascii_shown, shown, warn
from gitguardfs.host.share import directory

KEY_PLACES = frozenset(name for name in directory.SECRETS if "/" not in name)
"""Names of files and directories in which programs keep keys."""
SKIPPED_DIRECTORIES = secret_names.DEPENDENCIES | {".git", "venv", "target", "__pycache__"}
MAX_ENTRIES = 50_000
"""Entries that are searched at most, since `vm up` waits for the search."""
MAX_LISTED = 5
"""Files, and patterns, that the warning names at most."""
MAX_NAME = 40
"""Characters of a name in an option."""
_WIDTH = 74
"""Columns of a row: in a terminal that has more, no row breaks where the agent wants it to."""


def found(project: str, hidden: tuple[str, ...] = ()) -> list[str]:
    """Return the paths, relative to ``project``, that look like secrets and are not hidden.

    Warns if the project has more than MAX_ENTRIES entries.
    """
    seen = 0
    paths = []
    left = [project]  # os.walk() of Python 3.11 calls itself, and fails in a deep tree
    while left and seen <= MAX_ENTRIES:
        with suppress(OSError), os.scandir(left.pop()) as listing:
            for entry in itertools.islice(listing, MAX_ENTRIES + 1 - seen):
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
    """Return a warning with the first of the files, one a row, and options that hide files.

    The agent chooses the names, and how many there are.
    """
    more = f"  and {len(paths) - MAX_LISTED} more\n" if len(paths) > MAX_LISTED else ""
    listed = "".join(f"  {_cut(path)}\n" for path in paths[:MAX_LISTED])
    patterns = sorted({_pattern(os.path.basename(path)) for path in paths})
    options = [word for pattern in patterns[:MAX_LISTED] for word in ("--hide", pattern)]
    some = "" if len(patterns) <= MAX_LISTED else " some of"
    command = quote.shell_lines(["gitguard", "vm", "up", *options], _WIDTH)
    return f"warning: the agent can read\n{listed}{more}to hide{some} them:\n{command}"


def _pattern(name: str) -> str:
    """Return a pattern that hides a file, which fits into a row and has no character that acts."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix and looks_secret(f"x{suffix}"):
        return f"*{suffix}"
    plain = "".join(c if c.isascii() and c.isprintable() and c not in ",\\" else "?" for c in name)
    plain = plain.replace("  ", "??")
    return (
        plain if len(plain) <= MAX_NAME else f"{plain[: MAX_NAME // 2]}*{plain[-MAX_NAME // 2 :]}"
    )


def _cut(path: str) -> str:
    """Return a path for one row of a terminal; of a long one the end."""
    text = ascii_shown(path)
    return text if len(text) <= _WIDTH else f"...{text[3 - _WIDTH :]}"
