"""The user's request to vm-mount, and the places where a share or view must not be mounted."""

from __future__ import annotations

import os
import re
import shlex
import urllib.parse
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gitguardfs.base.constants import UTM_TAG
from gitguardfs.base.errors import UserError
from gitguardfs.guest.facts import SystemPaths, Tags
from gitguardfs.guest.mountpoint import Mountpoint
from gitguardfs.linux.programs import Ids
from gitguardfs.mounting import preflight
from gitguardfs.names.rules import GitMode
from gitguardfs.options.guarded_share import (
    GuardedShare,
    check_guard_options,
    check_tag,
    git_mode,
    owner_map,
)
from gitguardfs.options.parsing import parse_o, quote_o

Style = Literal["fstab", "systemd", "none"]
"""Kind of the entries that mount share and view at the next boot."""

_HOME = re.compile(r"/(var/)?home/[^/]+", re.DOTALL)  # Silverblue has its homes in /var
_SYSTEM = re.compile(
    r"/([^/]+)?"  # / and its direct children
    r"|/(etc|usr|bin|sbin|lib[^/]*|boot|dev|proc|sys|run)/.*"
    r"|/var/[^/]+",
    re.DOTALL,
)


@dataclass(frozen=True)
class MountRequest:
    """A validated request; its paths are resolved. Raises UserError."""

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
        """Values of ``options`` by their names."""
        return parse_o([quote_o(option) for option in self.options])

    @property
    def policy(self) -> GitMode:
        """Policy for .git."""
        return git_mode(self.options)

    @property
    def is_sealed(self) -> bool:
        """Whether the raw share is to be sealed."""
        return self._parsed.get("seal") is not False

    def check_empty(self, mountpoint: Mountpoint) -> None:
        """Raise UserError for a mount point with files in it, unless ``nonempty`` was given."""
        if not self._parsed.get("nonempty"):
            preflight.check_empty(mountpoint.path, mountpoint.is_empty)

    def guarded_share(self, transport: str, share_owner: Ids) -> GuardedShare:
        """Return the guarded share for the raw share's transport and owner. Raises UserError."""
        return GuardedShare(
            tag=self.tag,
            transport=transport,
            mount=self.mount.path,
            map_mount=self.map_mount.path,
            map=owner_map(share_owner, self.user),
            options=self.options,
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


def default_tag(tags: Tags) -> str:
    """Return UTM's tag if the kernel sees no other. Raises UserError otherwise."""
    known = {*tags.p9, *(tags.virtiofs or ())}
    if known == {UTM_TAG} or (not known and tags.may_have_unknown):
        return UTM_TAG
    raise UserError(f"which share? The kernel sees: {tags.listing()}", tags.hint())


def default_mount(system: SystemPaths, tag: str) -> str:
    """Return the default mount point of a share, in a directory that only root can enter."""
    return os.path.join(system.shares, directory_name(tag))


def directory_name(tag: str) -> str:
    """Return the name of the directory for a tag in ``SystemPaths.shares``."""
    name = urllib.parse.quote(tag, safe="", errors="surrogateescape")
    return name.replace(".", "%2E") if not name.strip(".") else name
