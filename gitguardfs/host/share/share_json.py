"""The JSON object that ``gitguard share --json`` prints.

Every key is always there; its value is null or empty if it does not apply to the share. Commands
are lists of arguments. Keys may be added; a change that breaks a reader would raise ``format``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gitguardfs.host.share import guard_commands, libvirt, qemu, selinux, utm, virtiofsd
from gitguardfs.host.share.share_spec import GuardPlacement, Hypervisor, ShareSpec, Transport

FORMAT = 1


def as_object(
    spec: ShareSpec, running: bool, warnings: Sequence[str] = (), git: str | None = None
) -> dict[str, object]:
    """Return the share as an object that json can serialise; ``git`` is a line on the host's."""
    return {
        "format": FORMAT,
        "directory": spec.directory,
        "exported": spec.exported,
        "tag": spec.tag,
        "transport": spec.transport.value,
        "for": spec.hypervisor.value,
        "guard": _guard(spec, running),
        "selinux": selinux.commands(spec),
        "qemu": _qemu(spec) if spec.hypervisor is Hypervisor.QEMU else None,
        "virtiofsd": _virtiofsd(spec),
        "libvirt": _libvirt(spec) if spec.hypervisor is Hypervisor.LIBVIRT else None,
        "utm": _utm(spec) if spec.hypervisor is Hypervisor.UTM else None,
        "bundle": {
            "make": guard_commands.pack(),
            "copy": guard_commands.copy_to_guest(spec),
            "install": guard_commands.install_in_guest(),
        },
        "user": guard_commands.make_user(),
        "guest": guard_commands.start_in_guest(spec),
        "git": git,
        "warnings": list(warnings),
    }


def _guard(spec: ShareSpec, running: bool) -> dict[str, object]:
    on_host = spec.guard is GuardPlacement.HOST
    return {
        "on": spec.guard.value,
        "mountpoint": spec.mountpoint if on_host else None,
        "start": guard_commands.start_on_host(spec) if on_host else [],
        "stop": guard_commands.stop_on_host(spec) if on_host else None,
        "running": running,
    }


def _qemu(spec: ShareSpec) -> dict[str, object]:
    return {
        "create_disk": qemu.create_disk(spec),
        "install": qemu.install(spec),
        "run": qemu.run(spec),
        "arguments": qemu.share(spec),
        "network": spec.network.value,
        "login": qemu.login(),
    }


def _virtiofsd(spec: ShareSpec) -> dict[str, object] | None:
    if spec.hypervisor is not Hypervisor.QEMU or spec.transport is not Transport.VIRTIOFS:
        return None
    return {
        "socket": spec.socket,
        "command": virtiofsd.command(spec),
        "debian12": virtiofsd.alternative(spec),
    }


def _libvirt(spec: ShareSpec) -> dict[str, object]:
    return {
        "filesystem": libvirt.filesystem(spec),
        "memory_backing": libvirt.memory_backing(spec),
    }


def _utm(spec: ShareSpec) -> dict[str, object]:
    return {
        "backend": utm.BACKENDS[spec.transport],
        "settings": [{"place": place, "value": value} for place, value in utm.settings(spec)],
    }
