"""A share's commands and settings, as text for a person and as an object for a program.

``share_settings.txt`` holds them in sections, and ``share.txt`` the text around them. In the object
every key is always there; its value is null or empty if it does not apply to the share. Commands
are lists of arguments. Keys may be added; a change that breaks a reader raises ``format``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from gitguardfs.base import installation, quote
from gitguardfs.base.constants import AGENT_HOME, UTM_TAG
from gitguardfs.base.errors import UserError
from gitguardfs.host.share import qemu, selinux
from gitguardfs.host.share.share_spec import (
    GuardPlacement,
    Hypervisor,
    MachineNetwork,
    ShareSpec,
    Transport,
)
from gitguardfs.host.share.template import fill
from gitguardfs.options.parsing import quote_o

FORMAT = 1
UTM_VIEW = "share"
"""The guest's directory for a virtiofs share of UTM, whose root lists the shared directories."""
VIRTIOFSD = "/usr/libexec/virtiofsd"
"""The path of the daemon in Rust on Debian 13, Ubuntu and Fedora."""
VIRTIOFSD_IN_C = "/usr/lib/qemu/virtiofsd"
"""The path of the daemon in C on Debian 12 and Ubuntu 22.04 (qemu-system-common)."""
VIRTIOFSD_PLACES = (VIRTIOFSD, "/usr/lib/virtiofsd", VIRTIOFSD_IN_C)
"""Paths where a daemon may be, the preferred one first; the second is Arch Linux's."""


def settings(spec: ShareSpec) -> dict[str, str]:
    """Return the sections of the file ``share_settings.txt`` by name. Raises UserError."""
    facts = _facts(spec)
    if facts >= {"qemu", "virtiofs", "daemon-in-c"} and not _c_daemon_serves(spec):
        raise UserError(
            f"{VIRTIOFSD_IN_C} must run as root, and root cannot enter your guarded view",
            "--transport 9p, or run this command as root",
        )
    found = _values(spec)
    _, *parts = re.split(
        r"(?m)^\[(\w+)\]\n", installation.text("host/share/files/share_settings.txt")
    )
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    for name, text in sections.items():
        found[name] = fill(text, facts, found).removesuffix("\n")
    return found


def start_on_host(spec: ShareSpec) -> list[str]:
    """Return the command that starts the guard on the host; its directories are there already."""
    return commands(settings(spec)["start"])[-1]


def stop_on_host(spec: ShareSpec) -> list[str]:
    """Return the command that unmounts the guard on the host, after the machine has ended."""
    return commands(settings(spec)["stop"])[0]


def commands(text: str) -> list[list[str]]:
    """Return the commands in a section, as lists of arguments."""
    return [shlex.split(line) for line in text.replace("\\\n", "").splitlines()]


def as_text(spec: ShareSpec, running: bool, git: str | None = None) -> str:
    """Return the steps of the user in their order; ``git`` is a line on the host's git."""
    more = {"running": running, "git": bool(git)}
    facts = _facts(spec) | {name for name, holds in more.items() if holds}
    values = {**settings(spec), "git": git}
    return fill(installation.text("host/share/files/share.txt"), facts, values)


