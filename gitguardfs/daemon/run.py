"""Runs one mount from its options to its end: descriptors, seal, session, signals.

The order matters. The root descriptor is opened before the seal covers the source. The seal is on
before the view appears. It comes off only after the view is unmounted, and only if root asks for
that by a signal or by the umount helper: users can make a view disappear as well.

On any end that is not clean, a dead mount point is left, and the seal stays. If mounting fails, the
source is sealed anyway: at boot nobody would notice that it is open.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable
from signal import Signals
from threading import Thread

from gitguardfs.constants import FUSE_DEVICE
from gitguardfs.daemon import background, build, logs, signals, view
from gitguardfs.daemon.drain import Drain, close_device
from gitguardfs.errors import Exit, UserError, shown, warn
from gitguardfs.fs.mount import Mount
from gitguardfs.linux import mountinfo, safe_open
from gitguardfs.linux.rotating_file import RotatingFile
from gitguardfs.mounting import fstab_check, preflight, seal, seal_bypasses, utab
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.serving.audit_log import AuditLog
from gitguardfs.sessions import base
from gitguardfs.signals import STOP_KEEP_SEAL

log = logging.getLogger(__name__)

DETACH_LIMIT = 2.0
"""Seconds that unmounting may take when the daemon gives up: it may hang, and is then left."""


def run(options: MountOptions, notify_socket: str | None, new_session: base.SessionFactory) -> int:
    """Mount, and serve until unmounted; return the exit code. Raises UserError.

    ``new_session`` makes the session that serves the mount.
    """
    try:
        return _run(options, notify_socket, new_session)
    except fstab_check.NotMountedError:
        raise
    except UserError as error:
        raise seal.fail_closed(options.source, options.seal, error) from None
    except OSError as error:
        raise seal.fail_closed(options.source, options.seal, _user_error(error)) from None


def _user_error(error: OSError) -> UserError:
    where = f"{error.filename}: " if error.filename else ""
    return UserError(f"{where}{error.strerror}", code=Exit.SYSTEM)


def _run(options: MountOptions, notify_socket: str | None, new_session: base.SessionFactory) -> int:
    is_root = os.geteuid() == 0
    if options.needs_root is not None and not is_root:
        raise UserError(f"--{options.needs_root} needs root", "only root can change owners")
    expected = options.expected_mountpoint
    if expected is None and is_root:
        expected = fstab_check.expected_mountpoint(options.source, options.mountpoint)
    preflight.check_expected(options.mountpoint, expected, is_root)
    paths = preflight.check(
        options.source, options.mountpoint, options.rules, is_root, options.source_owner
    )
    preflight.check_is(paths.mountpoint, expected)
    if is_root:
        fstab_check.check_mounted(options.source, paths.source, paths.source_fd)
    seal_it = _wants_seal(options, paths, is_root)
    _warn(options, paths, is_root, seal_it)
    audit = _open_audit(options.audit_log)
    os.chdir("/")

    def serve(ready: Callable[[], None]) -> int:
        logs.log_to_stderr(options.debug)
        try:
            return _serve(options, paths, audit, new_session, seal_it, ready)
        except UserError as error:
            said = seal.fail_closed(paths.source, options.seal, error)
            print(shown(f"gitguardfs: {said}"), file=sys.stderr)
            return error.code
        except Exception:
            log.exception("ended by a bug; the mount point is left dead")
            bug = UserError("ended by a bug", code=Exit.SYSTEM)
            said = seal.fail_closed(paths.source, options.seal, bug)
            print(shown(f"gitguardfs: {said}"), file=sys.stderr)
            return Exit.SYSTEM

    if options.foreground or options.debug:
        return serve(lambda: background.notify(notify_socket, "READY=1"))
    return background.in_background(serve)


def _wants_seal(options: MountOptions, paths: preflight.MountPaths, is_root: bool) -> bool:
    source = paths.source
    if options.seal and not is_root:
        raise UserError("--seal needs root", "it mounts over the source")
    if paths.covers_itself:  # the view hides the source as a seal does
        if seal.sealing(paths.source_fd) is not None:
            raise UserError(
                f"{source} is sealed", f"umount {shlex.quote(source)} removes the seal", Exit.MOUNT
            )
        return False
    if options.seal is not None:
        return options.seal
    # A seal is there only if a daemon left it: that source was to be sealed.
    fd = paths.source_fd
    return is_root and (seal.sealing(fd) is not None or seal.is_share(fd))


def _warn(options: MountOptions, paths: preflight.MountPaths, is_root: bool, seal_it: bool) -> None:
    if not is_root:
        alone = "" if "allow_other" in options.kernel else "only you can use the mount, and "
        warn(f"not root: {alone}owners cannot be changed")
    if seal_it or options.seal is False or paths.covers_itself:
        return
    if seal.is_reachable_by_others(paths.source, os.geteuid()):
        warn(
            f"{options.source} stays open to other users, without the guard"
            " (--seal, or keep it below a directory of mode 0700)"
        )


def _open_audit(path: str | None) -> AuditLog:
    if path is None:
        return AuditLog(None)
    try:
        return AuditLog(RotatingFile(path, os.geteuid() == 0))
    except OSError as error:
        raise UserError(
            f"cannot write the audit log {path}: {error.strerror}", code=Exit.SYSTEM
        ) from None


def _serve(
    options: MountOptions,
    paths: preflight.MountPaths,
    audit: AuditLog,
    new_session: base.SessionFactory,
    seal_it: bool,
    ready: Callable[[], None],
) -> Exit:
    seal.check_unlocked(paths.source_fd, paths.source)
    root_fd = paths.source_fd
    if seal.sealing(paths.source_fd) is not None:
        root_fd = _open_covered(paths)
    preflight.check_no_repository(options.source, f"/proc/self/fd/{root_fd}", options.rules)
    os.umask(0)
    state, operations = build.assemble(
        options, paths, audit, root_fd, new_session.reports_names_only
    )
    session = new_session(operations)
    sealed = _seal(paths) if seal_it else None
    if sealed is None:
        seal.remove_stale(paths.source)
    try:
        if sealed is not None:
            _refuse_holders(options, paths, sealed, os.fstat(root_fd).st_dev)
        signals.hold()
        mounted = view.mount(session, options, paths)
    except BaseException:
        if sealed is not None:
            sealed.keep()
        raise
    if mounted is not None:
        utab.add(mounted)
    audit.start()
    logs.start()
    signal, fault = _serve_session(session, state, options, paths, mounted, sealed, ready)
    os.close(root_fd)
    os.close(paths.mountpoint_fd)
    if sealed is not None and signal in (None, STOP_KEEP_SEAL):
        sealed.keep()
    elif sealed is not None:
        _remove_seal(sealed, paths)
    audit.close()
    if fault:
        stays = (
            f"; {paths.source} stays sealed: vm-mount guards it again, "
            f"umount {shlex.quote(paths.source)} opens it"
        )
        log.error("%s: %s%s", options.mountpoint, fault, stays if sealed else "")
        return Exit.SYSTEM
    return Exit.OK


def _serve_session(
    session: base.Session,
    state: Mount,
    options: MountOptions,
    paths: preflight.MountPaths,
    mounted: mountinfo.MountInfo | None,
    sealed: seal.Seal | None,
    ready: Callable[[], None],
) -> tuple[Signals | None, str]:
    """Serve until the session ends, then unmount.

    Returns the signal by which root ended it, or None, and ``_why_ended`` if there was none.
    """

    def give_up() -> None:
        log.error(
            "%s: the source does not answer; requests under way are aborted", options.mountpoint
        )
        _exit_at_once(mounted, sealed)

    mirror = options.overrides.mirror
    with Drain(lambda: session.answers, give_up) as drain:
        receiver = signals.SignalReceiver(
            session,
            lambda: mounted is not None and mountinfo.current(mounted) is None,
            drain.begin,
            lambda: None if mirror is None else mirror.reread(),
        )

        def answers() -> None:
            receiver.note_ready()
            ready()

        receiver.install()
        try:
            session.serve(answers)
            signal = receiver.end()
        except BaseException:
            # Closed without unmounting: a dead mount point is left, and the seal stays.
            session.close()
            raise
        fault = "" if signal is not None else _why_ended(mounted, paths)
        view.unmount(session, mounted, by_itself=signal is None)
        state.close()
    return signal, fault


def _remove_seal(sealed: seal.Seal, paths: preflight.MountPaths) -> None:
    try:
        sealed.remove()
    except OSError as error:
        log.error("the seal of %s stays: %s", paths.source, error.strerror)


def _exit_at_once(mounted: mountinfo.MountInfo | None, sealed: seal.Seal | None) -> None:
    """End the process at once, since the main thread may wait for the source for ever.

    Processes that wait for the view get ENOTCONN. The next daemon can take over the seal.
    """
    close_device(FUSE_DEVICE)
    if sealed is not None:
        sealed.keep()  # else a stuck thread keeps the process, and so the lock
    if mounted is not None:
        # On a thread: users can make the path of the mount point hang as well.
        detaching = Thread(target=_detach, args=(mounted,), daemon=True)
        detaching.start()
        detaching.join(DETACH_LIMIT)
    logging.shutdown()
    os._exit(Exit.SYSTEM)


def _detach(mounted: mountinfo.MountInfo) -> bool:
    now = mountinfo.current(mounted)
    return now is None or mountinfo.detach(now)


def _why_ended(mounted: mountinfo.MountInfo | None, paths: preflight.MountPaths) -> str:
    """Return why the session ended without a signal from root; "" for a user's own view.

    A user unmounts a view of their own by fusermount3, without a signal. A user who owns the mount
    point of root's view can unmount that as well: in a mount namespace of their own, where it is no
    mount point, they remove or replace the directory. The kernel then unmounts the view.
    fusermount3 goes by paths, too.
    """
    if mounted is None:
        return ""
    if mountinfo.current(mounted) is not None:
        return "the kernel ended the connection; a dead mount is left"
    is_gone = safe_open.path_of(paths.mountpoint_fd).endswith(" (deleted)")
    if is_gone or os.fstat(paths.mountpoint_fd).st_nlink == 0:
        return "the mount point was removed or replaced, so the kernel unmounted the view"
    return "the view was unmounted, but not by root's umount helper"


def _open_covered(paths: preflight.MountPaths) -> int:
    try:
        return seal.open_covered(paths.source, paths.source_fd)
    except OSError as error:
        raise UserError(
            f"cannot reach {paths.source} below its seal: {error.strerror}",
            "this needs mount namespaces: CAP_SYS_ADMIN and CAP_SYS_CHROOT",
            Exit.SYSTEM,
        ) from None


def _seal(paths: preflight.MountPaths) -> seal.Seal:
    try:
        return seal.Seal(paths.source, paths.source_fd)
    except OSError as error:
        raise UserError(
            f"cannot seal {paths.source}: {error.strerror}",
            "--no-seal leaves it open",
            Exit.MOUNT,
        ) from None


def _refuse_holders(
    options: MountOptions, paths: preflight.MountPaths, sealed: seal.Seal, device: int
) -> None:
    """Raise UserError if a process holds something below the seal, and can still use it.

    ``device`` is the st_dev of the source below the seal.
    """
    text, hint = seal_bypasses.describe(paths.source, sealed.covers, device)
    if text and not options.allow_holders:
        raise UserError(text, hint, Exit.MOUNT)
    if text:
        log.warning("%s", text)
    try:
        sealed.check()  # a fusermount3 that was started below can mount over the seal
    except OSError as error:
        raise UserError(f"cannot seal {paths.source}: {error.strerror}", code=Exit.MOUNT) from None
