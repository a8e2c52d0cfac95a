"""Checks that the user cannot reach the raw share past the guard."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from functools import partial

from gitguardfs.base.constants import FSTYPE, SHARE_TYPES
from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor import other_mounts, share_attempts
from gitguardfs.doctor.context import Context, Table
from gitguardfs.doctor.fake_root import run_as_user
from gitguardfs.doctor.mount_checks import mounts_of_daemons, sources_of
from gitguardfs.linux.run_as import Hung, NoAnswer, SetupFailed, User
from gitguardfs.mounting.guards import GuardDaemon

NO_SOURCE = "the guard's source is not known"
NO_SHARE = "no guard with a known source and no share is mounted"
CLOSE = (
    "mount the share below a directory of root with mode 0700 (vm-mount does), let the guard seal "
    "it (--seal), or on 9p add access=0"
)


def check(context: Context) -> list[Result]:
    """Check every mounted share, the guard's source, and its daemon's /proc."""
    if context.user is None:
        return []
    table = (*context.table, *mounts_of_daemons(context.daemons))
    guards = guard_devices(table)
    sources = sources_of(context.guard, context.daemons) if context.guard else ()
    results = []
    raw = raw_paths(table, sources) | other_mounts.unguarded_paths(context, sources)
    for path in sorted(raw):
        results += [_by_path(context.user, path, guards), _in_namespace(context.user, path, guards)]
    if context.guard is not None and not sources:
        results.append(_unknown(context.is_root))
    elif not raw:
        row = Row("share.path", "the raw share is out of reach", "the raw share can be reached")
        results.append(row.not_checked(NO_SHARE))
    results += [_by_daemon(context.user, daemon) for daemon in context.daemons]
    tags = tags_of(table, _read_tags(context.system.tags))
    if tags:
        results.append(_by_tag(context.user, tags))
    return results


def _unknown(is_root: bool) -> Result:
    row = Row("share.path", "the guard's source is out of reach", NO_SOURCE)
    why = "the mount does not name its source, so access to that was not tried"
    if is_root:
        return row.unknown(why, "mount it by absolute paths and without fsname")
    return row.note(why, "run it with sudo", row.failed)


def guard_devices(table: Table) -> tuple[int, ...]:
    """Return the st_dev of every guard: files on them are not the raw share."""
    return tuple({seen.st_dev for seen in table if seen.fstype == FSTYPE})


def raw_paths(table: Table, sources: tuple[str, ...]) -> set[str]:
    """Return the mount points of shares, and the guard's source."""
    paths = {seen.path for seen in table if seen.fstype in SHARE_TYPES}
    return paths | set(sources)


def tags_of(table: Table, known: dict[str, str]) -> dict[str, str]:
    """Return the types of shares by mount tag: mounted ones, and others in ``known``."""
    mounted = {seen.source: seen.fstype for seen in table if seen.fstype in SHARE_TYPES}
    return {**known, **mounted}


def _read_tags(patterns: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pattern in patterns:
        for path in glob.glob(pattern):
            try:
                with open(path, "rb") as file:
                    tag = os.fsdecode(file.read().rstrip(b"\0\n"))
            except OSError:
                continue
            found[tag] = "9p" if path.endswith("mount_tag") else "virtiofs"
    return found


def reaches(attempt: Callable[[], None], user: User, fake_root: bool = False) -> bool:
    """Return whether an attempt reaches the share. Raises SetupFailed, NoAnswer if not tried."""
    try:
        run_as_user(attempt, user=user, fake_root=fake_root)
    except OSError as error:
        share_attempts.check_refused(error)
        return False
    except Hung:
        return True  # the child hangs in a request to the share's server, so it reached it
    return True


def _by_path(user: User, path: str, guards: tuple[int, ...]) -> Result:
    row = Row(
        "share.path",
        f"the raw share {path} is out of reach",
        f"the raw share {path} can be reached",
    )
    try:
        routes = [
            n
            for n, attempt in share_attempts.PLAIN
            if reaches(partial(attempt, path, guards), user)
        ]
    except NoAnswer as error:
        return row.disturbed(error)
    if routes:
        return row.finding(f"{user.name} reaches it {' and '.join(routes)}", CLOSE)
    return row.ok()


def _in_namespace(user: User, path: str, guards: tuple[int, ...]) -> Result:
    row = Row(
        "share.namespace",
        f"new namespaces give no further access to {path}",
        f"new namespaces give access to {path}",
    )
    routes = []
    for name, attempt in share_attempts.IN_NAMESPACE:
        try:
            # What the plain path reaches is reported by _by_path.
            if reaches(partial(attempt, path, guards), user, fake_root=True) and not reaches(
                partial(share_attempts.by_path, path, guards), user
            ):
                routes.append(name)
        except SetupFailed as error:
            return row.ok(str(error))
        except NoAnswer as error:
            return row.disturbed(error)
    if routes:
        return row.finding(f"{user.name} reaches it {' and '.join(routes)}", CLOSE)
    return row.ok()


def _by_daemon(user: User, daemon: GuardDaemon) -> Result:
    row = Row(
        "share.daemon",
        f"the daemon's /proc/{daemon.pid} is closed to {user.name}",
        f"the daemon's /proc/{daemon.pid} leads {user.name} to the raw share",
    )
    try:
        routes = [
            link
            for link in share_attempts.LINKS
            if reaches(partial(share_attempts.by_process, daemon.pid, link), user)
        ]
    except NoAnswer as error:
        return row.disturbed(error)
    if routes:
        detail = f"{user.name} may use its {', '.join(routes)}, which lead to the raw share"
        return row.finding(
            detail, "mount it as root, and take away the user's privileges (rights.* below)"
        )
    return row.ok()


def _by_tag(user: User, tags: dict[str, str]) -> Result:
    row = Row("share.remount", "no share can be mounted again", "a share can be mounted again")
    try:
        routes = [
            tag
            for tag, transport in sorted(tags.items())
            for fake_root in (False, True)
            if _mounts(user, tag, transport, fake_root)
        ]
    except NoAnswer as error:
        return row.disturbed(error)
    if routes:
        detail = f"{user.name} can mount {', '.join(sorted(set(routes)))}"
        return row.finding(detail, "take away the user's privileges (rights.* below)")
    return row.ok(", ".join(sorted(tags)))


def _mounts(user: User, tag: str, transport: str, fake_root: bool) -> bool:
    try:
        return reaches(partial(share_attempts.by_tag, tag, transport), user, fake_root)
    except SetupFailed:
        return False
