"""What crosses the border between this machine and a VM, as data: for ``vm status``.

All that leads in or out is here: a way that is not would be one that the user does not know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gitguardfs.base import config_files
from gitguardfs.base.errors import UserError
from gitguardfs.host.credentials import secrets
from gitguardfs.host.egress import requests, upstream_proxy, usage
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.egress.files import StateFiles, read_allowlist
from gitguardfs.host.vm import ports, provision, qmp
from gitguardfs.host.vm.qemu_command import CHANNEL, PROXY_ADDRESS, PROXY_PORT
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State, is_held

TO_GUEST, TO_HOST, BOTH = "to guest", "to host", "both"
"""Directions in which data can pass."""


T = TypeVar("T")


def tried(find: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return what ``find`` returns, and None; or None, and why it failed.

    One file that cannot be read must not hide what the others say.
    """
    try:
        return find(), None
    except UserError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"


def found(state: State, own: Settings | None, settings_error: str | None = None) -> dict[str, Any]:
    """Return what crosses the border, or would if the VM ran. Its keys are in docs/vm.md.

    ``own`` is None if the settings cannot be read; ``settings_error`` says why.
    """
    listed, secrets_error = tried(lambda: _secrets(Path(state.directory)))
    opened, ports_error = tried(lambda: ports.opened(state))
    return {
        "settings_error": settings_error,
        "shares": [] if own is None else [_share(own)],
        "ports": _ports(opened or [], () if own is None else own.publish),
        "ports_error": ports_error,
        "secrets": listed or [],
        "secrets_error": secrets_error,
        "allowlist": _allowlist(state),
        "openings": _openings(state, own),
        "upstream_proxy": through(state),
    }


def _share(own: Settings) -> dict[str, Any]:
    return {
        "host": own.project,
        "guest": provision.view_of(own.project),
        "writable": True,
        "guard": own.guard,
        "git": own.git_mode,
        "hidden": list(own.hide),
        "local": list(own.local),
    }


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
        {
            "name": one.name,
            "hosts": list(one.hosts),
            "where": one.where,
            "suspended": one.name in suspended,
        }
        for one in secrets.load(state_dir)
    ]


def _allowlist(state: State) -> dict[str, Any]:
    files = StateFiles(Path(state.directory))
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
        "ignored": [
            {"number": error.number, "text": error.text, "why": error.why}
            for error in allowlist.errors
        ],
    }


def _openings(state: State, own: Settings | None) -> list[dict[str, Any]]:
    def opening(name: str, direction: str, host: str, guest: str, what: str) -> dict[str, Any]:
        return {"name": name, "direction": direction, "host": host, "guest": guest, "what": what}

    files = StateFiles(Path(state.directory))
    ways = {True: "a reverse SSH tunnel", False: "QEMU's guestfwd"}
    way = ways[own.hardened] if own else " or ".join(ways.values())
    proxy = running_proxy(state) or {}
    return [
        opening(
            "proxy", TO_HOST, _address(proxy.get("port")), f"{PROXY_ADDRESS}:{PROXY_PORT}",
            f"by {way}: the only address that answers the guest; what no line allows is blocked",
        ),
        opening(
            "ssh", TO_GUEST, _address(_ssh_port(state)), "port 22",
            "for vm up, vm ssh, vm secret and ports, by keys of this VM alone",
        ),
        opening("session", BOTH, "your terminal", "what runs in vm up, vm ssh",
                "what you type; what it writes, also control sequences"),
        opening("progress", TO_HOST, "vm up", f"virtio port {CHANNEL}",
                "how far its start is; vm up prints it without control sequences"),
        opening("console", TO_HOST, state.console, "ttyS0",
                "text of its kernel and services; vm logs escapes it"),
        opening("logs", TO_HOST, f"{files.blocked.name}, {files.log.name}", "its requests",
                "URLs and methods of its choice; vm blocked, vm watch and vm logs escape them"),
        opening("random", TO_GUEST, "the kernel's random numbers", "virtio-rng", "numbers only"),
        opening("seed", TO_GUEST, state.seed, "a read-only disk",
                "gitguardfs, the settings, the guest's own keys, the proxy's certificate"),
        opening("image", TO_GUEST, own.image if own else "an image", "below its disk",
                "read-only: the image, or the ready disk that was made from it"),
        opening("disk", BOTH, state.disk, "its disk", "the guest's own files"),
    ]  # fmt: skip


def through(state: State) -> str | None:
    """Return which company proxy the VM's proxy uses, or the next one will; None if none."""
    proxy = running_proxy(state)
    if proxy is not None:
        return proxy.get("through") or None
    text, error = tried(lambda: upstream_proxy.status(Path(state.directory)))
    return error or text or None


def _address(port: int | None) -> str:
    return f"127.0.0.1:{port}" if port else "a port of 127.0.0.1"


def _ssh_port(state: State) -> int | None:
    with suppress(qmp.NoAnswerError):
        return qmp.ssh_port(state)
    return None


def running_proxy(state: State) -> dict[str, Any] | None:
    """Return what the VM's proxy says of itself; None if none runs."""
    path = StateFiles(Path(state.directory)).proxy
    with suppress(OSError, UserError, ValueError, KeyError, TypeError, RecursionError):
        if is_held(str(path)):  # the proxy holds this lock while it lives
            fields: dict[str, Any] = json.loads(config_files.read(str(path)) or b"")
            return {**fields, "pid": int(fields["pid"])}
    return None
