"""The text of `vm status`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from gitguardfs.base.errors import counted, shown
from gitguardfs.host.egress import reports
from gitguardfs.host.vm import border, border_table, provision, qmp, running, settings
from gitguardfs.host.vm.border import tried
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State

_PLACES = {"guest": "in the guest", "host": "on the host"}
"""Where .git is guarded, by the setting ``guard``."""


def as_json(state: State) -> str:
    """Return what `vm status` shows as JSON; docs/vm.md has the keys."""
    own, error = tried(lambda: settings.load(state))
    facts = {
        "vm": {
            "name": state.name,
            "project": state.project,
            "directory": state.directory,
            "state": tried(lambda: _word(state))[0] or "not known",
            "process": running.session_pid(state),
            "proxy_process": proxy_pid(state),
        },
        "settings": own and dataclasses.asdict(own) | {"git": own.git_mode},
        "border": border.found(state, own, error),
    }
    return json.dumps(facts, indent=2) + "\n"


def status(state: State, width: int = sys.maxsize) -> str:
    """Return the text of `vm status` for a terminal of ``width``. Raises UserError."""
    own, error = tried(lambda: settings.load(state))
    word, unknown = tried(lambda: _running(state))
    rows = {
        "VM": word or shown(f"not known: {unknown}"),
        "proxy": _proxy(state),
        "project": shown(state.project) + ("" if os.path.isdir(state.project) else " (missing)"),
        **(_settings(own) if own else {"settings": shown(f"not known: {error}")}),
        "state": shown(state.directory),
    }
    longest = max(map(len, rows))
    lines = [f"{name:<{longest}}  {value}" for name, value in rows.items()]
    facts = border.found(state, own, error)
    runs, _ = tried(lambda: running.is_running(state))
    table = border_table.text(facts, width, runs=runs is not False)
    return "\n".join([*lines, *_allowlist(state, facts["allowlist"]["error"]), "", table]) + "\n"


def _settings(own: Settings) -> dict[str, str]:
    return {
        "in the guest": shown(provision.view_of(own.project)),
        "guard": f"{_PLACES[own.guard]}, .git: {own.git_mode}",
        "hidden": shown(_hidden(own.hide)),
        "guest's own": shown(_local(own.local)),
        "image": shown(own.image),
        "machine": f"{counted(own.cpus, 'processor')}, {own.memory} MiB" + _hardened(own.hardened),
    }


def _hidden(names: tuple[str, ...]) -> str:
    return f"{' '.join(names)} (--hide adds names, --hide '' clears them)" if names else "nothing"


def _local(names: tuple[str, ...]) -> str:
    change = "--local GLOB names others" + ", --no-local none" * bool(names)
    return f"{' '.join(names) or 'nothing'} ({change})"


def _hardened(is_hardened: bool) -> str:
    return ", hardened" if is_hardened else ""


def _word(state: State) -> str:
    """Return the VM's state in one word, or in two."""
    if not running.is_running(state):
        return "not running" if state.has_disk else "none"
    try:
        word = qmp.status(state)
    except qmp.NoAnswerError:
        return "changing"
    return "paused" if word == qmp.IO_ERROR else word


def _running(state: State) -> str:
    if not running.is_running(state):
        return "not running" if state.has_disk else "none yet: gitguard vm up makes it"
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
    pid, through = proxy_pid(state), border.through(state)
    if pid is None:
        return "not running" + (f"; the next one: {through}" if through else "")
    return f"running, process {pid}" + (f", {through}" if through else "")


def proxy_pid(state: State) -> int | None:
    """Return the process id of the VM's proxy; None if none runs."""
    found = border.running_proxy(state)
    return None if found is None else found["pid"]


def _allowlist(state: State, error: str | None) -> Iterator[str]:
    if error:
        yield f"all requests are blocked: {error}"
        return
    for text in (reports.unseen_text, reports.errors_text):
        yield from filter(None, [text(Path(state.directory))])
