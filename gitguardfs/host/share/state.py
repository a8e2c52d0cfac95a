"""The user's own directory for files that later starts of a machine read."""

from __future__ import annotations

import os

from gitguardfs.base import store_directory
from gitguardfs.base.errors import UserError
from gitguardfs.base.paths import is_inside


def directory(*below: str) -> str:
    """Return a path in that directory (XDG Base Directory Specification); it need not exist."""
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local/share")
    return os.path.join(os.path.realpath(base), "gitguardfs", *below)


def make_directory(path: str) -> None:
    """Make ``path``, which is `directory` or lies below it.

    Raises UserError if another user can change a directory on the way: the next start of a machine
    uses the files in it, with this user's rights. Raises OSError.
    """
    step = directory()
    for name in ("", *os.path.relpath(path, step).split("/")):
        step = os.path.normpath(os.path.join(step, name))
        store_directory.make(step, 0o700, "XDG_DATA_HOME")


def check_apart(path: str, project: str) -> None:
    """Raise UserError if ``path`` is in the project, where the agent could change it."""
    real = os.path.realpath(path)
    if is_inside(real, project):
        raise UserError(
            f"{path} would lie in the shared project {project}",
            "the agent could change what the host starts: choose a path outside of it",
        )
