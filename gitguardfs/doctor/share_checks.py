"""Checks that the user cannot reach the raw share past the guard."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gitguardfs.base.constants import FSTYPE, SHARE_TYPES
from gitguardfs.base.findings import Result, Row, Status
from gitguardfs.doctor import other_mounts, share_attempts
from gitguardfs.doctor.context import Context, Table
from gitguardfs.doctor.fake_root import run_as_user
from gitguardfs.doctor.mount_checks import mounts_of_daemons, sources_of
from gitguardfs.linux.run_as import Hung, NoAnswer, SetupFailed, User

NO_SOURCE = "the guard's source is not known"
NO_SHARE = "no guard with a known source and no share is mounted"
CLOSE = (
    "mount the share below a directory of root with mode 0700 (vm-mount does), let the guard seal "
    "it (--seal), or on 9p add access=0"
)
PRIVILEGES = "take away the user's privileges (rights.* below)"


def check(context: Context) -> list[Result]:
    """Check every mounted share, the guard's source, and its daemon's /proc."""
    user = context.user
    if user is None:
        return []
    table = (*context.table, *mounts_of_daemons(context.daemons))
    guards = guard_devices(table)
    sources = sources_of(context.guard, context.daemons) if context.guard else ()
    raw = raw_paths(table, sources) | other_mounts.unguarded_paths(context, sources)
    results = [
        try_path(user, path, guards)
        for path in sorted(raw)
        for try_path in (_by_path, _in_namespace)
    ]
    row = Row("share.path", "the guard's source is out of reach", NO_SOURCE)
    if context.guard is not None and not sources:
        why = "the mount does not name its source, so access to that was not tried"
        if context.is_root:
            results.append(row.unknown(why, "mount it by absolute paths and without fsname"))
        else:
            results.append(row.note(why, "run it with sudo", row.failed))
    elif not raw:
        results.append(Row("share.path", "the raw share is out of reach", "").not_checked(NO_SHARE))
    results += [_by_daemon(user, daemon.pid) for daemon in context.daemons]
    tags = tags_of(table, _read_tags(context.system.tags))
    if tags:
        results.append(_by_tag(user, tags))
    return results


def guard_devices(table: Table) -> tuple[int, ...]:
    """Return the st_dev of every guard: files on them are not the raw share."""
    return tuple({seen.st_dev for seen in table if seen.fstype == FSTYPE})


def raw_paths(table: Table, sources: tuple[str, ...]) -> set[str]:
    """Return the mount points of shares, and the guard's source."""
    return {seen.path for seen in table if seen.fstype in SHARE_TYPES} | set(sources)


def tags_of(table: Table, known: dict[str, str]) -> dict[str, str]:
    """Return the types of shares by mount tag: mounted ones, and others in ``known``."""
    return known | {seen.source: seen.fstype for seen in table if seen.fstype in SHARE_TYPES}


def _read_tags(patterns: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for path in itertools.chain.from_iterable(map(glob.glob, patterns)):
        with suppress(OSError), open(path, "rb") as file:
            tag = os.fsdecode(file.read().rstrip(b"\0\n"))
            found[tag] = "9p" if path.endswith("mount_tag") else "virtiofs"
    return found


def _judge(row: Row, find_routes: Callable[[], list[str]], detail: str, hint: str) -> Result:
    """Return a finding if there are routes to the share; ``detail`` has {} for them."""
    try:
        routes = find_routes()
    except SetupFailed as error:
        return row.ok(str(error))
    except NoAnswer as error:
        return row.disturbed(error)
    return row.finding(detail.format(", ".join(routes)), hint) if routes else row.ok()


def reaches(attempt: Callable[[], object], user: User, fake_root: bool = False) -> bool:
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

    def routes() -> list[str]:
        attempts = share_attempts.PLAIN
        return [name for name, attempt in attempts if reaches(partial(attempt, path, guards), user)]

    return _judge(row, routes, f"{user.name} reaches it {{}}", CLOSE)


def _in_namespace(user: User, path: str, guards: tuple[int, ...]) -> Result:
    row = Row(
        "share.namespace",
        f"new namespaces give no further access to {path}",
        f"new namespaces give access to {path}",
    )

    def routes() -> list[str]:
        attempts = [(name, partial(it, path, guards)) for name, it in share_attempts.IN_NAMESPACE]
        found = [name for name, attempt in attempts if reaches(attempt, user, fake_root=True)]
        # What the plain path reaches is reported by _by_path.
        is_open = found and reaches(partial(share_attempts.by_path, path, guards), user)
        return [] if is_open else found

    return _judge(row, routes, f"{user.name} reaches it {{}}", CLOSE)


def _by_daemon(user: User, pid: int) -> Result:
    row = Row(
        "share.daemon",
        f"the daemon's /proc/{pid} is closed to {user.name}",
        f"the daemon's /proc/{pid} leads {user.name} to the raw share",
    )

    def routes() -> list[str]:
        links = ("root", "cwd", "fd")
        return [it for it in links if reaches(partial(os.listdir, f"/proc/{pid}/{it}"), user)]

    detail = f"{user.name} may use its {{}}, which lead to the raw share"
    return _judge(row, routes, detail, f"mount it as root, and {PRIVILEGES}")


def _by_tag(user: User, tags: dict[str, str]) -> Result:
    row = Row("share.remount", "no share can be mounted again", "a share can be mounted again")

    def is_mountable(tag: str, fake_root: bool) -> bool:
        with suppress(SetupFailed):
            return reaches(partial(share_attempts.by_tag, tag, tags[tag]), user, fake_root)
        return False

    def routes() -> list[str]:
        return [tag for tag in sorted(tags) if is_mountable(tag, False) or is_mountable(tag, True)]

    result = _judge(row, routes, f"{user.name} can mount {{}}", PRIVILEGES)
    return row.ok(", ".join(sorted(tags))) if result.status is Status.OK else result
