"""One mount from its options to its end: descriptors, seal, session, signals.

The order matters. The root descriptor is taken before the seal covers the source, the seal is
on before the view appears, and it comes off only after the view is gone. On any end that is
not clean the mount point stays behind, dead, and so does the seal. Where no guard comes about
the source is sealed all the same: at boot nobody would see that it is open.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import pyfuse3
import trio

from gitguardfs import mounts
from gitguardfs.audit import AuditLog
from gitguardfs.core.guard import Guard
from gitguardfs.core.idmap import MapError
from gitguardfs.core.tree import Tree
from gitguardfs.core.view import View
from gitguardfs.errors import Exit, UserError
from gitguardfs.fuse import daemon, directories, preflight, seal
from gitguardfs.fuse.operations import Operations
from gitguardfs.fuse.requests import Requests
from gitguardfs.options import MountOptions

log = logging.getLogger(__name__)

RESERVED_DESCRIPTORS = 64
"""For Python, the session, worker threads and the log."""
CACHED_DESCRIPTORS = 8192
"""O_PATH descriptors kept at most; each pins an inode of the source in the kernel."""
HAND_OVER = signal.SIGUSR2
"""Ends it like the others, but for the seal, which stays for the next daemon to take over."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, HAND_OVER)
ANSWER_LIMIT = 30.0
"""Seconds within which a new mount has to answer."""


def run(options: MountOptions, notify_socket: str | None) -> int:
    """Mount, and serve until unmounted; returns the exit code. Raises UserError."""
    try:
        return _run(options, notify_socket)
    except UserError as error:
        raise seal.fail_closed(options.source, options.seal, error) from None


def _run(options: MountOptions, notify_socket: str | None) -> int:
    is_root = os.geteuid() == 0
    preflight.check_intended(options.mountpoint, options.intended, is_root)
    places = preflight.check(options.source, options.mountpoint, options.rules, is_root)
    preflight.check_is(places.mountpoint, options.intended)
    seal_it = _wants_seal(options, places.source, is_root)
    _advise(options, places, is_root, seal_it)
    audit = _open_audit(options.audit_log)
    os.chdir("/")

    def serve(ready: Callable[[], None]) -> int:
        daemon.log_to_stderr(options.debug)
        try:
            return _serve(options, places, audit, seal_it, ready)
        except UserError as error:
            said = seal.fail_closed(places.source, options.seal, error)
            print(f"gitguardfs: {said}", file=sys.stderr)
            return error.code
        except Exception:
            log.exception("ended by a bug; the mount point is left dead")
            return Exit.SYSTEM

    if options.foreground or options.debug:
        return serve(lambda: daemon.notify(notify_socket, "READY=1"))
    return daemon.in_background(serve)


def _wants_seal(options: MountOptions, source: str, is_root: bool) -> bool:
    if options.seal and not is_root:
        raise UserError("--seal needs root", "it mounts over the source")
    if options.seal is not None:
        return options.seal
    # A seal is there only if a daemon left it; what it covers was worth sealing.
    return is_root and (seal.is_sealed(source) or seal.is_share_root(source))


def _advise(options: MountOptions, places: preflight.Places, is_root: bool, seal_it: bool) -> None:
    if not is_root:
        alone = "" if "allow_other" in options.kernel else "only you can use the mount, and "
        _warn(f"not root: {alone}owners cannot be changed")
    if not seal_it and seal.is_reachable_by_others(places.source, os.geteuid()):
        _warn(
            f"{options.source} stays open to other users beside the guarded view"
            " (--seal, or keep it below a directory of mode 0700)"
        )


def _warn(text: str) -> None:
    print(f"gitguardfs: warning: {text}", file=sys.stderr)


