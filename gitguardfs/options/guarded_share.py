"""A share and the guard over it, as fstab or units describe them: validated, frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gitguardfs.base.constants import SHARE_TYPES
from gitguardfs.base.errors import UserError
from gitguardfs.names.local_names import DEPS
from gitguardfs.names.rules import GitMode
from gitguardfs.options.id_maps import both_ways, parse_maps, spelled
from gitguardfs.options.mount_options import build
from gitguardfs.options.parsing import parse_o, quote_o

TAG_BYTES = {"9p": 31, "virtiofs": 36}
"""The longest mount tag: QEMU's MAX_TAG_LEN, and the field of struct virtio_fs_config."""

MESSAGE_BYTES = 262144
"""msize of 9p, in bytes: large, so that transfers take few round trips; larger gained nothing."""

DEFAULT_GIT = GitMode.PRIVATE
"""Default mode for .git in a guest that these tools set up. The program gitguardfs has its own.
In a guest without git, the daemon falls back to ``deny``."""

DEFAULT_LOCAL = (DEPS,)
"""Default of ``--local`` in a guest that is set up here; vm-mount and gitguardfs have none."""

LOCAL_HELP = (
    "Keep directories whose names match GLOB on the guest's own disk, not in the project. deps, "
    "which suits most projects, stands for node_modules, .venv, target and others."
)
"""The help of ``--local``, which can be repeated."""

MODULES = {"9p": ("virtio_pci", "9pnet_virtio"), "virtiofs": ("virtio_pci", "virtiofs")}
"""Kernel modules to have before a share is mounted, by its transport.

While udev is still loading 9pnet_virtio, mount(2) already finds the transport but not yet the
tags, and fails with ENOENT. modprobe(8) returns when the module has all its devices.
"""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NONCHARACTERS = "".join(
    map(chr, (*range(0xFDD0, 0xFDF0), *(p << 16 | n for p in range(17) for n in (0xFFFE, 0xFFFF))))
)
"""The noncharacters of Unicode: systemd rejects a line with one as invalid UTF-8."""
_MEANT_FOR_OTHERS = ("user", "users", "owner", "group")
_OF_THE_GUEST = ("map_passwd", "map_group")


@dataclass(frozen=True)
class GuardedShare:
    """A host's share with the mount tag ``tag`` at ``mount``, and the guard's view of it.

    ``map`` is written as for ``gitguardfs --map``. ``options`` are further ``-o`` options of the
    guard, unquoted. Paths are absolute. Raises UserError.
    """

    tag: str
    transport: str
    mount: str
    map_mount: str
    map: str
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.transport not in SHARE_TYPES:
            raise UserError(
                f"{self.transport} is not a transport of shares", f"one of {', '.join(SHARE_TYPES)}"
            )
        check_tag(self.tag, self.transport)
        check_path(self.mount, "the share's mount point")
        check_path(self.map_mount, "the guard's mount point")
        inner, outer = sorted((f"{self.mount}/", f"{self.map_mount}/"), key=len, reverse=True)
        if inner.startswith(outer):
            raise UserError(
                f"{self.mount} and {self.map_mount} lie inside one another",
                "choose another mount point for one of them",
            )
        parse_maps([self.map])
        check_guard_options(self.options)

    @property
    def module_units(self) -> tuple[str, ...]:
        """Units of systemd that load MODULES (modprobe@.service never fails)."""
        return tuple(f"modprobe@{module}.service" for module in MODULES[self.transport])

    @property
    def repository(self) -> tuple[str, ...]:
        """The path of the guard's ``repository``, if it has one, which must be there before it."""
        found = parse_o(self._quoted()).get("repository")
        return () if found is None else (str(found),)

    @property
    def share_options(self) -> tuple[str, ...]:
        """Mount options of the raw share."""
        return share_options(self.transport)

    @property
    def guard_options(self) -> tuple[str, ...]:
        """Options of the guard, the map first, each quoted for ``-o``."""
        return (f"map={quote_o(self.map)}", *map(quote_o, self._further()))

    def _further(self) -> tuple[str, ...]:
        options = with_git_mode(self.options)
        # Explicit: then the raw share is sealed even if its type is not recognised as a share.
        return options if "seal" in parse_o(self._quoted()) else ("seal", *options)

    def _quoted(self) -> list[str]:
        return [quote_o(option) for option in self.options]


def git_mode(options: tuple[str, ...]) -> GitMode:
    """Return what unquoted ``-o`` options of the guard say of .git. Raises UserError."""
    return GitMode(parse_o([quote_o(option) for option in options]).get("git", DEFAULT_GIT))


