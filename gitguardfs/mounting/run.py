"""Runs one mount from its options to its end: descriptors, seal, session, signals.

The order matters. The root descriptor is opened before the seal covers the source. The seal is on
before the view appears, and so is the lid, on which the view lies. They come off only after the
view is unmounted, and only if root asks for that by a signal or by the umount helper: users can
make a view disappear as well.

On any end that is not clean, the view is left for the next daemon or dead, and seal and lid stay.
If mounting fails, the source is sealed anyway: at boot nobody would notice that it is open.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from signal import Signals

from gitguardfs.base.errors import Exit, UserError, failing, shown, warn
from gitguardfs.base.signals import STOP_KEEP_SEAL, UNMOUNTED
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.linux import descriptor_limit, mountinfo
from gitguardfs.linux.rotating_file import RotatingFile
from gitguardfs.mounting import (
    background,
    build,
    closed_places,
    endings,
    fd_store,
    fstab_check,
    guards,
    host_changes,
    keeper,
    lid,
    logs,
    old_views,
    preflight,
    seal,
    signals,
    takeover,
    utab,
    view,
)
from gitguardfs.mounting.drain import Drain
from gitguardfs.mounting.takeover import Succession
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.sessions import base

log = logging.getLogger(__name__)


def run(
    options: MountOptions,
    notify_socket: str | None,
    is_service: bool,
    kind: base.SessionKind,
) -> int:
    """Mount, and serve until unmounted; return the exit code. Raises UserError.

    ``is_service`` is whether this is the main process of a service that waits for a notification.
    ``kind`` is that of the session that serves the mount.
    """
    # A new process closes its copies of the source's files, and may wait for a hung server then.
    # subprocess waits for that in vfork(2) with Python's lock held, and so would all threads.
    subprocess._USE_VFORK = False  # type: ignore[misc]  # documented in Python's manual

    is_main = is_service and os.geteuid() == 0
    address = notify_socket if is_main else None
    relay = fd_store.Relay(address)
    if options.foreground or options.debug or os.geteuid() != 0:
        hand_over = None if address is None else partial(fd_store.store_before_the_end, address)
        succession = Succession(hand_over=hand_over)
    else:
        succession = Succession(keep=relay.keep, hand_over=relay.hand_over if is_main else None)

    def launch(serve: _Serve, options: MountOptions) -> int:
        logs.log_to_stderr(options.debug)

        def first(ready: keeper.Ready) -> int:
            return serve(ready, _print_error)

        def notify() -> None:
            fd_store.notify(notify_socket, "READY=1")

        if options.foreground or options.debug:
            return keeper.for_others(first(lambda _: notify()))
        name = shown(options.mountpoint)
        relay.open()
        again = partial(_run_again, options, kind, succession, relay)
        if is_main:
            background.in_service(name, first, again, notify, relay)
        try:
            return background.in_background(
                name, first, again if os.geteuid() == 0 else None, relay
            )
        finally:
            relay.close()

    offered = fd_store.taken(notify_socket)
    return _run(options, kind, launch, replace(succession, offered=offered))


_Serve = Callable[[keeper.Ready, Callable[[str], None]], int]
"""Serves a mount until its end. The first argument is called when it answers, the second with an
error that ends it."""


def _run_again(
    options: MountOptions,
    kind: base.SessionKind,
    succession: Succession,
    relay: fd_store.Relay,
    former: bytes,
    ready: keeper.Ready,
) -> int:
    """Take the place of a daemon that was killed, unless root has unmounted its view since.

    ``former`` is the state that the killed daemon had reported (``closed_places.recognized``).
    """
    succession = replace(succession, root=former, offered=relay.kept, goes_on=relay.goes_on)
    there = (mount for mount in mountinfo.listed() if mount.path == options.mountpoint)
    if not any(lid.is_lid(mount) or seal.is_seal(mount) for mount in there):
        log.info("%s: unmounted", options.mountpoint)
        return Exit.OK
    try:
        return _run(options, kind, lambda serve, _: serve(ready, log.error), succession)
    except UserError as error:
        log.error("%s", error)
        return error.code


def _print_error(text: str) -> None:
    print(shown(f"gitguardfs: {text}"), file=sys.stderr)


def _run(
    options: MountOptions,
    kind: base.SessionKind,
    launch: Callable[[_Serve, MountOptions], int],
    succession: Succession,
) -> int:
    try:
        return _prepare(options, kind, launch, succession)
    except fstab_check.NotMountedError:
        raise
    except UserError as error:
        raise seal.fail_closed(options.source, options.seal, error) from None
    except OSError as error:
        raise seal.fail_closed(options.source, options.seal, _user_error(error)) from None


def _user_error(error: OSError) -> UserError:
    where = f"{error.filename}: " if error.filename else ""
    return UserError(f"{where}{error.strerror}", code=Exit.SYSTEM)


def _prepare(
    options: MountOptions,
    kind: base.SessionKind,
    launch: Callable[[_Serve, MountOptions], int],
    succession: Succession,
) -> int:
    """Check the options and paths, and launch a function that serves the mount."""
    is_root = os.geteuid() == 0
    if options.needs_root is not None and not is_root:
        raise UserError(f"--{options.needs_root} needs root", "only root can change owners")
    takes_over = kind.takes_over and succession.goes_on
    taken = takeover.taken(options, succession.offered, takes_over)
    paths = _paths(options, taken, is_root)
    seal_it = closed_places.wants_seal(options, paths)
    if taken is not None:
        is_sealed = seal.sealing(paths.source_fd) is not None
        is_other = not is_sealed and closed_places.recognized(paths.source_fd) != taken.root
        if is_sealed != seal_it or is_other:
            taken.abandon()
            taken, paths = None, _paths(options, None, is_root)
    root = succession.root if taken is None else taken.root
    succession = replace(succession, taken=taken, root=root)
    if is_root:
        fstab_check.check_mounted(options.source, paths.source, paths.source_fd)
    else:
        alone = "" if "allow_other" in options.kernel else "only you can use the mount, and "
        warn(f"not root: {alone}owners cannot be changed")
    if not (seal_it or options.seal is False or paths.covers_itself):
        closed_places.warn_if_reachable(options.source, paths.source)
    log_path = options.audit_log
    with failing(f"cannot write the audit log {log_path}"):
        audit = AuditLog(None if log_path is None else RotatingFile(log_path, is_root))
    checked = replace(
        options,
        source=paths.source,
        mountpoint=paths.mountpoint,
        expected_mountpoint=paths.mountpoint if is_root else None,
        audit_log=log_path and os.path.abspath(log_path),
        private_store=options.private_store and os.path.abspath(options.private_store),
        repository=options.repository and os.path.abspath(options.repository),
        local_store=options.local_store and os.path.abspath(options.local_store),
    )
    os.chdir("/")

    def serve(ready: keeper.Ready, complain: Callable[[str], None]) -> int:
        try:
            return _serve(options, paths, audit, kind, seal_it, succession, ready)
        except UserError as error:
            said = seal.fail_closed(paths.source, options.seal, error)
        except Exception:
            log.exception("ended by a bug; the mount point is left dead")
            bug = UserError("ended by a bug", code=Exit.SYSTEM)
            said = seal.fail_closed(paths.source, options.seal, bug)
        complain(str(said))
        return said.code

    return launch(serve, checked)


def _paths(
    options: MountOptions, taken: takeover.Taken | None, is_root: bool
) -> preflight.MountPaths:
    """Return the checked source and mount point. Raises UserError."""
    if taken is not None:
        return preflight.check_source(options, taken.mountpoint, taken.place)
    expected = options.expected_mountpoint
    if expected is None and is_root:
        expected = fstab_check.expected_mountpoint(options.source, options.mountpoint)
    return preflight.check_paths(options, expected, is_root)


def _serve(
    options: MountOptions,
    paths: preflight.MountPaths,
    audit: AuditLog,
    kind: base.SessionKind,
    seal_it: bool,
    succession: Succession,
    ready: keeper.Ready,
) -> int:
    seal.check_unlocked(paths.source_fd, paths.source)
    root_fd = paths.source_fd
    if seal.sealing(root_fd) is not None:
        root_fd = closed_places.open_covered(paths.source, root_fd, seal.is_seal)
    root = closed_places.recognized(root_fd)
    if succession.root not in (b"", root):
        raise UserError(
            f"{paths.source} is another directory than before: it is not guarded again",
            f"umount {shlex.quote(paths.mountpoint)}, then mount it again",
        )
    succession = replace(succession, root=root)
    taken, target_fd = succession.taken, paths.mountpoint_fd
    had_lid = taken is None and lid.lid_of(target_fd) is not None
    if had_lid:
        below = closed_places.open_covered(paths.mountpoint, target_fd, lid.is_lid)
        paths = replace(paths, mountpoint_fd=below)
    elif paths.covers_itself:
        paths = replace(paths, mountpoint_fd=root_fd)
    preflight.check_no_repository(options.source, f"/proc/self/fd/{root_fd}", options.rules)
    os.umask(0)
    sys.dont_write_bytecode = True  # anybody could write to it
    tables, operations = build.assemble(options, paths, audit, root_fd, kind.reports_names_only)
    session = kind.of(operations)
    access = old_views.Access(root.decode(), paths.source, paths.mountpoint, options.given)
    if taken is None:
        closed = closed_places.close(paths, target_fd, seal_it)
    else:
        closed = closed_places.take_over(paths, seal_it, taken.lid)
    try:
        if taken is None and closed.seal is not None and seal_it:
            closed_places.check_seal(options, paths, closed.seal, os.fstat(root_fd).st_dev)
        if taken is None and os.geteuid() == 0:
            closed_places.check_old_views(options, access, closed)
        signals.hold()
        if taken is None:
            mounted = view.mount(session, options, paths, closed)
        else:
            mounted = taken.go_on(session)
    except BaseException:
        keep_lid = had_lid or taken is not None
        closed.end(keep_seal=seal_it or closed.was_sealed, keep_lid=keep_lid)
        raise
    if had_lid:
        # If the mount point is removed in another namespace, the kernel keeps the view on the lid
        # for as long as the lid is open, and this process would not end.
        os.close(closed.target_fd)
    record = None
    if mounted is not None:
        if taken is None:
            utab.add(mounted)
        try:
            old_views.note(mounted, access, kind.lends_files and operations.lends_files)
            record = guards.Record(mounted, paths.source, options.given)
        except OSError as error:
            log.warning("umount and vm-mount will not know this daemon: %s", error)
    audit.start()
    logs.start()
    told = None
    if record is not None and mounted is not None:
        source_mount = mountinfo.of_device(os.fstat(root_fd).st_dev)
        try:
            told = host_changes.HostChanges(session, operations, mounted, source_mount)
        except OSError as error:
            log.warning("gitguard changes-in will not reach this daemon: %s", error.strerror)
    signal, fault = _serve_session(
        session, tables, options, paths, mounted, closed, lambda: ready(root), succession, told
    )
    os.close(root_fd)
    stays_closed = bool(fault) or signal is STOP_KEEP_SEAL
    # UNMOUNTED: the helper has removed the lid, and another view may have put on one like it.
    closed.end(keep_seal=stays_closed, keep_lid=stays_closed or signal is UNMOUNTED)
    if record is not None:
        record.remove()
    audit.close()
    if fault:
        places = [paths.source, *([paths.mountpoint] if closed.lid else [])]
        opens = shlex.join(["umount", *places])
        stays = f"; {paths.source} stays sealed: vm-mount guards it again, {opens} opens it"
        log.error("%s: %s%s", options.mountpoint, fault, stays if closed.seal else "")
        is_gone = mounted is not None and mountinfo.current(mounted) is None
        return keeper.TAKEN_AWAY if is_gone else Exit.SYSTEM
    if signal is None:
        with suppress(Exception):  # of a log; the keeper would mount the view again
            log.info("%s: unmounted", options.mountpoint)
    return Exit.OK


def _serve_session(
    session: base.Session,
    tables: ExitStack,
    options: MountOptions,
    paths: preflight.MountPaths,
    mounted: mountinfo.MountInfo | None,
    closed: closed_places.ClosedPlaces,
    ready: Callable[[], None],
    succession: Succession,
    told: host_changes.HostChanges | None,
) -> tuple[Signals | None, str]:
    """Serve until the session ends, then unmount, or hand the view over to the next daemon.

    Returns the signal by which root ended it, or None, and ``endings.why_ended`` if there was none.
    """

    def give_up() -> None:
        log.error(
            "%s: the source does not answer; requests under way are aborted", options.mountpoint
        )
        succession.keep_nothing()
        endings.exit_at_once(mounted, closed.seal)

    def mounts_changed() -> None:
        # At once, also if programs still use a view that was unmounted lazily. A view that this
        # daemon has unmounted is gone only after the end has begun.
        if told is not None and is_unmounted():  # the helper has a mount of the view
            session.call_soon_from_thread(told.close_connection)
        if closed.seal is None and is_unmounted() and not drain.has_begun:
            closed.open_place()

    def is_unmounted() -> bool:
        return mounted is not None and mountinfo.current(mounted) is None

    def is_ended() -> bool:
        descriptor_limit.use_all()  # asked for by root: users do not keep the answer from it
        return is_unmounted()

    mirror = options.overrides.mirror
    with Drain(lambda: session.answers, give_up, mounts_changed) as drain:
        receiver = signals.SignalReceiver(
            session,
            is_ended,
            drain.begin,
            lambda: None if mirror is None else mirror.reread(),
            lambda: None if told is None else told.take(),
        )

        def answers() -> None:
            receiver.note_ready()
            succession.keep_in_case_of_a_kill(session, options, paths, mounted)
            if told is not None:
                told.begin()
            ready()
            descriptor_limit.spare()

        receiver.install()
        try:
            session.serve(answers)
            descriptor_limit.use_all()
            signal = receiver.end(waits=closed.seal is not None)
        except BaseException:
            # Without unmounting: the next daemon goes on, or the view is dead. The seal stays.
            session.close()
            raise
        fault = (
            "" if signal is not None else endings.why_ended(mounted, paths, closed.seal is not None)
        )
        if signal is None and not fault:
            closed.open_place()
        left = {}
        hands_over = receiver.is_ready and succession.hand_over is not None
        if signal is STOP_KEEP_SEAL and hands_over and session.outliving is not None:
            left = succession.prepare(session.outliving.left_at_the_end, options, paths, mounted)
        if told is not None:
            told.end(hands_over=bool(left))
        if not left:
            view.unmount(session, mounted, by_itself=signal is None)
        tables.close()
        if left and not succession.pass_on(left):
            left = {}
            view.unmount(session, mounted, by_itself=False)
        if left:
            session.close()
        else:
            view.forget(session, mounted)
    return signal, fault
