"""Tells whether a directory in a FUSE file system without a daemon still leads anywhere."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Self

from gitguardfs.base.constants import DEAD
from gitguardfs.linux import mountinfo, syscalls

_PAUSE = 0.05


class OldViews:
    """The FUSE file systems of root's without a daemon, as one search meets them.

    Nothing can be reached from a directory of theirs, and that holds for good. Each step from a
    directory needs attributes that are not too old, which only the daemon can renew; until a
    deadline this waits for them to be so old. What is mounted further down is then out of reach as
    well. All this needs ``default_permissions``; without that option the kernel takes the step, and
    the answer is no.

    A user's file system is never asked, since it need not answer: fusectl, whose owners the kernel
    sets, says whose it is. A living daemon of root's may pass on such an error from a server below
    it. So what says that it is dead is aborted, which makes that certain; but not what is mounted.
    """

    def __init__(self, limit: float) -> None:
        """Wait for old attributes for ``limit`` seconds from now, in all."""
        self._deadline = time.monotonic() + limit
        self._found: dict[int, int] = {}
        """By device number, which stays that file system's as long as a directory is open: such."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the directories."""
        for directory in self._found.values():
            os.close(directory)

    def has(self, directory: int) -> bool:
        """Return whether a directory is in one that was found already. Raises nothing."""
        with suppress(OSError):
            return syscalls.device_of(directory) in self._found
        return False

    def leads_nowhere(self, directory: int) -> bool:
        """Return whether a directory is in an old view, and nothing can be reached from there."""
        if not self.has(directory) and not self._find(directory):
            return False
        while not _is_closed(directory):
            if time.monotonic() > self._deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def _find(self, directory: int) -> bool:
        try:
            device = syscalls.device_of(directory)
            number = str(os.minor(device))
            control = syscalls.new_mount("fusectl", "none", syscalls.MOUNT_ATTR_NOSUID, {})
        except OSError:
            return False
        try:
            if os.stat(number, dir_fd=control).st_uid != 0 or not _is_dead(directory):
                return False
            if mountinfo.of_device(device) is not None:
                return False
            abort = os.open(f"{number}/abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=control)
            with suppress(OSError):
                os.write(abort, b"1")
            os.close(abort)
            self._found[device] = os.dup(directory)
        except OSError:
            return False
        finally:
            os.close(control)
        return True


def _is_dead(directory: int) -> bool:
    try:
        os.statvfs(directory)  # never answered from a cache
    except OSError as error:
        return error.errno in DEAD
    return False


def _is_closed(directory: int) -> bool:
    try:
        os.close(os.open(".", os.O_PATH | os.O_CLOEXEC, dir_fd=directory))  # nothing but the step
    except OSError as error:
        return error.errno in DEAD
    return False
