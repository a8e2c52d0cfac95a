"""What crosses the border between this machine and a VM, as data: for ``vm status``.

All that leads in or out is here: a way that is not would be one that the user does not know.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from gitguardfs import config_files
from gitguardfs.credentials import secrets
from gitguardfs.egress import requests, upstream_proxy, usage
from gitguardfs.egress.allowlist import Allowlist
from gitguardfs.egress.files import StateFiles, read_allowlist
from gitguardfs.errors import UserError
from gitguardfs.vm import ports, provision, qmp
from gitguardfs.vm.qemu_command import CHANNEL, PROXY_ADDRESS, PROXY_PORT
from gitguardfs.vm.settings import Settings
from gitguardfs.vm.state import State, is_held

TO_GUEST, TO_HOST, BOTH = "to guest", "to host", "both"
"""Directions in which data can pass."""


def found(state: State, own: Settings) -> dict[str, Any]:
    """Return what crosses the border, or would if the VM ran. Its keys are in docs/vm.md.

    Raises OSError.
    """
    try:
        listed, error = secrets.listed(Path(state.directory)), None
    except UserError as problem:
        listed, error = [], str(problem)
    return {
        "shares": [_share(own)],
        "ports": _ports(state, own),
        "secrets": [
            {"name": name, "hosts": list(hosts), "where": where} for name, hosts, where in listed
        ],
        "secrets_error": error,
        "allowlist": _allowlist(StateFiles(Path(state.directory))),
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


def _ports(state: State, own: Settings) -> list[dict[str, Any]]:
    opened = ports.opened(state)
    taken = {one.port.here for one in opened}
    waiting = [port for port in map(ports.parsed, own.publish) if port.here not in taken]
    return [
        {"host_port": port.here, "guest_port": port.there, "by": by, "open": is_open}
        for port, by, is_open in (
            *((one.port, one.by, True) for one in opened),
            *((port, ports.PUBLISH, False) for port in waiting),
        )
    ]


def _allowlist(files: StateFiles) -> dict[str, Any]:
    used = usage.read(files.usage)
    try:
        allowlist, error = Allowlist.parse(read_allowlist(files)), None
    except UserError as problem:
        allowlist, error = Allowlist(), str(problem)
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


def _openings(state: State, own: Settings) -> list[dict[str, Any]]:
    def opening(name: str, direction: str, host: str, guest: str, what: str) -> dict[str, Any]:
        return {"name": name, "direction": direction, "host": host, "guest": guest, "what": what}

    files = StateFiles(Path(state.directory))
    way = "a reverse SSH tunnel" if own.hardened else "QEMU's guestfwd"
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
        opening("image", TO_GUEST, own.image, "below its disk",
                "read-only: the image, or the ready disk that was made from it"),
        opening("disk", BOTH, state.disk, "its disk", "the guest's own files"),
    ]  # fmt: skip


def through(state: State) -> str | None:
    """Return which company proxy the VM's proxy uses, or the next one will; None if none."""
    proxy = running_proxy(state)
    if proxy is not None:
        return proxy.get("through") or None
    return upstream_proxy.status(Path(state.directory)) or None


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
