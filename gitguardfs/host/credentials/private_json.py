"""JSON files that only the user may read, each replaced whole and never through a symlink."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.options import config_files

MAX_BYTES = 16 << 20
"""The longest file that is read: the proxy reads one at every request."""


def state_directory() -> Path:
    """Return the user's directory of secret values, and of the states of the VMs.

    No project can hold it, since none may hold the states.
    """
    import platformdirs

    return Path(platformdirs.user_state_dir("gitguardfs", appauthor=False))


def read(path: Path) -> bytes | None:
    """Return the content; None if there is no file. Raises UserError, OSError."""
    unusable = UserError(
        f"{shown(str(path))} is not a regular file of yours", "move it away", Exit.SYSTEM
    )
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a symlink
            raise unusable from None
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(fd)
        raise unusable
    with open(fd, "rb") as file:
        os.fchmod(fd, 0o600)
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{shown(str(path))} is longer than 16 MiB", "move it away", Exit.SYSTEM)
    return content


def write(path: Path, before: bytes | None, value: Any) -> None:
    """Replace the content ``before`` by a value; delete the file if the value is empty.

    Raises UserError if the content is another by now, OSError.
    """
    after = json.dumps(value, indent=1).encode() + b"\n" if value else None
    config_files.write(config_files.FileChange(str(path), before, after, 0o600))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let no other process change a file meanwhile; delete what killed ones have left of it.

    Makes the directory if it is missing. Raises UserError, OSError.
    """
    config_files.make_private_directory(path.parent)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for left in path.parent.glob(f".{path.name}.*"):
            left.unlink()
        yield
    finally:
        os.close(fd)
