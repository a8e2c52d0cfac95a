"""Status files of a user's running watchers; each watcher holds its own locked."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import Any

import platformdirs

from gitguardfs.base.errors import shown
from gitguardfs.options.config_files import make_private_directory


def directory() -> str:
    """Return the path of the directory of these files, which need not exist."""
    return os.path.join(platformdirs.user_state_dir("gitguardfs", appauthor=False), "watch")


class StatusFile:
    """The file of this process."""

    def __init__(self) -> None:
        """Make and lock it. Raises OSError, UserError."""
        make_private_directory(os.path.dirname(directory()))
        make_private_directory(directory())
        self._path = os.path.join(directory(), f"{os.getpid()}.json")
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # of an ended process with the same number
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._written: object = None

    def write(self, status: dict[str, object]) -> None:
        """Write the status, if it is not the one that was written last."""
        if status != self._written:
            self._written = status
            data = json.dumps(status).encode()
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, data, 0)

    def close(self) -> None:
        """Remove it."""
        with suppress(OSError):
            os.unlink(self._path)
        os.close(self._fd)


def running() -> list[dict[str, Any]]:
    """Return the status of each running watcher of this user, and remove files of ended ones."""
    found = []
    names = sorted(os.listdir(directory())) if os.path.isdir(directory()) else []
    for name in names:
        path = os.path.join(directory(), name)
        with suppress(OSError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                with suppress(ValueError):  # it is being written: the next look finds it
                    found.append(json.loads(file.read()))
            else:
                os.unlink(path)
    return found


def as_text(found: list[dict[str, Any]], now: float) -> str:
    """Return a paragraph for each watcher."""
    rows = []
    for each in found:
        read = "somebody reads" if each["read"] else "nobody reads"
        rows.append(f"process {each['pid']}, to {shown(each['to'])}: {read}")
        for tree in each["directories"]:
            last = tree["last_change"]
            changed = "no change yet" if last is None else f"last change {now - last:.0f} s ago"
            whole = "all of it" if tree["whole"] else f"not all: {shown(tree['why'])}"
            rows.append(f"  {shown(tree['path'])}: {whole}, {changed}, watches: {tree['watched']}")
    return "\n".join(rows)
