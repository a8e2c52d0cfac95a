"""Is the raw share open in a mount namespace that the user has kept from before the seal?

A seal covers the share where it is mounted, and where that propagates. A namespace that was made
before and is cut off (``unshare -m`` makes it private) goes on showing what it showed; in one that
is not, its root may be able to unmount the seal. Which processes are in one only root may see.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from gitguardfs.guest import checks_ways, probes, probes_namespaces
from gitguardfs.guest.checks import Case, Result, Row, parse_table
from gitguardfs.guest.probes import Hung, Lost, Unprepared, User
from gitguardfs.guest.probes_namespaces import NS_GET_USERNS
from gitguardfs.linux.processes import user_ids

NS_GET_OWNER_UID = 0xB704
"""ioctl(2) on a user namespace: who has made it (ioctl_ns(2))."""


@dataclass(frozen=True)
class Process:
    """One process of a mount namespace, by its directory in /proc."""

    path: str
    name: str
    namespace: tuple[int, int]
    """What tells its mount namespace from others (namespaces(7)); (0, 0) if that is not told."""
    is_users: bool
    """Whether the user has one of its ids, or has made its namespace: he can get in there."""

    @property
    def label(self) -> str:
        """Which process that is."""
        return f"process {os.path.basename(self.path)} ({self.name})"


def check(case: Case, user: User, raw: Iterable[str], guards: tuple[int, ...]) -> Result:
    """Try every raw path, as the user, in each other namespace that he can get into."""
    row = Row(
        "share.elsewhere",
        f"{user.name} has no mount namespace that shows the raw share",
        f"{user.name} has a mount namespace that shows the raw share",
    )
    paths = sorted(raw)
    ways: list[str] = []
    unsure: list[str] = []
    for process in others(processes(case.system.processes, user.uid), own_namespace()):
        if process.namespace == (0, 0):
            unsure.append(process.label)
            continue
        try:
            seen = _shown(case, user, process, paths, guards)
            ways += [f"{process.label} sees {place}" for place in seen]
            arguments = (process.path, user, case.table, paths, guards)
            for place in probes.apart(probes_namespaces.peel, *arguments):
                if place not in seen:
                    ways.append(f"{process.label} can take off what covers {place}")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except (OSError, Unprepared, Lost):
            unsure.append(process.label)
    if ways:
        hint = "end it, and what else the user has running: log it out, or start the guest again"
        return row.finding(", ".join(ways), hint)
    if unsure:
        hint = "run it as root of the system itself, or end these"
        return row.unknown(f"could not be checked: {', '.join(unsure)}", hint)
    return row.ok()


def others(found: Iterable[Process], own: tuple[int, int]) -> list[Process]:
    """The user's processes, the first of each namespace but our own; all whose is not told."""
    first: dict[object, Process] = {}
    for process in found:
        if process.is_users and process.namespace != own:
            key = process.path if process.namespace == (0, 0) else process.namespace
            first.setdefault(key, process)
    return list(first.values())


def own_namespace() -> tuple[int, int]:
    """This process's."""
    st = os.stat("/proc/self/ns/mnt")
    return st.st_dev, st.st_ino


def processes(directory: str, uid: int) -> Iterable[Process]:
    """Those that a /proc lists."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    for number in sorted((name for name in names if name.isdigit()), key=int):
        path = os.path.join(directory, number)
        try:
            with open(f"{path}/status", "rb") as file:
                name, uids = parse_status(file.read())
            yield _look(path, name, uid in uids, uid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended


def parse_status(status: bytes) -> tuple[str, tuple[int, ...]]:
    """The name of a process and its user ids, from its /proc/PID/status."""
    name = status.partition(b"\n")[0].removeprefix(b"Name:\t")
    return os.fsdecode(name), user_ids(status)


def _look(path: str, name: str, has_id: bool, uid: int) -> Process:
    try:
        namespace = os.open(f"{path}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return Process(path, name, (0, 0), has_id)
    try:
        st = os.fstat(namespace)
        is_users = has_id or _maker_of(namespace) == uid
        return Process(path, name, (st.st_dev, st.st_ino), is_users)
    finally:
        os.close(namespace)


def _maker_of(namespace: int) -> int | None:
    """Who has made the user namespace of a mount namespace; None if that is above our own."""
    try:
        owner = fcntl.ioctl(namespace, NS_GET_USERNS)
    except PermissionError:
        return None
    try:
        answer = fcntl.ioctl(owner, NS_GET_OWNER_UID, bytes(4))
    finally:
        os.close(owner)
    return int.from_bytes(answer, sys.byteorder)


def _shown(
    case: Case, user: User, process: Process, paths: list[str], guards: tuple[int, ...]
) -> list[str]:
    """Where the user gets to a raw path in the namespace, as it is."""
    with open(f"{process.path}/mountinfo", "rb") as file:
        table = parse_table(file.read())
    places = {place for path in paths for place in checks_ways.shown_in(table, case.table, path)}
    return [place for place in sorted(places) if _is_open(user, process, place, guards)]


def _is_open(user: User, process: Process, place: str, guards: tuple[int, ...]) -> bool:
    """Whether the user gets to ``place`` in the namespace; Unprepared if that cannot be tried."""
    call = partial(probes_namespaces.is_open, place, guards)
    try:
        return bool(probes.apart(call, user=user, root=f"{process.path}/root"))
    except Hung:
        return True  # it waits for a server that it got through to
