"""Makes a directory in which root, or a user, keeps what no other user may replace.

Removes trees from it, too.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import time
from contextlib import suppress
from stat import S_ISDIR, S_ISVTX
from threading import Thread

from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.base.errors import Exit, UserError

REMOVE_SECONDS = 30.0
"""How long a tree may take to remove: the agent may have a file system in it that hangs."""
_GONE = ".gone-"
"""In the name of what is being removed."""
_TRIES = 5
"""How often a tree is removed, while processes of the agent still write into it."""


def make(path: str, mode: int, option: str) -> None:
    """Make a directory with this mode, and those above it, if it is not there.

    ``option`` is the one that names another. Raises UserError if another user can change or
    replace the directory, OSError.
    """
    _make_parents(os.path.dirname(path))
    with suppress(FileExistsError):
        make_directory(path, mode)
    st = os.lstat(path)
    if not S_ISDIR(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o022:
        raise UserError(
            f"{path} is not a directory that its owner alone can change",
            f"chmod go-w {shlex.quote(path)}, or choose another {option}",
            Exit.SYSTEM,
        )
    _check_above(path, option)


def _check_above(path: str, option: str) -> None:
    """Raise UserError if another user can put something else in the place of root's directory."""
    above = os.path.realpath(path)
    while os.geteuid() == 0 and above != "/":
        above = os.path.dirname(above)
        st = os.stat(above)
        if st.st_uid != 0 or (st.st_mode & 0o022 and not st.st_mode & S_ISVTX):
            raise UserError(
                f"others can replace {path}, since they can change {above}",
                f"choose another {option}, in a directory that root alone can change",
                Exit.SYSTEM,
            )


def _make_parents(path: str) -> None:
    """Make the directories above, which only their owner may change."""
    if not os.path.isdir(path):
        _make_parents(os.path.dirname(path))
        with suppress(FileExistsError):
            make_directory(path, 0o755 if os.geteuid() == 0 else 0o700)


def make_directory(path: str, mode: int) -> None:
    """Make a directory with this mode, whatever the umask is. Raises OSError."""
    os.mkdir(path, mode & 0o755)
    os.chmod(path, mode)


def name_of_gone(name: str) -> str:
    """Return a new name for a tree that is to be removed, by which ``is_gone`` knows it."""
    return f"{name}{_GONE}{secrets.token_hex(4)}"


def is_gone(name: str) -> bool:
    """Return whether a name is that of a tree whose removal has begun."""
    return _GONE in name


def remove_tree(path: str, limit: float = REMOVE_SECONDS) -> None:
    """Delete a tree, if it is there, of which processes of another user may have a part open.

    It is renamed first: nobody meets half of it. Symlinks in it are never followed, and nothing
    that is mounted in it is touched; what cannot be deleted in ``limit`` seconds stays under that
    name. Raises OSError.
    """
    deadline = time.monotonic() + limit
    gone = path
    if not is_gone(os.path.basename(path)):
        gone = name_of_gone(path)
        try:
            os.rename(path, gone)
        except FileNotFoundError:
            return
    for _ in range(_TRIES):
        if not os.path.lexists(gone):
            return
        process = subprocess.Popen(  # of any depth; processes of the agent may still write into it
            ("rm", "-rf", "--one-file-system", "--", gone), env={"PATH": SYSTEM_PATH},
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # which does not end a call that a FUSE has taken
            Thread(target=process.wait, daemon=True).start()
            return
