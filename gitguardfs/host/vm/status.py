"""The facts of ``vm status``, as an object for JSON; docs/vm.md has its keys.

All that leads from this machine to the guest or back is in it: the user would not know of another
way.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gitguardfs.base.constants import CHANGES_PORT
from gitguardfs.base.errors import UserError
from gitguardfs.host.credentials import secrets
from gitguardfs.host.egress import requests, upstream_proxy, usage
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.egress.files import read_allowlist
from gitguardfs.host.vm import ports, qmp, running, settings, watcher
from gitguardfs.host.vm.qemu_command import CHANNEL, PROXY_ADDRESS, PROXY_PORT
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.shares import Share
from gitguardfs.host.vm.state import State, is_held
from gitguardfs.options import config_files

TO_GUEST, TO_HOST, BOTH = "to guest", "to host", "both"
"""Directions in which data can pass."""
T = TypeVar("T")


def tried(find: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return the result of ``find`` and None, or None and why it failed.

    One file that cannot be read must not hide what the others say.
    """
    try:
        return find(), None
    except UserError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"


def facts(state: State) -> dict[str, Any]:
    """Return the facts about a VM. A file that cannot be read is named in its part of them."""
    own, settings_error = tried(lambda: settings.load(state))
    found_secrets, secrets_error = tried(lambda: _secrets(state.files.directory))
    opened, ports_error = tried(lambda: ports.opened(state))
    proxy = running_proxy(state)
    return {
        "vm": {
            "name": state.name,
            "project": state.project,
            "directory": state.directory,
            "state": state_word(state),
            "process": running.session_pid(state),
            "proxy_process": proxy["pid"] if proxy else None,
            "watcher": watcher.status(state),
        },
        "settings": own and dataclasses.asdict(own) | {"git": own.git_mode},
        "border": {
            "settings_error": settings_error,
            "shares": [] if own is None else [_share(own, one) for one in own.shares],
            "ports": _ports(opened or [], () if own is None else own.publish),
            "ports_error": ports_error,
            "secrets": found_secrets or [],
            "secrets_error": secrets_error,
            "allowlist": _allowlist(state),
            "openings": _openings(state, own, proxy),
            "upstream_proxy": _through(state, proxy),
        },
    }


def state_word(state: State) -> str:
    """Return the VM's state in one word, or in two; docs/vm.md has them."""
    return tried(lambda: _state(state))[0] or "not known"


def _state(state: State) -> str:
    if not running.is_running(state):
        return "not running" if state.has_disk else "none"
    try:
        word = qmp.status(state)
    except qmp.NoAnswerError:
        return "changing"
    return "paused" if word == qmp.IO_ERROR else word


def _share(own: Settings, share: Share) -> dict[str, Any]:
    return {
        "host": share.directory, "guest": share.view, "writable": share.is_writable,
        "guard": own.guard, "git": own.git_mode, "hidden": own.hide,
        "hides_secrets": own.hide_secrets, "shown": own.show,
        "local": own.local if share.is_writable else (),
    }  # fmt: skip


def _ports(opened: list[ports.OpenPort], publish: tuple[str, ...]) -> list[dict[str, Any]]:
    taken = {one.port.here for one in opened}
    waiting = [port for port in map(ports.parsed, publish) if port.here not in taken]
    return [
        {"host_port": port.here, "guest_port": port.there, "by": by, "open": is_open}
        for port, by, is_open in (
            *((one.port, one.by, True) for one in opened),
            *((port, ports.PUBLISH, False) for port in waiting),
        )
    ]


def _secrets(state_dir: Path) -> list[dict[str, Any]]:
    suspended = secrets.suspended_names(state_dir)
    return [
        {"name": one.name, "hosts": one.hosts, "where": one.where,
         "suspended": one.name in suspended}
        for one in secrets.load(state_dir)
    ]  # fmt: skip


