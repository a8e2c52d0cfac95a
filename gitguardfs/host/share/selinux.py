"""Commands that let a QEMU confined by SELinux use the share (selinux(8), qemu_selinux(8))."""

from __future__ import annotations

from gitguardfs.base import quote
from gitguardfs.host.share.share_spec import GuardPlacement, ShareSpec

LABEL = "svirt_home_t"
"""The label of files that confined machines may read and write, also in home directories."""
BOOLEAN = "virt_use_fusefs"
"""Allows machines to use FUSE mounts, all of which have the same label."""


def commands(spec: ShareSpec) -> list[list[str]]:
    """Return the commands in their order; an empty list if SELinux is off."""
    if not spec.host.selinux:
        return []
    if spec.guard is GuardPlacement.HOST:
        return [["sudo", "setsebool", "-P", BOOLEAN, "on"]]
    return label(spec.directory)


def label(directory: str) -> list[list[str]]:
    """Return the commands that label a directory; files made there later inherit the label."""
    pattern = f"{quote.file_context(directory)}(/.*)?"
    return [
        ["sudo", "semanage", "fcontext", "-a", "-t", LABEL, pattern],
        ["sudo", "restorecon", "-R", directory],
    ]
