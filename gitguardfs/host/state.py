"""Where ``gitguard`` keeps what it writes for later starts: a directory of the user's own."""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_ISDIR

from gitguardfs.errors import Exit, UserError


def directory(*below: str) -> str:
    """Return the path of the directory (XDG Base Directory Specification); it need not exist."""
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local/share")
    return os.path.join(os.path.realpath(base), "gitguardfs", *below)


def made(path: str) -> str:
    """Make ``path``, which is `directory` or lies below it, and return it.

    Raises UserError unless every directory down to it is this user's alone to change: the next
    start of a machine obeys what lies in it, with the user's rights.
    """
    step = directory()
    os.makedirs(os.path.dirname(step), exist_ok=True)
    for name in ("", *os.path.relpath(path, step).split("/")):
        step = os.path.normpath(os.path.join(step, name))
        with suppress(FileExistsError):
            os.mkdir(step, 0o700)
        st = os.lstat(step)
        if not S_ISDIR(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o022:
            raise UserError(
                f"{step} is not a directory that you alone can change",
                f"chmod go-w {step}, or move it away",
                Exit.SYSTEM,
            )
    return path


def check_apart(path: str, project: str) -> None:
    """Raise UserError if ``path`` lies in the project: the agent could change what is started."""
    real = os.path.realpath(path)
    if os.path.commonpath([real, project]) == project:
        raise UserError(
            f"{path} would lie in the shared project {project}",
            "the agent could change what the host starts: choose a place outside of it",
        )
