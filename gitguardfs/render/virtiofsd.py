"""The daemon that serves a virtiofs share to QEMU. Lists of arguments, before any shell."""

from __future__ import annotations

from gitguardfs.host.spec import Guard, ShareSpec
from gitguardfs.render import quote

PROGRAM = "/usr/libexec/virtiofsd"
"""The daemon in Rust, where Debian 13, Ubuntu and Fedora have it."""
PROGRAM_IN_C = "/usr/lib/qemu/virtiofsd"
"""The daemon of Debian 12, in qemu-system-common."""

EVERY_ID = 2**32 - 1
"""All ids but the last, which stands for none (chown(2))."""


def command(spec: ShareSpec) -> list[str]:
    """The daemon in Rust, as the user who shares.

    No ``--tag``: QEMU has its own, and versions 7.1 to 8.0 crash at the daemon's.
    """
    return [
        PROGRAM,
        f"--socket-path={spec.socket}",
        f"--shared-dir={spec.exported}",
        "--cache=auto",
        "--announce-submounts",
        *_translation(spec),
    ]


def _translation(spec: ShareSpec) -> list[str]:
    """A user can make files only as himself: whatever the guest asks for becomes that."""
    if spec.host.is_root:
        return []
    return [
        f"--translate-uid=squash-guest:0:{spec.host.uid}:{EVERY_ID}",
        f"--translate-gid=squash-guest:0:{spec.host.gid}:{EVERY_ID}",
    ]


def command_in_c(spec: ShareSpec) -> list[str] | None:
    """The daemon in C, which must be root; its socket is opened to the user's group.

    None where it cannot serve: root may not enter a FUSE mount of another user.
    """
    if spec.guard is Guard.HOST and not spec.host.is_root:
        return None
    as_root = [] if spec.host.is_root else ["sudo"]
    socket = [] if spec.host.is_root else [f"--socket-group={spec.host.group}"]
    return [
        *as_root,
        PROGRAM_IN_C,
        f"--socket-path={spec.socket}",
        *socket,
        *("-o", f"source={quote.mount_option(spec.exported)}"),
        *("-o", "cache=auto"),
        *("-o", "announce_submounts"),
    ]
