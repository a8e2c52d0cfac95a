"""The commands around a guard: gitguardfs on the host; in the guest from install.sh to vm-mount."""

from __future__ import annotations

import os

from gitguardfs.base.constants import AGENT, AGENT_HOME
from gitguardfs.host.share import qemu, utm
from gitguardfs.host.share.share_spec import Hypervisor, ShareSpec, Transport

BUNDLE = "gitguardfs.tar"
UNPACKED = "gitguardfs"
"""The directory in a bundle (installation.bundle)."""


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


def pack(file: str = BUNDLE) -> list[str]:
    """Return the command of the host that packs gitguardfs for a guest."""
    return ["gitguard", "share", "--bundle", file]


def copy_to_guest(spec: ShareSpec) -> list[str]:
    """Return the command that copies the packed gitguardfs into a guest with an ssh server."""
    if spec.hypervisor is Hypervisor.QEMU:
        return qemu.copy(BUNDLE)
    return ["scp", BUNDLE, "USER@GUEST:"]


def install_in_guest(file: str = BUNDLE) -> list[list[str]]:
    """Return the commands of the guest that install what ``pack`` has packed."""
    return [["tar", "-xf", file], ["sudo", f"./{UNPACKED}/guest-setup/install.sh"]]


def make_user() -> list[str]:
    """Return the command of the guest that makes the agent's user, who has no sudo."""
    return ["sudo", "useradd", "-m", "-s", "/bin/bash", AGENT]


def start_in_guest(spec: ShareSpec) -> list[str]:
    """Return the command that mounts and guards the share in the guest, in the agent's home."""
    place = f"{AGENT_HOME}/{_name(spec)}"
    return ["sudo", "vm-mount", "--tag", spec.tag, "--map-mount", place]


def _name(spec: ShareSpec) -> str:
    """Return the view's name in the home of the agent's user."""
    if spec.hypervisor is Hypervisor.UTM and spec.transport is Transport.VIRTIOFS:
        return utm.GUEST_NAME
    return spec.name
