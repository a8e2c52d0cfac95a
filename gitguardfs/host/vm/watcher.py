"""The watcher of a VM: ``gitguard watch`` over its shares, a process that ends with `vm up`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from gitguardfs.base import installation
from gitguardfs.base.errors import warn
from gitguardfs.host.egress import die_with_parent
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.watch import status as watchers

LIBRARY = "inotify_simple"
WITHOUT = (
    "the guest is not told of changes in the shared directories: inotify-simple is not installed"
    " (pipx inject gitguardfs inotify-simple; --no-watch for no such line)"
)


def command(state: State, own: Settings) -> list[str]:
    """Return the command that tells the guest of changes until it is ended."""
    # A directory that is the guest's own lies in a writable share alone.
    local = own.local if all(share.is_writable for share in own.shares) else ()
    return installation.command(
        "watch",
        *(f"{share.tag}={share.directory}" for share in own.shares),
        f"--to={state.changes}",
        *(f"--without={name}" for name in (*local, *own.hide)),
        program="gitguard",
    )


@contextmanager
def started(state: State, own: Settings) -> Iterator[None]:
    """Tell the guest of changes until the context ends. Warns if that is not possible. OSError."""
    if not own.tells_changes or sys.platform != "linux":
        yield
        return
    if importlib.util.find_spec(LIBRARY) is None:
        warn(WITHOUT)
        yield
        return
    with open(state.watch_log, "wb") as log:
        process = subprocess.Popen(
            die_with_parent.command(command(state, own)),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=state.directory,
        )
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def status(state: State) -> dict[str, Any] | None:
    """Return the facts about the VM's watcher; None if none runs."""
    for found in watchers.running():
        if found["to"] == state.changes:
            return {
                "process": found["pid"],
                "read": found["read"],
                "directories": [
                    {**one, "last_change": _moment(one["last_change"])}
                    for one in found["directories"]
                ],
            }
    return None


def _moment(seconds: float | None) -> str | None:
    """Return a time as the proxy's log has times; None for None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