def _allowlist(state: State) -> dict[str, Any]:
    files = state.files
    used = usage.read(files.usage)
    text, error = tried(lambda: read_allowlist(files))
    allowlist = Allowlist.parse(text or "")
    if not (state.has_disk or os.path.lexists(files.allowlist)):
        error = "the first gitguard vm up makes the allowlist"
    return {
        "error": error,
        "since": used.since if used else None,
        "lines": [
            {
                "line": rule.line,
                "last_used": used.used.get(rule.line) if used else None,
                "content_seen": rule.method != requests.WEBSOCKET,
            }
            for rule in allowlist.rules
        ],
        "ignored": [error._asdict() for error in allowlist.errors],
    }


def _openings(
    state: State, own: Settings | None, proxy: dict[str, Any] | None
) -> list[dict[str, Any]]:
    files = state.files
    ways = {True: "a reverse SSH tunnel", False: "QEMU's guestfwd"}
    way = ways[own.hardened] if own else " or ".join(ways.values())
    rows = (
        ("proxy", TO_HOST, _address(proxy["port"] if proxy else None),
         f"{PROXY_ADDRESS}:{PROXY_PORT}",
         f"by {way}: the only address that answers the guest; what no line allows is blocked"),
        ("ssh", TO_GUEST, _address(ssh_port(state)), "port 22",
         "for vm up, vm ssh, vm secret and ports, by keys of this VM alone"),
        ("session", BOTH, "your terminal", "what runs in vm up, vm ssh",
         "what you type; what it writes, also control sequences"),
        ("progress", TO_HOST, "vm up", f"virtio port {CHANNEL}",
         "that it is ready or why not, and the steps of its setup; vm up escapes it"),
        *([("changes", TO_GUEST, "gitguard watch", f"virtio port {CHANGES_PORT}",
            "names of what changes in the shares, but for guarded ones")]
          if own is None or own.tells_changes else []),
        ("console", TO_HOST, state.console, "ttyS0",
         "text of its kernel and services; vm logs escapes it"),
        ("logs", TO_HOST, f"{files.blocked.name}, {files.log.name}", "its requests",
         "URLs and methods of its choice; vm blocked, vm watch and vm logs escape them"),
        ("random", TO_GUEST, "the kernel's random numbers", "virtio-rng", "numbers only"),
        ("seed", TO_GUEST, state.seed, "a read-only disk",
         "gitguardfs, the settings, the guest's own keys, the proxy's certificate"),
        ("image", TO_GUEST, own.image if own else "an image", "below its disk",
         "read-only: the ready disk that was made from the image"),
        ("disk", BOTH, state.disk, "its disk", "the guest's own files"),
    )  # fmt: skip
    return [
        dict(zip(("name", "direction", "host", "guest", "what"), row, strict=True)) for row in rows
    ]


def _through(state: State, proxy: dict[str, Any] | None) -> str | None:
    """Return which company proxy the VM's proxy uses, or the next one will; None if none."""
    if proxy is not None:
        return proxy.get("through") or None
    text, error = tried(lambda: upstream_proxy.status(state.files.directory))
    return error or text or None


def _address(port: int | None) -> str:
    return f"127.0.0.1:{port}" if port else "a port of 127.0.0.1"


def ssh_port(state: State) -> int | None:
    """Return the port of 127.0.0.1 that leads to the guest's sshd; None if QEMU does not answer."""
    with suppress(qmp.NoAnswerError):
        return qmp.ssh_port(state)
    return None


def running_proxy(state: State) -> dict[str, Any] | None:
    """Return the record of the VM's proxy: ``pid``, ``port``, ``through``; None if none runs."""
    path = state.files.proxy
    with suppress(OSError, UserError, ValueError, KeyError, TypeError, RecursionError):
        if is_held(str(path)):  # the proxy holds this lock while it lives
            fields: dict[str, Any] = json.loads(config_files.read(str(path)) or b"")
            return {**fields, "pid": int(fields["pid"]), "port": int(fields["port"])}
    return None
