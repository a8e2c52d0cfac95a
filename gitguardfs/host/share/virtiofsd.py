"""Arguments of virtiofsd, which serves a virtiofs share to QEMU, as unquoted lists."""

from __future__ import annotations

from gitguardfs.base.errors import UserError
from gitguardfs.host.share.share_spec import GuardPlacement, ShareSpec
from gitguardfs.options.parsing import quote_o

PROGRAM = "/usr/libexec/virtiofsd"
"""The path of the daemon in Rust on Debian 13, Ubuntu and Fedora."""
PROGRAM_IN_C = "/usr/lib/qemu/virtiofsd"
"""The path of the daemon in C on Debian 12 and Ubuntu 22.04 (qemu-system-common)."""
PLACES = (PROGRAM, "/usr/lib/virtiofsd", PROGRAM_IN_C)
"""Where a daemon may be, the preferred one first; the second is Arch Linux's."""

QUEUE_SIZE = 1024
"""Entries of the device's queue: the size that virtiofsd and libvirt document. QEMU's default is
128."""

EVERY_ID = 2**32 - 1
"""How many ids there are: all but the last, which means "no id" (chown(2))."""


def command(spec: ShareSpec) -> list[str]:
    """Return the command of this host's daemon, by default the one in Rust. Raises UserError."""
    if spec.host.virtiofsd != PROGRAM_IN_C:
        return _in_rust(spec)
    words = c_daemon_command(spec)
    if words is None:
        raise UserError(
            f"{PROGRAM_IN_C} must run as root, and root cannot enter your guarded view",
            "--transport 9p, or run this command as root",
        )
    return words


def alternative(spec: ShareSpec) -> list[str] | None:
    """Return the command of the daemon in C for a host whose daemon is unknown; otherwise None.

    Also None if that daemon cannot serve the share.
    """
    return c_daemon_command(spec) if spec.host.virtiofsd is None else None


def _in_rust(spec: ShareSpec) -> list[str]:
    """Return the command of the daemon in Rust, to be run by the user who shares.

    No ``--tag``: QEMU has its own, and QEMU 7.1 to 8.0 crash if the daemon has one.
    """
    return [
        spec.host.virtiofsd or PROGRAM,
        f"--socket-path={spec.socket}",
        f"--shared-dir={spec.exported}",
        "--cache=auto",
        "--announce-submounts",
        *_translation(spec),
    ]


def _translation(spec: ShareSpec) -> list[str]:
    """Return the options that map all ids of the guest to a user, who can make no other files."""
    if spec.host.is_root:
        return []
    return [
        f"--translate-uid=squash-guest:0:{spec.host.uid}:{EVERY_ID}",
        f"--translate-gid=squash-guest:0:{spec.host.gid}:{EVERY_ID}",
    ]


def c_daemon_command(spec: ShareSpec) -> list[str] | None:
    """Return the command of the daemon in C, which needs root; the user's group gets its socket.

    None if it cannot serve: root may not enter a FUSE mount of another user.
    """
    if spec.guard is GuardPlacement.HOST and not spec.host.is_root:
        return None
    as_root = [] if spec.host.is_root else ["sudo"]
    socket = [] if spec.host.is_root else [f"--socket-group={spec.host.group}"]
    return [
        *as_root,
        PROGRAM_IN_C,
        f"--socket-path={spec.socket}",
        *socket,
        *("-o", f"source={quote_o(spec.exported)}"),
        *("-o", "cache=auto"),
        *("-o", "announce_submounts"),
    ]
