"""Removes and moves the guest's own directories in a store, also while the view is mounted.

The running daemon looks up the top directories at each request that comes to it, and the kernel
asks for them again after the share's timeouts. What lies below one, both keep for an hour. So only
what the view does not show is changed here. To ask the view whether a place is gone makes the
kernel drop what it knew below that place. What a process still has open there it keeps, as after
any removal or rename.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gitguardfs.base import store_directory
from gitguardfs.base.constants import LOCAL_OWN, LOCAL_STAND_IN
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest.local_listing import Own, Share, opened_place
from gitguardfs.linux import syscalls

RENAME_NOREPLACE = 1


@contextmanager
def _without_new_daemon(share: Share) -> Iterator[None]:
    with suppress(BlockingIOError, PermissionError):  # one runs
        fcntl.lockf(share.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        fcntl.lockf(share.lock, fcntl.LOCK_UN)


def remove(own: Own) -> bool:
    """Remove a directory; return whether it was there. Raises OSError, and UserError for a rest.

    It is renamed out of the tree first: no view ever shows a part of it.
    """
    share, gone = own.share, store_directory.name_of_gone("removed")
    try:
        with _without_new_daemon(share), opened_place(share, own.above) as above:
            os.rename(
                LOCAL_OWN + own.name, os.fsencode(gone), src_dir_fd=above, dst_dir_fd=share.fd
            )
            _tidy(share, own.above)
    except FileNotFoundError:
        return False
    _remove_wholly(os.path.join(share.path, gone))
    return True


def remove_rests(share: Share) -> None:
    """Remove the leftovers of interrupted removals. Raises OSError, UserError."""
    for name in filter(store_directory.is_gone, os.listdir(share.path)):
        _remove_wholly(os.path.join(share.path, name))


def _remove_wholly(path: str) -> None:
    store_directory.remove_tree(path, math.inf)
    if os.path.lexists(path):
        raise UserError(
            f"{path} could not be removed wholly", f"rm -rf {shlex.quote(path)}", Exit.SYSTEM
        )


def move(share: Share, old: Sequence[bytes], new: Sequence[bytes], is_own: bool) -> None:
    """Move one of the guest's own directories, or all that are below a directory of the share.

    It is one rename(2). Raises OSError: EEXIST or ENOTEMPTY if the guest has some there already.
    """
    mark = LOCAL_OWN if is_own else LOCAL_STAND_IN
    flags = RENAME_NOREPLACE if is_own else 0  # an empty directory may stand for the new place
    with _without_new_daemon(share):
        try:
            with (
                opened_place(share, old[:-1]) as above_old,
                opened_place(share, new[:-1], makes=True) as above_new,
            ):
                syscalls.renameat2(above_old, mark + old[-1], above_new, mark + new[-1], flags)
            _tidy(share, old[:-1])
        except OSError:
            _tidy(share, new[:-1])
            raise


def _tidy(share: Share, place: Sequence[bytes]) -> None:
    """Remove the store's empty directories at ``place`` and above it."""
    for depth in range(len(place), 0, -1):
        try:
            with opened_place(share, place[: depth - 1]) as above:
                os.rmdir(LOCAL_STAND_IN + place[depth - 1], dir_fd=above)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
            if error.errno != errno.ENOENT:
                return
