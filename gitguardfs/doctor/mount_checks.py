"""Checks of the mount: a guard is on top, answers, has its options, and root runs it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from gitguardfs.base import quote
from gitguardfs.base.constants import DEAD, FSTYPE
from gitguardfs.base.findings import Result, Row, Severity, Status
from gitguardfs.doctor.context import Context, Table, read_table
from gitguardfs.linux import mountinfo, run_as
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.run_as import User
from gitguardfs.mounting import guards, lid
from gitguardfs.mounting.guards import GuardDaemon
from gitguardfs.sessions.choice import is_known

WANTED = frozenset({"nosuid", "nodev", "default_permissions", "allow_other"})


def check(context: Context) -> list[Result]:
    """Check the mount. Attacks need an ok for ``guard.answers``."""
    mounted = check_mounted(context)
    if mounted.status is not Status.OK or context.guard is None:
        return [mounted]
    answers = check_answer(context.mountpoint, context.user)
    if answers.status is not Status.OK:
        return [mounted, answers]
    running = [check_daemon(context)]
    if context.daemons and context.is_root:
        sessions = {daemon.pid: session_of(daemon.pid) for daemon in context.daemons}
        running.append(check_session(context.mountpoint, sessions, context.user))
    return [
        mounted,
        answers,
        check_options(context.mountpoint, context.guard.all_options),
        *running,
        *note_pyfuse3(context),
    ]


def check_mounted(context: Context) -> Result:
    """Check that the topmost mount is a guard."""
    path = context.mountpoint
    row = Row("guard.mounted", f"a guard is mounted at {path}", f"no guard is mounted at {path}")
    top = mountinfo.top_at(context.mountpoint, context.table)
    quoted = quote.shell([path])
    hint = f"sudo vm-mount --tag TAG --map-mount {quoted}"
    hint += f"; if it is no share: gitguardfs SOURCE {quoted} --map auto"
    if top is None:
        return row.finding("nothing is mounted there", hint)
    if context.guard is None:
        below = any(
            seen.path == context.mountpoint and seen.fstype == FSTYPE for seen in context.table
        )
        what = f"a {top.fstype} mount of {top.source} is on top"
        if lid.is_lid(top):
            return row.finding(
                "its view is gone; the mount point is kept closed for the next one", hint
            )
        if below:
            hint = f"umount {quoted} removes what covers the guard"
        return row.finding(what, hint)
    return row.ok(f"its source is {top.source}")


def check_answer(mountpoint: str, user: User | None) -> Result:
    """Check that the daemon answers the user, since root itself may have no access."""
    row = Row(
        "guard.answers",
        f"the guard at {mountpoint} answers",
        f"the guard at {mountpoint} does not answer",
    )
    again = quote.shell(["umount", "-l", mountpoint])
    hint = f"{again} and mount it again; systemd does that with Restart="
    try:
        run_as.run_as(_ask, mountpoint, user=user)
    except run_as.NoAnswer:
        return row.finding("no answer: the daemon hangs", hint)
    except OSError as error:
        if error.errno in DEAD:
            return row.finding("the mount is dead: its daemon has ended", hint)
        return row.finding(error.strerror or str(error), hint)
    return row.ok()


def _ask(mountpoint: str) -> None:
    os.statvfs(mountpoint)  # stat would be answered from the kernel's cache for a while
    os.stat(mountpoint)


def check_options(mountpoint: str, found: frozenset[str]) -> Result:
    """Check the mount options that make the kernel enforce permissions."""
    row = Row(
        "guard.options",
        f"{mountpoint} has the options nosuid, nodev, default_permissions, allow_other",
        f"{mountpoint} lacks mount options that the guard needs",
    )
    missing = WANTED - found
    if missing:
        hint = "unmount it and mount it again as root; mount -o remount removes options"
        return row.finding(f"missing: {', '.join(sorted(missing))}", hint)
    return row.ok()


def check_daemon(context: Context) -> Result:
    """Check that root runs the daemon: its user could stop or alter it."""
    row = Row(
        "guard.daemon",
        f"root runs the daemon of {context.mountpoint}",
        f"the daemon of {context.mountpoint} does not run as root",
    )
    hint = "let root mount it: from fstab, a system unit, or with sudo"
    guard = context.guard
    assert guard is not None
    if "user_id=0" not in guard.all_options:
        owner = next((o for o in guard.all_options if o.startswith("user_id=")), "user_id=?")
        return row.finding(f"another user has mounted it ({owner})", hint)
    if context.daemons:
        return row.ok(f"process {', '.join(str(d.pid) for d in context.daemons)}")
    if context.is_root:
        return row.note("it answers, but the process that serves it was not found")
    return row.ok("mounted by uid 0")


def note_pyfuse3(context: Context) -> list[Result]:
    """Note a release of pyfuse3 that makes the view slow. Only root can see what a daemon uses."""
    # Dozens of modules, which an emulated guest takes long to load.
    from importlib.metadata import PackageNotFoundError, version

    row = Row("guard.pyfuse3", f"{context.mountpoint} is slow with this release of pyfuse3", "")
    with suppress(OSError, PackageNotFoundError):
        release = version("pyfuse3")
        for daemon in context.daemons if context.is_root and not is_known(release) else ():
            with open(f"/proc/{daemon.pid}/maps", "rb") as file:
                if b"/libfuse3.so" in file.read():
                    why = f"it is {release}; by 3.2 to 3.5 requests take less than half the time"
                    return [row.note(why, "from Linux 5.17 on, root's mounts need no pyfuse3")]
    return []


def check_session(mountpoint: str, sessions: dict[int, str], user: User | None) -> Result:
    """Check that no daemon runs in a login session. ``sessions``: control groups by pid.

    At the session's end systemd sends SIGTERM: the daemon then unmounts and removes the seal.
    """
    row = Row(
        "guard.session",
        f"the daemon of {mountpoint} is in no login session",
        f"the daemon of {mountpoint} ends with a login session, and removes the seal",
    )
    found = {pid: path for pid, path in sessions.items() if path}
    if not found:
        return row.ok()
    is_users = user is not None and any(f"/user-{user.uid}.slice/" in p for p in found.values())
    detail = ", ".join(f"process {pid} is in {path}" for pid, path in found.items())
    hint = f"umount {quote.shell([mountpoint])}, then vm-mount; or restart the guest, with fstab"
    return row.finding(detail, hint, Severity.HIGH if is_users else Severity.MEDIUM)


def session_of(pid: int) -> str:
    """Return the control group of a process if it belongs to a user's session, else empty."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return parse_session(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parse_session(cgroups: bytes) -> str:
    """Return systemd's control group in a /proc/PID/cgroup if it is in user.slice (cgroups(7))."""
    for line in cgroups.split(b"\n"):
        number, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        if (number == b"0" or controllers == b"name=systemd") and b"/user.slice/" in path:
            return os.fsdecode(path)
    return ""


# Which daemon serves a mount, and its source


def serving(guard: MountInfo, candidates: Sequence[GuardDaemon]) -> tuple[GuardDaemon, ...]:
    """Return the one of ``candidates`` that serves a guard, or nothing."""
    found = guards.daemon_of(guard, candidates)
    return () if found is None else (found,)


def sources_of(guard: MountInfo, daemons: tuple[GuardDaemon, ...]) -> tuple[str, ...]:
    """Return the guarded directory, as its daemon has written it down.

    Of a FUSE mount without a known daemon, it is the mount's source, if that is a path.
    """
    found = [daemon.source for daemon in daemons]
    if not found and guard.source.startswith("/"):
        found = [os.path.normpath(guard.source)]
    return tuple(found)


def mounts_of_daemons(daemons: tuple[GuardDaemon, ...]) -> Table:
    """Return the mounts in the daemons' mount namespaces, which may be more than ours."""
    return tuple(seen for daemon in daemons for seen in read_table(str(daemon.pid)))
