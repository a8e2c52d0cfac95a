"""Commands that let a QEMU confined by SELinux use a share (selinux(8), qemu_selinux(8))."""

from __future__ import annotations

from gitguardfs.base import quote

ENFORCE = "/sys/fs/selinux/enforce"
"""The file that is there while SELinux is on."""
LABEL = "svirt_home_t"
"""The label of files that confined machines may read and write, also in home directories."""


def label(directory: str) -> list[list[str]]:
    """Return the commands that label a directory; files made there later inherit the label."""
    pattern = f"{quote.file_context(directory)}(/.*)?"
    return [
        ["sudo", "semanage", "fcontext", "-a", "-t", LABEL, pattern],
        ["sudo", "restorecon", "-R", directory],
    ]
