"""The user's request, and the plan that mounts the raw share (the first plan). Pure.

There are two plans because the owner of a share is known only after it is mounted. ``plan_guard``
has the second one. A plan without steps means that nothing is to do.
"""

from __future__ import annotations

import os
import re
import shlex
import urllib.parse
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from gitguardfs.base.constants import UTM_TAG
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest.facts import Facts, SystemPaths, Tags
from gitguardfs.guest.mountpoint import Mountpoint
from gitguardfs.guest.steps_files import MakeDirectories, MakePrivate
from gitguardfs.guest.steps_mount import MountShare
from gitguardfs.guest.transaction import Step
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.programs import Ids
from gitguardfs.linux.safe_open import PathComponent
from gitguardfs.mounting import preflight
from gitguardfs.names.rules import GitMode
from gitguardfs.options.guarded_share import (
    Cache,
    GuardedShare,
    check_guard_options,
    check_tag,
    git_mode,
    share_options,
)
from gitguardfs.options.parsing import parse_o, quote_o

Style = Literal["fstab", "systemd", "none"]
"""What mounts share and view at the next boot."""


@dataclass(frozen=True)
class MountRequest:
    """What the user asks for, validated; paths are resolved."""

    tag: str
    mount: Mountpoint
    map_mount: Mountpoint
    user: Ids
    style: Style
    transport: str | None = None
    options: tuple[str, ...] = ()
    git_off: bool = False
    """Guard nothing: .git stays open."""

    def __post_init__(self) -> None:
        check_tag(self.tag, self.transport)
        check_not_of_the_system(self.map_mount.path)
        if "map" in self._parsed:
            raise UserError(
                "the option map cannot be given with -o",
                "leave it out: the share's owner is shown as --user",
            )
        check_guard_options(self.options)
        if self.policy is GitMode.OFF and not self.git_off:
            raise UserError(
                "git=off leaves .git open to the agent: nothing would guard it",
                "leave it out; --git-off if that is what you want",
            )
        if self.git_off and self.policy is not GitMode.OFF:
            raise UserError(f"--git-off and git={self.policy.value} contradict one another")
        if "fsname" in self._parsed:
            raise UserError("fsname would hide what is guarded", "leave it out")

    def close(self) -> None:
        """Close the descriptors of both paths."""
        self.mount.close()
        self.map_mount.close()

    @cached_property
    def _parsed(self) -> dict[str, object]:
        """Return the values of ``options`` by their names."""
        return parse_o([quote_o(option) for option in self.options])

    @property
    def policy(self) -> GitMode:
        """Return the policy for .git."""
        return git_mode(self.options)

    @property
    def is_sealed(self) -> bool:
        """Return whether the raw share is to be sealed."""
        return self._parsed.get("seal") is not False

    def check_empty(self, place: Mountpoint) -> None:
        """Raise UserError for a mount point that is not empty, unless that was asked for."""
        if not self._parsed.get("nonempty"):
            preflight.check_empty(place.path, place.is_empty)


_HOME = re.compile(r"/(var/)?home/[^/]+", re.DOTALL)  # Silverblue has its homes in /var
_SYSTEM = re.compile(
    r"/([^/]+)?"  # / and its direct children
    r"|/(etc|usr|bin|sbin|lib[^/]*|boot|dev|proc|sys|run)/.*"
    r"|/var/[^/]+",
    re.DOTALL,
)


def check_not_of_the_system(path: str) -> None:
    """Raise UserError for a directory that the system needs: /, /etc/..., a home."""
    if _HOME.fullmatch(path):
        raise UserError(
            f"{path} is a home directory, which a mount would hide",
            f"choose a directory in it: {shlex.quote(path)}/projects",
        )
    if _SYSTEM.fullmatch(path):
        raise UserError(
            f"{path} is a directory of the system, which a mount would hide",
            "choose another: /home/USER/projects, /srv/projects, /mnt/projects",
        )


def default_tag(facts: Facts) -> str:
    """Return the default tag: UTM's, if it is the only one. Raises UserError otherwise."""
    known = {*facts.tags.p9, *(facts.tags.virtiofs or ())}
    hidden = facts.tags.virtiofs is None and facts.tags.has_virtiofs_device
    if known == {UTM_TAG} or (not known and hidden):
        return UTM_TAG
    raise UserError(f"which share? The kernel sees: {facts.tags.listing()}", _hint(facts.tags))


def _hint(tags: Tags) -> str:
    if tags.p9 or tags.virtiofs or tags.has_virtiofs_device:
        return "--tag TAG"
    return "start the VM with a share; gitguard share, on the host, prints how"


def default_mount(system: SystemPaths, tag: str) -> str:
    """Return the default mount point of a share, in a directory that only root can enter."""
    return os.path.join(system.shares, directory_name(tag))


def directory_name(tag: str) -> str:
    """Return the name of the directory for a tag in ``SystemPaths.shares``."""
    name = urllib.parse.quote(tag, safe="", errors="surrogateescape")
    return name.replace(".", "%2E") if not name.strip(".") else name


# The share


