"""Mounts a share with a seal on it from the start, so that no user can enter it before."""

from __future__ import annotations

import os
from collections.abc import Callable

from gitguardfs.base.constants import SHARE_TYPES
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.linux import mountinfo, safe_open, syscalls
from gitguardfs.mounting import seal

_DONE = b"done"


def mount_covered(do_mount: Callable[[], None], target: str) -> None:
    """Let ``do_mount`` mount a share at ``target``, where it appears with a seal on it.

    No daemon holds the seal: the next one takes it over. Raises UserError, with nothing mounted,
    if a step fails.

    A child process mounts share and seal in a mount namespace of its own, where no other process
    sees the share without its seal. It attaches a tree of both mounts at ``target`` in one step. If
    the child ends before that, the kernel unmounts what is in its namespace.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        reply = _DONE
        try:
            _mount_and_cover(do_mount, target)
        except BaseException as error:
            reply = str(error).encode(errors="replace")
        finally:
            os.write(writable, reply)
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if answer != _DONE:
        raise UserError(answer.decode() or f"mounting {target} was interrupted", code=Exit.MOUNT)


def _mount_and_cover(do_mount: Callable[[], None], target: str) -> None:
    # Opened in our namespace, before anything is mounted: the tree is attached there at the end.
    target_fd = safe_open.open_directory(target, True)
    own_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.unshare_mounts()
    do_mount()
    # Opened before the seal is on, to reach the share below it.
    share = safe_open.open_directory(target, True)
    top = mountinfo.top_at(target)
    if top is None or top.fstype not in SHARE_TYPES or top.mnt_id != mountinfo.number_of(share):
        raise UserError(
            f"no share is mounted at {target}, although mounting it succeeded", code=Exit.MOUNT
        )
    seal.Seal(target, share).keep()
    tree = syscalls.clone_tree(b"/proc/self/fd/%d" % share)
    syscalls.enter_mounts(own_namespace)
    syscalls.attach_tree(tree, target_fd)
