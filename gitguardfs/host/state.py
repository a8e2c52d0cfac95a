"""Where ``gitguard`` keeps what it writes for later starts: a directory of the user's own."""

from __future__ import annotations

import os

from gitguardfs.errors import Exit, UserError


def directory(*below: str) -> str:
    """Return the path of the directory (XDG Base Directory Specification); it need not exist."""
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local/share")
    return os.path.join(os.path.realpath(base), "gitguardfs", *below)


def made(path: str) -> str:
    """Make the directory ``path`` and return it. Raises UserError unless it is this user's alone.

    The next start of a machine obeys what lies in it, with the user's rights.
    """
    os.makedirs(path, 0o700, exist_ok=True)
    st = os.stat(path)
    if st.st_uid != os.geteuid() or st.st_mode & 0o022:
        raise UserError(f"{path} can be changed by others", f"chmod 700 {path}", Exit.SYSTEM)
    return path


def check_apart(path: str, project: str) -> None:
    """Raise UserError if ``path`` lies in the project: the agent could change what is started."""
    real = os.path.realpath(path)
    if os.path.commonpath([real, project]) == project:
        raise UserError(
            f"{path} would lie in the shared project {project}",
            "the agent could change what the host starts: choose a place outside of it",
        )