def as_object(
    spec: ShareSpec, running: bool, warnings: Sequence[str] = (), git: str | None = None
) -> dict[str, object]:
    """Return the share as an object that json can serialise; ``git`` is a line on the host's."""
    text = settings(spec)
    facts = _facts(spec)
    on_host = "guard-on-host" in facts

    def command(name: str) -> list[str]:
        return commands(text[name])[0]

    guard = {
        "on": spec.guard.value,
        "mountpoint": spec.mountpoint if on_host else None,
        "start": commands(text["start"]) if on_host else [],
        "stop": command("stop") if on_host else None,
        "running": running,
    }
    machine = {name: command(name) for name in ("create_disk", "install", "run", "arguments")}
    daemon = {
        "socket": spec.socket,
        "command": command("virtiofsd_in_c" if "daemon-in-c" in facts else "virtiofsd"),
        "debian12": command("virtiofsd_in_c") if "daemon-unknown" in facts else None,
    }
    lines = (re.split(" {2,}", line, maxsplit=1) for line in text["settings"].splitlines())
    utm = {
        "backend": text["backend"],
        "settings": [{"place": place, "value": value} for place, value in lines],
    }
    libvirt = {
        "filesystem": text["filesystem"],
        "channel": None if on_host else text["channel"],
        "memory_backing": text["memory_backing"] or None,
    }
    return {
        "format": FORMAT,
        "directory": spec.directory,
        "exported": spec.exported,
        "tag": spec.tag,
        "transport": spec.transport.value,
        "for": spec.hypervisor.value,
        "guard": guard,
        "selinux": commands(text["selinux"]) if spec.host.selinux else [],
        "qemu": machine | {"network": spec.network.value, "login": command("login")}
        if "qemu" in facts
        else None,
        "virtiofsd": daemon if facts >= {"qemu", "virtiofs"} else None,
        "libvirt": libvirt if "libvirt" in facts else None,
        "utm": utm if "utm" in facts else None,
        "bundle": {
            "make": command("pack"),
            "copy": command("copy"),
            "install": commands(text["unpack"]),
        },
        "user": command("user"),
        "watch": command("watch") if text["watch"] else None,
        "guest": command("guest"),
        "git": git,
        "warnings": list(warnings),
    }


def _facts(spec: ShareSpec) -> set[str]:
    host = spec.host
    every = {
        "guard-on-host": spec.guard is GuardPlacement.HOST,
        "restricted": spec.network is MachineNetwork.RESTRICTED,
        "root": host.is_root,
        "selinux": host.selinux,
        "mac": host.is_mac,
        "arm": host.is_arm,
        "firmware": host.firmware is not None,
        "daemon-in-c": host.virtiofsd == VIRTIOFSD_IN_C,
        "daemon-unknown": host.virtiofsd is None and _c_daemon_serves(spec),
    }
    return {spec.hypervisor.value, spec.transport.value} | {one for one in every if every[one]}


def _c_daemon_serves(spec: ShareSpec) -> bool:
    """Return whether the daemon in C can: as root, it enters no FUSE mount of another user."""
    return spec.guard is not GuardPlacement.HOST or spec.host.is_root


def _values(spec: ShareSpec) -> dict[str, str]:
    """Return the values of $NAMEs, quoted for a shell, and by their first word for a target."""
    is_list_of_shares = spec.hypervisor is Hypervisor.UTM and spec.transport is Transport.VIRTIOFS
    view = f"{AGENT_HOME}/{UTM_VIEW if is_list_of_shares else spec.name}"
    plain = {
        "changes": spec.changes,
        "directory": spec.directory,
        "exported": spec.exported,
        "firmware": spec.host.firmware or qemu.FIRMWARE,
        "group": spec.host.group,
        "id": qemu.device_id(spec.tag),
        "disk": spec.disk_path,
        "mountpoint": spec.mountpoint,
        "o_exported": quote_o(spec.exported),
        "parent": os.path.dirname(spec.mountpoint),
        "qemu_disk": quote.qemu(spec.disk_path),
        "qemu_socket": quote.qemu(spec.socket),
        "qemu_tag": quote.qemu(spec.tag),
        "second_tag": UTM_TAG if spec.hypervisor is Hypervisor.UTM else "setup",
        "socket": spec.socket,
        "tag": spec.tag,
        "view": view,
        "virtiofsd": spec.host.virtiofsd or VIRTIOFSD,
    }
    return {
        **{name: shlex.quote(value) for name, value in plain.items()},
        "uid": str(spec.host.uid),
        "gid": str(spec.host.gid),
        "changes_port": shlex.join(qemu.changes_port(spec.changes)),
        "cpus": str(spec.cpus),
        "memory": str(spec.memory),
        "label": "\n".join(map(shlex.join, selinux.label(spec.directory))),
        "p9_share": shlex.join(qemu.p9_share(spec.exported, spec.tag)),
        "plain_directory": spec.directory,
        "plain_view": f"{view}/{spec.name}",
        "xml_exported": quote.xml(spec.exported),
        "xml_tag": quote.xml(spec.tag),
    }
