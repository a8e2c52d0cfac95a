"""Commands that let a QEMU confined by SELinux use what is shared (selinux(8), qemu_selinux)."""

from __future__ import annotations

from gitguardfs.render import quote
from gitguardfs.render.share_spec import Guard, ShareSpec

LABEL = "svirt_home_t"
"""What confined machines may read and write, also within home directories."""
BOOLEAN = "virt_use_fusefs"
"""A FUSE mount has one label for all, so the machines are allowed to use it instead."""


def commands(spec: ShareSpec) -> list[list[str]]:
    """What to run, in this order; nothing where SELinux is off."""
    if not spec.host.selinux:
        return []
    if spec.guard is Guard.HOST:
        return [["sudo", "setsebool", "-P", BOOLEAN, "on"]]
    return label(spec.directory)


def label(directory: str) -> list[list[str]]:
    """What gives a directory, and what comes into it later, the label."""
    pattern = f"{quote.file_context(directory)}(/.*)?"
    return [
        ["sudo", "semanage", "fcontext", "-a", "-t", LABEL, pattern],
        ["sudo", "restorecon", "-R", directory],
    ]
