"""The table of ``vm list``: all VMs of this user, as objects for JSON; docs/vm.md has the keys."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from gitguardfs.base import columns
from gitguardfs.base.errors import counted, shown
from gitguardfs.host.vm import keys, ports, settings
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.ports import Port
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import ssh_port, state_word, tried

HEADINGS = ("NAME", "STATE", "AGE", "DISK", "PORTS", "PROJECT")
NONE = "-"
NO_ANSWER = ("none", "not running", "not known", "changing")
"""States in which QEMU does not answer: it would be waited for."""
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))
_SSH = 22


def vms() -> list[dict[str, Any]]:
    """Return the facts of each VM, by project. A file that cannot be read hides no other VM."""
    found = [_facts(state) for state in states.all_states() if _is_vm(state)]
    return sorted(found, key=lambda vm: (vm["project"] or "", vm["name"]))


def _is_vm(state: State) -> bool:
    """Return False for a directory that has only the logs of a start that failed."""
    return state.has_disk or os.path.lexists(state.path(settings.FILE))


def _facts(state: State) -> dict[str, Any]:
    own, _ = tried(lambda: settings.load(state))
    word = state_word(state)
    opened, _ = tried(lambda: ports.opened(state))
    return {
        "name": state.name,
        "project": own.project if own and own.project != state.project else None,
        "directory": state.directory,
        "state": word,
        "made": _made(state),
        "disk_bytes": _disk_bytes(state),
        "ssh_port": None if word in NO_ANSWER else ssh_port(state),
        "ports": [
            {"host_port": one.port.here, "guest_port": one.port.there} for one in opened or []
        ],
    }


def _made(state: State) -> str | None:
    """Return the time when the VM was made: its keys are written once, before its first start."""
    with suppress(OSError):
        moment = os.stat(state.path(keys.DIRECTORY)).st_mtime
        return datetime.fromtimestamp(int(moment), UTC).isoformat()
    return None


def _disk_bytes(state: State) -> int:
    with suppress(OSError):
        return os.lstat(state.disk).st_blocks * 512
    return 0


def text(found: list[dict[str, Any]], width: int) -> str:
    """Return the table, ``width`` columns wide. The project is last: its path may be long."""
    if not found:
        return "there are no VMs; gitguard vm up makes one"
    return "\n".join(columns.table([HEADINGS, *map(_row, found)], width))


def _row(vm: dict[str, Any]) -> tuple[str, ...]:
    project = vm["project"]
    where = NONE if project is None else shown(project)
    if project is not None and not os.path.isdir(project):
        where += " (missing)"
    ssh = [Port(vm["ssh_port"], _SSH)] if vm["ssh_port"] else []
    others = [Port(one["host_port"], one["guest_port"]) for one in vm["ports"]]
    return (
        shown(vm["name"]), vm["state"], _age(vm["made"]),
        f"{vm['disk_bytes'] >> 20} MiB" if vm["disk_bytes"] else NONE,
        " ".join(map(str, (*ssh, *others))) or NONE, where,
    )  # fmt: skip


def _age(made: str | None) -> str:
    if made is None:
        return NONE
    seconds = time.time() - datetime.fromisoformat(made).timestamp()
    unit, length = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return counted(max(1, int(seconds // length)), unit)
