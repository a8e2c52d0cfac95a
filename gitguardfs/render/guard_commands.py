"""The commands that start and stop a guard: gitguardfs on the host, vm-mount in the guest."""

from __future__ import annotations

import os

from gitguardfs.render import quote, utm
from gitguardfs.render.share_spec import Hypervisor, ShareSpec, Transport

HOME = "~/"
"""For the guest's shell to expand: the host does not know the guest's user."""


def start_on_host(spec: ShareSpec) -> list[list[str]]:
    """Return the commands that start the guard on the host, in order.

    The parent directory is closed to other users of the host: a directory above the project may
    keep them out, and the view must as well. install also closes a parent that exists, where mkdir
    would not; for the mount point, install would change the mode of a mounted view.
    """
    parent = os.path.dirname(spec.mountpoint)
    return [
        ["install", "-d", "-m", "0700", parent],
        ["mkdir", "-p", "-m", "0700", spec.mountpoint],
        ["gitguardfs", *host_arguments(spec)],
    ]


def host_arguments(spec: ShareSpec) -> list[str]:
    """Return the arguments of gitguardfs. No seal: the host's user works in the directory."""
    return ["--no-seal", spec.directory, spec.mountpoint]


def stop_on_host(spec: ShareSpec) -> list[str]:
    """Return the command that unmounts the guard, to be run after the virtual machine ended."""
    if spec.host.is_root:
        return ["umount", spec.mountpoint]
    return ["fusermount3", "-u", spec.mountpoint]


def start_in_guest(spec: ShareSpec) -> list[str]:
    """Return the command that mounts and guards the share in the guest, as words.

    The path of ``--map-mount`` begins with ``~/``.
    """
    return [*_vm_mount(spec), HOME + _name(spec)]


def start_in_guest_shell(spec: ShareSpec) -> str:
    """Return the same command for the guest's shell, which expands the ``~``."""
    return f"{quote.shell(_vm_mount(spec))} {HOME}{quote.shell([_name(spec)])}"


def _vm_mount(spec: ShareSpec) -> list[str]:
    return ["sudo", "vm-mount", "--tag", spec.tag, "--map-mount"]


def _name(spec: ShareSpec) -> str:
    """Return the view's path in the home of the guest's user."""
    if spec.hypervisor is Hypervisor.UTM and spec.transport is Transport.VIRTIOFS:
        return utm.GUEST_NAME
    return spec.name
