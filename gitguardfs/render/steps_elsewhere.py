"""The command to run in the guest: it mounts the share and guards it."""

from __future__ import annotations

from gitguardfs.render import quote, utm
from gitguardfs.render.share_spec import Hypervisor, ShareSpec, Transport

HOME = "~/"
"""For the guest's shell to expand: the host does not know the guest's user."""


def command(spec: ShareSpec) -> list[str]:
    """Return the command as words; the path of ``--map-mount`` begins with ``~/``."""
    return [*_command(spec), HOME + _name(spec)]


def shell(spec: ShareSpec) -> str:
    """Return the command for the guest's shell, which expands the ``~``."""
    return f"{quote.shell(_command(spec))} {HOME}{quote.shell([_name(spec)])}"


def _command(spec: ShareSpec) -> list[str]:
    return [
        *("sudo", "vm-mount"),
        *("--tag", spec.tag),
        "--map-mount",
    ]


def _name(spec: ShareSpec) -> str:
    if spec.hypervisor is Hypervisor.UTM and spec.transport is Transport.VIRTIOFS:
        return utm.GUEST_NAME
    return spec.name
