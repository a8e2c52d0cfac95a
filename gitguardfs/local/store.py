"""The store: a directory for each guarded share, on the guest's own disk.

==================  =====  ==================================================
``<share>/lock``    0600   locked by the daemon whose view shows the directories
``<share>/view``    0600   where that view is, or was the last time
``<share>/tree/``   0700   the directories, laid out as in the share (``serving.trees``)
==================  =====  ==================================================

Only the daemon may change what is in ``tree`` while it runs: the kernel keeps for an hour what it
has seen there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shlex

from gitguardfs.base import store_directory
from gitguardfs.base.constants import HOLDER, LOCAL_STORE
from gitguardfs.base.errors import Exit, UserError

OPTION = "--local-store"
TREE = "tree"
VIEW = "view"
LOCK = "lock"
LONGEST_NAME, SHOWN = 200, 99
"""Characters of a name that is not shortened, and of the beginning of one that is; a file's name
has 255 bytes at most."""


class Opened:
    """The directories of one share, locked for this process."""

    def __init__(self, path: str, lock: int, root: int) -> None:
        """Own the descriptors ``lock``, and ``root`` of the directory ``tree``."""
        self.path = path
        self.root = root
        self._lock = lock

    def close(self) -> None:
        """Let another daemon have them."""
        os.close(self.root)
        os.close(self._lock)


def open_for(store: str | None, share: str, view: str) -> Opened:
    """Make the directory of a share if it is not there, and lock it.

    ``store`` is the value of ``--local-store``; ``share`` tells the share and the place in it.
    Raises UserError if another view has it, others can change it, or it cannot be made.
    """
    directory = os.path.join(os.path.abspath(store or LOCAL_STORE), directory_name(share))
    holder = () if store else (HOLDER,)
    try:
        for path in (*holder, os.path.dirname(directory), directory, os.path.join(directory, TREE)):
            store_directory.make(path, 0o700, OPTION)
        return _opened(directory, share, view)
    except OSError as error:
        raise UserError(
            f"cannot keep directories in {shlex.quote(directory)}: {error.strerror}",
            f"choose another {OPTION}, on a disk of the guest",
            Exit.SYSTEM,
        ) from None


def _opened(directory: str, share: str, view: str) -> Opened:
    lock = _open_file(directory, LOCK)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by a fork
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise UserError(
                f"another view of {share} keeps its own directories in {shlex.quote(directory)}",
                f"unmount it, or give one of the two its own {OPTION}",
                Exit.SYSTEM,
            ) from None
        with open(_open_file(directory, VIEW), "w") as file:
            file.truncate()
            file.write(view)
        root = os.open(os.path.join(directory, TREE), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException:
        os.close(lock)
        raise
    return Opened(directory, lock, root)


def _open_file(directory: str, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(os.path.join(directory, name), flags, 0o600)


def directory_name(share: str) -> str:
    """Return the name of a share's directory: every character but letters, digits and -_ escaped.

    Of a long one, return the beginning and a digest. So two shares never have one name.
    """
    escaped = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_")
        else "".join(f"%{byte:02x}" for byte in os.fsencode(char))
        for char in share
    )  # fmt: skip
    if len(escaped) <= LONGEST_NAME:
        return escaped
    return f"{escaped[:SHOWN]}.{hashlib.sha256(os.fsencode(share)).hexdigest()}"


def share_of(name: str) -> str:
    """Return the share whose directory has this name, or the beginning of its name."""
    return os.fsdecode(re.sub(rb"%([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), name.encode()))