def share_steps(system: SystemPaths, facts: Facts, request: MountRequest) -> list[Step]:
    """Return the steps that mount the share; none if it is mounted.

    Raises UserError if it cannot be mounted, or could not be closed to others there.
    """
    mount = request.mount.path
    _check_place(request)
    present = facts.share_at(mount)
    _check_not_elsewhere(facts, request, present)
    if present is not None:
        if present.source != request.tag:
            raise UserError(f"{mount} shows the share {present.source}", "choose another --mount")
        check_not_covered(facts, present)
        return []
    top = mountinfo.top_at(mount, facts.mounts)
    if top is not None:
        raise UserError(f"{top.fstype} is mounted at {mount}", "choose another --mount")
    check_not_of_the_system(mount)
    _check_closed(mount, request.mount.components)
    request.check_empty(request.mount)
    transports = facts.tags.transports_of(request.tag)
    if request.transport is not None:
        transports = tuple(transport for transport in transports if transport == request.transport)
    if not transports:
        raise UserError(
            f"there is no share {request.tag!r}"
            f"{f' of type {request.transport}' if request.transport else ''};"
            f" the kernel sees: {facts.tags.listing()}",
            _hint(facts.tags),
        )
    commands = tuple(
        mount_command(system, transport, request.tag, mount) for transport in transports
    )
    return [
        *_private_directory(system, request),
        *make(request.mount, root=True),
        MountShare(commands, mount, request.is_sealed, system.kernel_log),
    ]


def check_not_covered(facts: Facts, share: MountInfo) -> None:
    """Raise UserError if a mount that is not a seal covers a share."""
    cover = facts.cover_of(share)
    if cover is not None:
        path = share.path
        raise UserError(
            f"{cover.fstype} ({cover.source}) is mounted over the share at {path}",
            f"see findmnt {shlex.quote(path)}, and unmount that first",
            Exit.MOUNT,
        )


def _check_place(request: MountRequest) -> None:
    """Refuse a mount point of the raw share that an ordinary user could bypass or move."""
    mount = request.mount.path
    _check_closed(mount, request.mount.parents)
    # What is missing above the mount point will be made private.
    is_private = len(request.mount.missing) > 1
    is_private |= any(not above.mode & 0o011 for above in request.mount.parents)
    if not request.is_sealed and not is_private:
        raise UserError(
            f"without a seal everybody can read the raw share at {mount}",
            "leave no-seal out, or leave --mount out: the default is below a private directory",
        )


def _check_closed(mount: str, components: tuple[PathComponent, ...]) -> None:
    for found in components:
        if not found.only_root_writes:
            raise UserError(
                f"the raw share cannot be closed off at {mount}: others can change {found.path}",
                "leave --mount out, or give a place below directories that only root can change",
            )


def _check_not_elsewhere(facts: Facts, request: MountRequest, present: MountInfo | None) -> None:
    """Refuse if the share is mounted elsewhere too: by its tag, or as a bind mount of any part."""
    for share in facts.shares():
        where = share.path
        is_same = present is not None and share.device == present.device
        if where != request.mount.path and (is_same or share.source == request.tag):
            hint = f"umount {shlex.quote(where)}"
            if present is None:
                tag = shlex.quote(request.tag)
                hint = f"--mount {shlex.quote(where)}, or vm-mount --remove --tag {tag}"
            raise UserError(
                f"the share {request.tag} is mounted at {where} already", hint, Exit.MOUNT
            )


def _private_directory(system: SystemPaths, request: MountRequest) -> list[Step]:
    if os.path.dirname(request.mount.path) != system.shares:
        return []
    for found in request.mount.components:
        if found.path == system.shares and found.mode & 0o077:
            return [MakePrivate(found.path, found.mode)]
    return []


def make(mountpoint: Mountpoint, *, root: bool, user: Ids = (0, 0)) -> list[Step]:
    """Return the steps that make a missing mount point, for root alone or owned by the user."""
    if not mountpoint.missing:
        return []
    if root or all(above.only_root_writes for above in mountpoint.components):
        mode = 0o700 if root else 0o755
        return [MakeDirectories(mountpoint.missing, user, mode=mode, fd=mountpoint.fd)]
    nearest = mountpoint.components[-1]
    if nearest.uid != user[0]:
        raise UserError(
            f"{mountpoint.path} cannot be made for user {user[0]}:"
            f" {nearest.path} belongs to another user",
            f"make the directory first: mkdir {shlex.quote(mountpoint.path)}",
        )
    return [MakeDirectories(mountpoint.missing, user, by=user, fd=mountpoint.fd)]


def mount_command(system: SystemPaths, transport: str, tag: str, mount: str) -> tuple[str, ...]:
    """Return the command that mounts a share."""
    options = ",".join(share_options(transport, Cache.NONE))
    return (system.mount, "-t", transport, "-o", options, "--", tag, mount)


# The guard, as far as it is known before that


def with_owner(request: MountRequest, transport: str, the_map: str) -> GuardedShare:
    """Return the spec of the guarded share, for a share's type and an id map."""
    return GuardedShare(
        tag=request.tag,
        transport=transport,
        mount=request.mount.path,
        map_mount=request.map_mount.path,
        map=the_map,
        options=request.options,
        cache=Cache.NONE,
    )


def without_unmounted(facts: Facts, request: MountRequest) -> Facts:
    """Return the facts as they would be after the share is mounted, to plan ahead."""
    transport = request.transport or next(iter(facts.tags.transports_of(request.tag)), "9p")
    share = MountInfo(
        device="", mount_point=os.fsencode(request.mount.path), fstype=transport, source=request.tag
    )
    return replace(facts, mounts=(*facts.mounts, share))