def _open_audit(path: str | None) -> AuditLog:
    try:
        if path is None:
            return AuditLog(None)
        parent = directories.open_directory(os.path.dirname(path) or ".", os.geteuid() == 0)
        try:
            return AuditLog(os.path.basename(path), parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise UserError(
            f"cannot write the audit log {path}: {error.strerror}", code=Exit.SYSTEM
        ) from None


def _serve(
    options: MountOptions,
    places: preflight.Places,
    audit: AuditLog,
    seal_it: bool,
    ready: Callable[[], None],
) -> Exit:
    seal.check_free(places.source)
    root_fd = places.source_fd
    if seal.is_sealed(places.source):
        os.close(root_fd)
        root_fd = _open_below_seal(places.source)
    preflight.check_no_repository(options.source, f"/proc/self/fd/{root_fd}", options.rules)
    os.umask(0)
    where = mounts.of_device(os.fstat(root_fd).st_dev)
    is_local = where is None or where.is_local
    tree = _tree(options, places, root_fd, is_local)
    operations = Operations(
        tree,
        audit,
        cache_timeout=options.cache_timeout,
        is_local=is_local,
        invalidate=lambda node: pyfuse3.invalidate_inode(node, attr_only=True),
    )
    sealed = _put_seal(places.source, root_fd) if seal_it else None
    if sealed is None:
        seal.lift_stale(places.source)
    try:
        mounted = _init(operations, options, places)
    except BaseException:
        if sealed is not None:
            sealed.leave()
        raise
    audit.start()
    try:
        ended_by = trio.run(_session, operations.requests, places.mountpoint, ready)
    except BaseException:
        # Closes the session without unmounting: a dead mount point, and the seal stays.
        pyfuse3.close(unmount=False)
        raise
    in_place = ended_by is not None or _is_in_place(places)
    _unmount(mounted)
    tree.close()
    os.close(root_fd)
    os.close(places.mountpoint_fd)
    if sealed is not None and (ended_by == HAND_OVER or not in_place):
        sealed.leave()
    elif sealed is not None:
        sealed.lift()
    audit.close()
    if not in_place:
        log.error("the mount point %s was taken away from under the view", options.mountpoint)
        return Exit.SYSTEM
    return Exit.OK


def _is_in_place(places: preflight.Places) -> bool:
    """Whether the mount point still is the directory that was mounted on.

    To remove it, or to put another in its place, unmounts the view: in a mount namespace of
    their own, where it is no mount point, users can do that to a directory of theirs.
    """
    before = os.fstat(places.mountpoint_fd)
    try:
        now = os.stat(places.mountpoint)
    except OSError:
        return False
    same = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    return same and before.st_nlink > 0


def _tree(options: MountOptions, places: preflight.Places, root_fd: int, is_local: bool) -> Tree:
    source, mountpoint = os.fstat(root_fd), os.stat(places.mountpoint)
    try:
        idmap = options.map.resolve(
            (source.st_uid, source.st_gid), (mountpoint.st_uid, mountpoint.st_gid)
        )
    except MapError as error:
        raise UserError(f"contradictory --map: {error}") from None
    return Tree(
        root_fd,
        Guard(options.rules),
        View(idmap, options.allow_suid),
        descriptor_limit=_descriptor_budget(),
        changes_owners=os.geteuid() == 0,
        is_local=is_local,
        read_only=options.read_only,
        xattr=options.xattr,
    )


def _descriptor_budget() -> int:
    """Raise the soft limit to the hard one; half of what there is may be cached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min((hard - RESERVED_DESCRIPTORS) // 2, CACHED_DESCRIPTORS)


def _open_below_seal(source: str) -> int:
    try:
        return seal.open_below(source)
    except OSError as error:
        raise UserError(
            f"cannot reach {source} below its seal: {error.strerror}",
            "this needs mount namespaces: CAP_SYS_ADMIN and CAP_SYS_CHROOT",
            Exit.SYSTEM,
        ) from None


def _put_seal(source: str, source_fd: int) -> seal.Seal:
    try:
        return seal.Seal(source, source_fd)
    except OSError as error:
        raise UserError(
            f"cannot seal {source}: {error.strerror}", "--no-seal leaves it open", Exit.MOUNT
        ) from None


def _init(
    operations: Operations, options: MountOptions, places: preflight.Places
) -> mounts.Mount | None:
    """Mount; by root on the very directory that was checked, and returning that mount.

    For a user fusermount3 does it, by the path and with the user's rights.
    """
    is_root = os.geteuid() == 0
    target = f"/proc/self/fd/{places.mountpoint_fd}" if is_root else places.mountpoint
    try:
        pyfuse3.init(operations, target, _fuse_options(options, places))
    except RuntimeError as error:
        raise UserError(
            f"cannot mount at {options.mountpoint}: {error}",
            "the reason is in the line above, if the kernel gave one",
            Exit.MOUNT,
        ) from None
    return mounts.top_at(directories.path_of(places.mountpoint_fd)) if is_root else None


def _unmount(mounted: mounts.Mount | None) -> None:
    """Unmount, wherever the mount point has been moved to; nothing if that was done already."""
    if mounted is None:
        pyfuse3.close(unmount=os.geteuid() != 0)
        return
    now = next((m for m in mounts.listed() if m.number == mounted.number), None)
    if now is not None and not mounts.detach(now):
        log.error("%s leads elsewhere now; a dead mount is left", os.fsdecode(now.path))
    pyfuse3.close(unmount=False)


def _fuse_options(options: MountOptions, places: preflight.Places) -> set[str]:
    found = {
        "default_permissions",
        "nosuid",
        "nodev",
        f"subtype={mounts.SUBTYPE}",
        f"fsname={_fsname(options.fsname or places.source)}",
        *options.kernel,
    }
    if os.geteuid() == 0:
        found.add("allow_other")
    if options.read_only:
        found.add("ro")
    if options.debug:
        found.add("debug")
    return found


def _fsname(name: str) -> str:
    # libfuse splits at commas, and pyfuse3 passes ASCII only.
    if not name.isascii() or not name.isprintable():
        return mounts.SUBTYPE
    return name.replace("\\", "\\\\").replace(",", "\\,")


async def _session(
    requests: Requests, mountpoint: str, ready: Callable[[], None]
) -> signal.Signals | None:
    """Serve to the end; returns the signal that ended it, if it was one."""
    came: list[signal.Signals] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(_end_on_signal, came)
        nursery.start_soon(_announce, mountpoint, ready)
        gc.collect()
        gc.freeze()
        await requests.serve()
        nursery.cancel_scope.cancel()
    return came[0] if came else None


async def _end_on_signal(came: list[signal.Signals], task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(*ENDING) as signals:
        task_status.started()
        async for number in signals:
            came.append(signal.Signals(number))
            log.info("%s: unmounting", came[-1].name)
            pyfuse3.terminate()


async def _announce(mountpoint: str, ready: Callable[[], None]) -> None:
    """Call ``ready`` once a request has gone through the kernel and come back."""
    answered = trio.Event()
    token = trio.lowlevel.current_trio_token()
    # Not to_thread.run_sync: a request that hangs could then not be given up.
    trio.lowlevel.start_thread_soon(
        lambda: os.statvfs(mountpoint), lambda _outcome: token.run_sync_soon(answered.set)
    )
    with trio.fail_after(ANSWER_LIMIT):
        await answered.wait()
    with suppress(OSError):
        ready()
