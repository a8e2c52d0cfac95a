"""The text of `vm status`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gitguardfs.egress import reports, upstream_proxy
from gitguardfs.egress.files import StateFiles
from gitguardfs.errors import UserError, counted, shown
from gitguardfs.vm import provision, qmp, running, settings
from gitguardfs.vm.state import State, is_held

_PLACES = {"guest": "in the guest", "host": "on the host"}
"""Where .git is guarded, by the setting ``guard``."""


def status(state: State) -> str:
    """Return the text of `vm status`. Raises UserError, OSError."""
    own = settings.load(state)
    rows = {
        "VM": _running(state),
        "proxy": _proxy(state),
        "project": shown(state.project) + ("" if os.path.isdir(state.project) else " (missing)"),
        "in the guest": shown(provision.view_of(own.project)),
        "guard": f"{_PLACES[own.guard]}, .git: {own.git_mode}",
        "hidden": shown(_hidden(own.hide)),
        "guest's own": shown(_local(own.local)),
        "image": shown(own.image),
        "machine": f"{counted(own.cpus, 'processor')}, {own.memory} MiB" + _hardened(own.hardened),
        "state": shown(state.directory),
    }
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
    return "\n".join([*lines, *_allowlist(state)]) + "\n"


def _hidden(names: tuple[str, ...]) -> str:
    return f"{' '.join(names)} (--hide adds names, --hide '' clears them)" if names else "nothing"


def _local(names: tuple[str, ...]) -> str:
    change = "--local GLOB names others" + ", --no-local none" * bool(names)
    return f"{' '.join(names) or 'nothing'} ({change})"


def _hardened(is_hardened: bool) -> str:
    return ", hardened" if is_hardened else ""


def _running(state: State) -> str:
    if not running.is_running(state):
        return "not running" if state.has_disk else "none yet: its first start did not finish"
    pid = running.session_pid(state)
    whose = f"started by process {pid}" if pid else "left by a vm up that was killed"
    try:
        word = qmp.status(state)
        if word == qmp.IO_ERROR:
            word = f"paused ({running.DISK_IS_FULL})"
        return f"{word}, {whose}, ssh at 127.0.0.1:{qmp.ssh_port(state)}"
    except qmp.NoAnswerError:
        return f"starting or stopping, {whose}"


def _proxy(state: State) -> str:
    found = _running_proxy(state)
    if found is None:
        next_time = upstream_proxy.status(Path(state.directory))
        return "not running" + (f"; the next one: {next_time}" if next_time else "")
    through = found.get("through")
    return f"running, process {found['pid']}" + (f", {through}" if through else "")


def proxy_pid(state: State) -> int | None:
    """Return the process id of the VM's proxy; None if none runs."""
    found = _running_proxy(state)
    return None if found is None else found["pid"]


def _running_proxy(state: State) -> dict[str, Any] | None:
    """Return what the VM's proxy says of itself; None if none runs."""
    path = StateFiles(Path(state.directory)).proxy
    with suppress(OSError, ValueError, KeyError, TypeError):
        if is_held(str(path)):  # the proxy holds this lock while it lives
            found: dict[str, Any] = json.loads(path.read_bytes())
            return {**found, "pid": int(found["pid"])}
    return None


def _allowlist(state: State) -> Iterator[str]:
    try:
        texts = [of(Path(state.directory)) for of in (reports.unseen_text, reports.errors_text)]
    except UserError as error:
        yield f"all requests are blocked: {error}"
        return
    yield from filter(None, texts)