def with_git_mode(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return unquoted options that name the mode for .git, since gitguardfs has another default."""
    is_named = "git" in parse_o([quote_o(option) for option in options])
    return options if is_named else (f"git={DEFAULT_GIT.value}", *options)


def local_globs(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of ``--local`` in unquoted ``-o`` options. Raises UserError."""
    found = parse_o([quote_o(option) for option in options]).get("local", [])
    assert isinstance(found, list)
    return tuple(found)


def with_local(options: tuple[str, ...], globs: tuple[str, ...]) -> tuple[str, ...]:
    """Return unquoted options, and one more for each value of ``--local``."""
    return (*options, *(f"local={glob}" for glob in globs))


def share_options(transport: str) -> tuple[str, ...]:
    """Return the mount options of a raw share.

    On 9p, ``access=0`` lets only root use it, even without the seal. With ``cache=none`` the guest
    sees at once what the host writes; the guard itself caches pages, and checks them at each open.
    """
    if transport == "virtiofs":
        return ("nosuid", "nodev")
    return (
        "trans=virtio",
        "version=9p2000.L",
        f"msize={MESSAGE_BYTES}",
        "cache=none",
        "access=0",
        "nosuid",
        "nodev",
    )


def owner_map(share: tuple[int, int], guest: tuple[int, int]) -> str:
    """Return the map that shows the share's owner (uid, gid), and nobody else, as the guest's."""
    return spelled(both_ways(share[0], guest[0]), both_ways(share[1], guest[1]))


def check_tag(tag: str, transport: str | None = None) -> None:
    """Raise UserError for a mount tag that ``transport`` or fstab cannot carry."""
    limit = TAG_BYTES[transport] if transport else max(TAG_BYTES.values())
    if not tag or _is_awkward(tag):
        raise UserError(
            f"{tag!r} cannot be a mount tag here",
            "no control characters, blanks at an end or backslash at the end",
        )
    if tag.startswith(("/", "#")) or re.match(r"(?i)(part)?(uuid|label)=|id=", tag):
        raise UserError(
            f"the mount tag {tag!r} would mean something else in fstab", "choose another"
        )
    if len(tag.encode()) > limit:
        raise UserError(f"the mount tag {tag!r} is longer than {limit} bytes")


def check_path(path: str, what: str) -> None:
    """Raise UserError for a path that is not absolute and plain, or not fit for fstab or a unit."""
    if not path.startswith("/"):
        raise UserError(f"{what} {path!r} is not an absolute path")
    if path == "/" or any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise UserError(
            f"{what} {path!r} is not a plain path", "no //, . or .. in it, no / at the end"
        )
    if _is_awkward(path):
        raise UserError(
            f"{what} {path!r} cannot be written into fstab or a unit",
            "no control characters, blanks at an end or backslash at the end",
        )


def _is_awkward(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # not valid UTF-8: systemd refuses the whole line
        return True
    if set(text) & set(NONCHARACTERS):
        return True
    # A backslash at the end joins a unit's line with the next one.
    return bool(_CONTROL.search(text)) or text != text.strip() or text.endswith("\\")


def check_guard_options(options: tuple[str, ...]) -> None:
    """Raise UserError, which names the option, if the guard would refuse one at boot."""
    for option in options:
        if _CONTROL.search(option) or not option.isprintable():
            raise UserError(f"option {option!r} cannot be written into fstab or a unit")
        if option in _MEANT_FOR_OTHERS:
            raise UserError(f"option {option!r} would let others mount it", "leave it out")
    found = parse_o([quote_o(option) for option in options])
    if "map" in found:
        raise UserError(
            "the option map cannot be given with -o",
            "leave it out: owners are mapped without it, or by --map of gitguard units",
        )
    if "mountpoint" in found:
        raise UserError("the option mountpoint cannot be given with -o", "leave it out")
    for name in ("foreground", "debug"):
        if name in found:
            raise UserError(f"option {name!r} is for use in a terminal", "leave it out")
    # Files with ids are the guest's, and this need not run there: they are not checked.
    build("/", "/", {key: found[key] for key in found if not key.startswith(_OF_THE_GUEST)})
    for name in ("audit-log", "private-store", "local-store"):
        path = found.get(name.replace("-", "_"))
        if path is not None and not str(path).startswith("/"):
            raise UserError(f"{name}={path} is not an absolute path", "give the whole path")
