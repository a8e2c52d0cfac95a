"""Checks that the user cannot reach the raw share past the guard."""

from __future__ import annotations

import errno
import glob
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from gitguardfs.base.constants import FSTYPE, SHARE_TYPES
from gitguardfs.base.errors import os_error
from gitguardfs.base.findings import Result, Row, Status
from gitguardfs.doctor import other_mounts
from gitguardfs.doctor.context import Context, Table
from gitguardfs.doctor.fake_root import run_as_user
from gitguardfs.doctor.mount_checks import mounts_of_daemons, sources_of
from gitguardfs.linux.run_as import Hung, NoAnswer, SetupFailed, User, preparing
from gitguardfs.linux.syscalls import MNT_DETACH, MS_BIND, MS_REC, mount, umount

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
    results = []
    for path in sorted(raw):
        context.say(f"the raw share at {path}")
        results += [_by_path(user, path, guards), _in_namespace(user, path, guards)]
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


# The attempts run as the agent's user. One that returns has reached the share; one that raises
# OSError has not. A directory on the device of a guard does not count, since the view may be
# mounted over its own source.

Attempt = Callable[[str, Sequence[int]], None]
"""An attempt; gets the directory, and the devices (st_dev) of the guards."""
REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS}  # permissions
    | {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESRCH}  # nothing is there
    | {errno.ENOTCONN, errno.ECONNABORTED}  # a dead FUSE mount
    | {errno.EINVAL, errno.EBUSY, errno.ENODEV}  # mount(2): locked, busy, not in this kernel
)
"""Errnos that show that an attempt was refused. Any other says nothing."""
TARGETS = ("/mnt", "/media", "/srv", "/opt", "/home", "/tmp")
"""Directories of every system on which a namespace of the user's can mount."""


def by_path(path: str, guards: Sequence[int]) -> None:
    """List or enter the directory: who can enter it can open names that they know. OSError."""
    try:
        os.listdir(path)
    except OSError as error:
        _check_refused(error)
        os.chdir(path)
    if os.stat(path).st_dev in guards:
        raise os_error(errno.EACCES)


def by_writing(path: str, guards: Sequence[int]) -> None:
    """Check that the user could make a file in the directory. Raises OSError."""
    if os.stat(path).st_dev in guards or not os.access(path, os.W_OK | os.X_OK):
        raise os_error(errno.EACCES)


def _by_detaching(path: str, guards: Sequence[int]) -> None:
    umount(path, MNT_DETACH)
    by_path(path, guards)


def _by_binding(path: str, guards: Sequence[int], flags: int = MS_BIND) -> None:
    """Bind the parent directory, by default without the mounts on top. Raises OSError."""
    parent, name = os.path.split(path)
    with preparing():
        target = next(
            target
            for target in (*TARGETS, "/")
            if os.path.isdir(target) and os.path.commonpath([target, path]) != target
        )
    mount(parent, target, flags=flags)
    by_path(os.path.join(target, name), guards)


def _mount_tag(tag: str, transport: str) -> None:
    """Mount a share a second time, by its tag. Raises OSError."""
    data = "trans=virtio,version=9p2000.L" if transport == "9p" else ""
    with preparing():
        target = next(target for target in TARGETS if os.path.isdir(target))
    mount(tag, target, transport, data=data)
    umount(target, MNT_DETACH)


PLAIN: dict[str, Attempt] = {"by its path": by_path, "by writing to it": by_writing}
IN_NAMESPACE: dict[str, Attempt] = {
    "by its path": by_path,
    "by unmounting what covers it": _by_detaching,
    "by a bind mount": _by_binding,
    "by a recursive bind mount": partial(_by_binding, flags=MS_BIND | MS_REC),
}


def _check_refused(error: OSError) -> None:
    """Raise NoAnswer unless an error shows a refusal."""
    if error.errno not in REFUSED:
        raise NoAnswer(error.strerror or str(error)) from None


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
        _check_refused(error)
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
        attempts = PLAIN.items()
        return [name for name, attempt in attempts if reaches(partial(attempt, path, guards), user)]

    return _judge(row, routes, f"{user.name} reaches it {{}}", CLOSE)


def _in_namespace(user: User, path: str, guards: tuple[int, ...]) -> Result:
    row = Row(
        "share.namespace",
        f"new namespaces give no further access to {path}",
        f"new namespaces give access to {path}",
    )

    def routes() -> list[str]:
        attempts = [(name, partial(it, path, guards)) for name, it in IN_NAMESPACE.items()]
        found = [name for name, attempt in attempts if reaches(attempt, user, fake_root=True)]
        # What the plain path reaches is reported by _by_path.
        is_open = found and reaches(partial(by_path, path, guards), user)
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
            return reaches(partial(_mount_tag, tag, tags[tag]), user, fake_root)
        return False

    def routes() -> list[str]:
        return [tag for tag in sorted(tags) if is_mountable(tag, False) or is_mountable(tag, True)]

    result = _judge(row, routes, f"{user.name} can mount {{}}", PRIVILEGES)
    return row.ok(", ".join(sorted(tags))) if result.status is Status.OK else result
