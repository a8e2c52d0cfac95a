"""The lock for changing a VM's allowlist, and for deleting the VM meanwhile.

The file is as old as the VM: if its path leads to another one, the VM was deleted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gitguardfs.base.errors import Exit, UserError

FILE = "allowlist.lock"


class AllowlistLock:
    """The lock of the VM with this state directory, which is never made here.

    Raises UserError if there is none, OSError.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            raise _deleted() from None

    def check_not_deleted(self) -> None:
        """Raise UserError if the VM was deleted."""
        try:
            is_same = os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise _deleted()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises UserError if the VM was deleted, OSError."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            self.check_not_deleted()
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@contextmanager
def held(state_dir: Path) -> Iterator[None]:
    """Hold the lock of a VM. Raises UserError if the VM was deleted, OSError."""
    with closing(AllowlistLock(state_dir)) as lock, lock.held():
        yield


def _deleted() -> UserError:
    return UserError("the VM was deleted", "gitguard vm up makes another one", Exit.SYSTEM)
