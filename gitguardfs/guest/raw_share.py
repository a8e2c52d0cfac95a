"""Mounts the raw share, sealed from the start, and unmounts it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import closing
from functools import partial

from gitguardfs.base.constants import SHARE_TYPES
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest import mountpoint
from gitguardfs.guest.changes import Changes
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.request import MountRequest, check_not_of_the_system
from gitguardfs.linux import mountinfo
from gitguardfs.linux.kernel_log import KernelLog
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.programs import call
from gitguardfs.linux.safe_open import PathComponent
from gitguardfs.mounting import seal
from gitguardfs.mounting.sealed_mount import mount_covered
from gitguardfs.mounting.unmount import remove_seals, seal_or_unmount, unmount_share
from gitguardfs.options.guarded_share import share_options


def mount(changes: Changes, system: SystemPaths, facts: Facts, request: MountRequest) -> bool:
    """Mount the share; return False if it is mounted there already.

    Raises UserError if it cannot be mounted, or could not be closed to others there.
    """
    path = request.mount.path
    _check_closed_to_others(system, request)
    present = facts.share_at(path)
    _check_not_elsewhere(facts, request, present)
    if present is not None:
        if present.source != request.tag:
            raise UserError(f"{path} shows the share {present.source}", "choose another --mount")
        check_not_covered(facts, present)
        return False
    top = mountinfo.top_at(path, facts.mounts)
    if top is not None:
        raise UserError(f"{top.fstype} is mounted at {path}", "choose another --mount")
    check_not_of_the_system(path)
    _check_only_root_writes(path, request.mount.components)
    request.check_empty(request.mount)
    commands = [
        _mount_command(system, transport, request.tag, path)
        for transport in facts.tags.transports_of(request.tag, request.transport)
    ]
    mountpoint.make_missing(changes, request.mount, (0, 0), mode=0o700)
    covered = " (below a seal from the start)" if request.is_sealed else ""
    changes.make(
        "\n  or ".join(f"{shlex.join(command)}{covered}" for command in commands),
        partial(_try_each, commands, path, request.is_sealed, system.kernel_log),
        partial(_unmount_all_at, path),
    )
    return True


def _mount_command(system: SystemPaths, transport: str, tag: str, path: str) -> tuple[str, ...]:
    options = ",".join(share_options(transport))
    return (system.mount, "-t", transport, "-o", options, "--", tag, path)


def _try_each(
    commands: Sequence[tuple[str, ...]], path: str, is_sealed: bool, kernel_log: str
) -> None:
    """Run the commands until one succeeds; it decides the share's transport. Raises UserError."""
    reasons = []
    with closing(KernelLog(kernel_log)) as log:
        for command in commands:
            try:
                mount_raw(command, path, is_sealed)
            except UserError as error:
                _unmount_all_at(path)  # mount(8) may have failed after mounting
                reasons.append(_unknown_tag(log.lines()) or str(error))
            else:
                return
    hint = "dmesg | grep virtio" if any("virtiofs" in command for command in commands) else ""
    raise UserError("cannot mount the share: " + "; ".join(reasons), hint, Exit.MOUNT)


def mount_raw(command: Sequence[str], path: str, is_sealed: bool) -> None:
    """Mount a share at ``path``; its seal is on before other processes see it. Raises UserError."""
    if is_sealed:
        mount_covered(lambda: call(command), path)
    else:
        call(command)


def _unmount_all_at(path: str) -> None:
    for found in reversed(mountinfo.listed()):
        if found.mount_point == os.fsencode(path) and found.fstype in SHARE_TYPES:
            unmount_share(found)


def _unknown_tag(lines: list[str]) -> str | None:
    """Return a message if the kernel log reports an unknown virtiofs tag; mount(8) only guesses."""
    for line in lines:
        if found := re.search(r"tag <(.*)> not found", line):
            return f"no device has the virtiofs tag {found[1]!r}, says the kernel"
    return None


def unmount(changes: Changes, system: SystemPaths, share: MountInfo, *, was_sealed: bool) -> None:
    """Unmount a share, and the seal that a daemon has left on it. UserError if it is busy."""
    path = share.path
    again = _mount_command(system, share.fstype, share.source, path)

    def mount_again() -> None:
        if mountinfo.current(share) is None:
            mount_raw(again, path, was_sealed)

    changes.make(f"umount -- {shlex.quote(path)}", lambda: unmount_share(share), mount_again)


def unseal(changes: Changes, path: str) -> None:
    """Remove the seal that a daemon has left on a share that stays mounted."""
    changes.make(
        f"umount {shlex.quote(path)}  # the seal",
        lambda: remove_seals(path),
        lambda: seal_or_unmount(path),
    )


def check_not_covered(facts: Facts, share: MountInfo) -> None:
    """Raise UserError if a mount other than a seal covers a share."""
    stack = [m for m in facts.mounts if m.mount_point == share.mount_point]
    for cover in stack[stack.index(share) + 1 :]:
        if not seal.is_seal(cover):
            raise UserError(
                f"{cover.fstype} ({cover.source}) is mounted over the share at {share.path}",
                f"see findmnt {shlex.quote(share.path)}, and unmount that first",
                Exit.MOUNT,
            )


def _check_closed_to_others(system: SystemPaths, request: MountRequest) -> None:
    """Refuse a mount point of the raw share that an ordinary user could bypass or move."""
    path, parents = request.mount.path, request.mount.parents
    _check_only_root_writes(path, parents)
    # What is missing above the mount point will be made private.
    if len(request.mount.missing) > 1 or any(not above.mode & 0o011 for above in parents):
        return
    if os.path.dirname(path) == system.shares:
        raise UserError(f"others can enter {system.shares}", f"chmod 700 {system.shares}")
    if not request.is_sealed:
        raise UserError(
            f"without a seal everybody can read the raw share at {path}",
            "leave no-seal out, or leave --mount out: the default is below a private directory",
        )


def _check_only_root_writes(path: str, components: tuple[PathComponent, ...]) -> None:
    for found in components:
        if not found.only_root_writes:
            raise UserError(
                f"the raw share cannot be closed off at {path}: others can change {found.path}",
                "leave --mount out, or give a place below directories that only root can change",
            )


def _check_not_elsewhere(facts: Facts, request: MountRequest, present: MountInfo | None) -> None:
    """Refuse if the share is mounted elsewhere too: by its tag, or as a bind mount of any part."""
    for share in facts.shares():
        is_same = present is not None and share.device == present.device
        if share.path != request.mount.path and (is_same or share.source == request.tag):
            there = shlex.quote(share.path)
            hint = f"umount {there}"
            if present is None:
                hint = f"--mount {there}, or vm-mount --remove --tag {shlex.quote(request.tag)}"
            raise UserError(
                f"the share {request.tag} is mounted at {share.path} already", hint, Exit.MOUNT
            )
