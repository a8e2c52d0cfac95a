"""Directories that a run makes and a later one removes, if the first was killed.

Each is locked while its run is alive, so that runs beside each other keep their own. Standard
library only: what is called before anything is installed imports this.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def directory(prefix: str, place: str | Path) -> Iterator[Path]:
    """Make a directory, remove it at the end, and first remove what killed runs have left.

    The name begins with ``prefix``, which is used in ``place`` for such directories alone.
    """
    remove_stale(prefix, place)
    path, lock = _make(prefix, place)
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def remove_stale(prefix: str, place: str | Path) -> None:
    """Remove the directories that no live process holds, but none of another user's."""
    for path in Path(place).glob(f"{prefix}*"):
        remove_unless_held(path)


def remove_unless_held(path: Path) -> None:
    """Remove a directory of this user's, unless a live process holds it."""
    with suppress(OSError):  # a symlink, no directory, or another run has removed it
        lock = _open(path)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
        finally:
            os.close(lock)


def hold(path: Path) -> int:
    """Lock a directory against removal, until the descriptor that is returned is closed.

    Raises FileNotFoundError if it was removed meanwhile.
    """
    lock = _open(path)
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        there = path.lstat()
        if (there.st_dev, there.st_ino) == (os.fstat(lock).st_dev, os.fstat(lock).st_ino):
            return lock
    except FileNotFoundError:
        pass
    os.close(lock)
    raise FileNotFoundError(f"removed by another run: {path}")


def _make(prefix: str, place: str | Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with suppress(FileNotFoundError):  # another run removed it before it was locked
            return path, hold(path)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove(path: Path) -> None:
    subprocess.run(["chattr", "-R", "-f", "-i", "-a", path], capture_output=True, check=False)
    shutil.rmtree(path, ignore_errors=True)
