"""Tells whether a directory in a FUSE file system without a daemon still leads anywhere."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from gitguardfs.constants import DEAD
from gitguardfs.linux import mountinfo, syscalls

_PAUSE = 0.05


def leads_nowhere(directory: int, deadline: float) -> bool:
    """Return whether nothing can be reached from a directory of root's dead FUSE file system.

    That holds for good. Each step from a directory needs attributes that are not too old, which
    only the daemon can renew; until ``deadline`` this waits for them to be so old. What is mounted
    further down is then out of reach as well. All this needs ``default_permissions``; without that
    option the kernel takes the step, and the answer is no.

    A user's file system is never asked, since it need not answer: fusectl, whose owners the kernel
    sets, says whose it is. A living daemon of root's may pass on such an error from a server below
    it. So what says that it is dead is aborted, which makes that certain; but not what is mounted.
    """
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
    except OSError:
        return False
    finally:
        os.close(control)
    while not _is_closed(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
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
