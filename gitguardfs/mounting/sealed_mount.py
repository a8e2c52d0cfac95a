"""Mounting a share that nobody can enter: the seal is on it before anybody else sees it."""

from __future__ import annotations

import os
from collections.abc import Callable

from gitguardfs.errors import Exit, UserError
from gitguardfs.linux import mountinfo, safe_open, syscalls
from gitguardfs.mounting import seal

_DONE = b"done"


def mount_covered(do_mount: Callable[[], None], target: str) -> None:
    """Have ``do_mount`` mount a share at ``target``, which appears there with a seal on it.

    The seal is nobody's: the next daemon takes it over. UserError, with nothing mounted, if it
    does not come about.

    It is all done by a child in a mount namespace of its own, where the target's path leads to
    the share as soon as it is mounted, and for nobody else. What comes out of there is one tree
    of two mounts, attached in one step; whatever ends the child, the rest goes with it.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        said = _DONE
        try:
            _mount_and_cover(do_mount, target)
        except BaseException as error:
            said = str(error).encode(errors="replace")
        finally:
            os.write(writable, said)
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if answer != _DONE:
        raise UserError(answer.decode() or f"mounting {target} was ended", code=Exit.MOUNT)


def _mount_and_cover(do_mount: Callable[[], None], target: str) -> None:
    # Of this namespace and before anything is mounted: where the tree is attached in the end.
    place = safe_open.open_directory(target, True)
    here = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.unshare_mounts()
    do_mount()
    # Before the seal is on: the way to what lies below it.
    share = safe_open.open_directory(target, True)
    top = mountinfo.top_at(target)
    if (
        top is None
        or top.fstype not in mountinfo.SHARE_TYPES
        or top.mnt_id != mountinfo.number_of(share)
    ):
        raise UserError(f"no share came to be mounted at {target}", code=Exit.MOUNT)
    seal.Seal(target, share).leave()
    tree = syscalls.clone_tree(b"/proc/self/fd/%d" % share)
    syscalls.enter_mounts(here)
    syscalls.attach_tree(tree, place)
