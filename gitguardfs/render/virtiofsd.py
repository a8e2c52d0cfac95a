"""The daemon that serves a virtiofs share to QEMU. Lists of arguments, before any shell."""

from __future__ import annotations

from gitguardfs.errors import UserError
from gitguardfs.options.parsing import quote_o
from gitguardfs.render.share_spec import Guard, ShareSpec

PROGRAM = "/usr/libexec/virtiofsd"
"""The daemon in Rust, where Debian 13, Ubuntu and Fedora have it."""
PROGRAM_IN_C = "/usr/lib/qemu/virtiofsd"
"""The daemon of Debian 12 and Ubuntu 22.04, in qemu-system-common."""
PLACES = (PROGRAM, "/usr/lib/virtiofsd", PROGRAM_IN_C)
"""Where to look for one, the better first; the second is Arch Linux's."""

EVERY_ID = 2**32 - 1
"""All ids but the last, which stands for none (chown(2))."""


def command(spec: ShareSpec) -> list[str]:
    """The daemon that this host has, or in Rust if that is not known. Raises UserError."""
    if spec.host.virtiofsd != PROGRAM_IN_C:
        return _in_rust(spec)
    words = command_in_c(spec)
    if words is None:
        raise UserError(
            f"{PROGRAM_IN_C} must be root, and root may not enter your guarded view",
            "--transport 9p, or run this command as root",
        )
    return words


def alternative(spec: ShareSpec) -> list[str] | None:
    """The daemon in C, for a host that may have that one; None where it cannot serve."""
    return command_in_c(spec) if spec.host.virtiofsd is None else None


def _in_rust(spec: ShareSpec) -> list[str]:
    """The daemon in Rust, as the user who shares.

    No ``--tag``: QEMU has its own, and versions 7.1 to 8.0 crash at the daemon's.
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
        *("-o", f"source={quote_o(spec.exported)}"),
        *("-o", "cache=auto"),
        *("-o", "announce_submounts"),
    ]
