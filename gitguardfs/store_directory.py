"""Makes a directory in which root, or a user, keeps what no other user may replace."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from stat import S_ISDIR, S_ISVTX

from gitguardfs.errors import Exit, UserError


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
