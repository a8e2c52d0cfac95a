"""What the user asks for, validated and frozen; and the languages it is asked in.

Nothing below here reads the command line or the environment. ``-o`` carries our own options by
their names, with ``-`` or ``_``, and what mount(8), fstab and mount.fuse3 pass (mount(8),
"FILESYSTEM-INDEPENDENT MOUNT OPTIONS"; systemd.mount(5), "FSTAB").
"""

from __future__ import annotations

import grp
import pwd
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gitguardfs.core.guard import Rules
from gitguardfs.core.idmap import IdMap, MapError
from gitguardfs.core.state import XattrPolicy
from gitguardfs.errors import UserError

AUTO = "auto"
_NUMBER = r"[0-9]{1,20}"

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class MapSpec:
    """The id map as it was asked for: pairs of (share, guest) ids, or to be found out."""

    uids: Pairs = ()
    gids: Pairs = ()
    auto: bool = False

    def resolve(self, source: tuple[int, int], mountpoint: tuple[int, int]) -> IdMap:
        """The map; (uid, gid) of the two directories are what ``auto`` goes by."""
        if not self.auto:
            return IdMap(self.uids, self.gids)
        return IdMap([(source[0], mountpoint[0])], [(source[1], mountpoint[1])])


@dataclass(frozen=True)
class MountOptions:
    """One mount, as it is to be."""

    source: str
    mountpoint: str
    map: MapSpec = field(default_factory=MapSpec)
    rules: Rules = field(default_factory=Rules)
    allow_suid: bool = False
    cache_timeout: float = 1.0
    xattr: XattrPolicy = XattrPolicy.NONE
    audit_log: str | None = None
    seal: bool | None = None
    """None: when root mounts the root of a 9p or virtiofs share."""
    read_only: bool = False
    foreground: bool = False
    debug: bool = False
    fsname: str | None = None
    intended: str | None = None
    """The mount point as it was written down, where others resolve it before we see it."""
    kernel: tuple[str, ...] = ()
    """Options that only the kernel has to do with (noatime, sync, noexec ...)."""


# The id map


def parse_maps(specs: Sequence[str]) -> MapSpec:
    """Parse the values of ``--map``; raises UserError for what is malformed or contradictory.

    ``HOST:GUEST`` maps user and group, ``@HOST:@GUEST`` groups only, with commas between
    several; ``u1/u2:@g1/@g2`` is bindfs's spelling; ``auto`` stands alone.
    """
    items = [item.strip() for spec in specs for item in spec.split(",")]
    if AUTO in items:
        if len(items) > 1:
            raise UserError("--map auto cannot be combined with other maps")
        return MapSpec(auto=True)
    uids: list[tuple[int, int]] = []
    gids: list[tuple[int, int]] = []
    for item in items:
        _parse_item(item, uids, gids)
    try:
        IdMap(uids, gids)
    except MapError as error:
        raise UserError(f"contradictory --map: {error}") from None
    return MapSpec(tuple(uids), tuple(gids))


def _parse_item(item: str, uids: list[tuple[int, int]], gids: list[tuple[int, int]]) -> None:
    if "/" in item:
        for pair in item.split(":"):
            share, guest = _two(pair, "/", item)
            if _is_group(share, guest, item):
                gids.append((group_id(share[1:]), group_id(guest[1:])))
            else:
                uids.append((user_id(share), user_id(guest)))
        return
    share, guest = _two(item, ":", item)
    if _is_group(share, guest, item):
        gids.append((group_id(share[1:]), group_id(guest[1:])))
    else:
        uids.append((user_id(share), user_id(guest)))
        gids.append((_own_group(share), _own_group(guest)))


def _two(text: str, separator: str, item: str) -> tuple[str, str]:
    parts = text.split(separator)
    if len(parts) != 2 or not all(parts):
        raise UserError(
            f"malformed --map {item!r}", "write HOST:GUEST, @HOST:@GUEST, u1/u2:@g1/@g2 or auto"
        )
    return parts[0], parts[1]


def _is_group(share: str, guest: str, item: str) -> bool:
    if share.startswith("@") != guest.startswith("@"):
        raise UserError(f"malformed --map {item!r}", "@ marks a group and goes on both sides")
    return share.startswith("@")


def user_id(name: str) -> int:
    """A user's id by number or name; UserError if there is no such user."""
    if re.fullmatch(_NUMBER, name):
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UserError(f"no such user: {name}", "use its number if it exists elsewhere") from None


def group_id(name: str) -> int:
    """A group's id by number or name; UserError if there is no such group."""
    if re.fullmatch(_NUMBER, name):
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise UserError(f"no such group: {name}", "use its number if it exists elsewhere") from None


def _own_group(user: str) -> int:
    # A number stands for the group of the same number, a name for the user's own group.
    return int(user) if re.fullmatch(_NUMBER, user) else pwd.getpwnam(user).pw_gid


# -o

_FLAGS = {
    "allow-bare": ("allow_bare", True),
    "allow-suid": ("allow_suid", True),
    "seal": ("seal", True),
    "no-seal": ("seal", False),
    "noseal": ("seal", False),
    "ro": ("read_only", True),
    "read-only": ("read_only", True),
    "rw": ("read_only", False),
    "foreground": ("foreground", True),
    "debug": ("debug", True),
}
_VALUES = {"git", "cache-timeout", "xattr", "audit-log", "fsname", "mountpoint"}
_LISTS = {"map", "deny", "protect", "hide"}

_KERNEL = {"noatime", "sync", "dirsync", "noexec", "allow_other"}

# Always on, meant for others who see the line, or already the case.
_TOLERATED = {
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "group", "owner",
    "suid", "nosuid", "dev", "nodev", "exec", "async", "atime", "diratime", "nodiratime",
    "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime",
    "silent", "loud", "default_permissions", "nonempty", "nomand", "noiversion", "symfollow",
}  # fmt: skip
_TOLERATED_PREFIXES = ("x-", "X-", "comment=", "subtype=", "setuid=")


def parse_o(values: Iterable[str]) -> dict[str, object]:
    """The options of ``-o`` by the names of the command line's parameters.

    Lists are lists, ``kernel`` holds what goes to the kernel. Raises UserError for an unknown
    option, by its name, and for ``remount``.
    """
    found: dict[str, object] = {}
    kernel: list[str] = []
    for option in (o for value in values for o in split_o(value)):
        name, has_value, value = option.partition("=")
        ours = name.replace("_", "-")
        if option in _TOLERATED or option.startswith(_TOLERATED_PREFIXES):
            continue
        if option in _KERNEL:
            kernel.append(option)
        elif name == "remount":
            raise UserError("remount is not supported", "unmount and mount again")
        elif ours in _FLAGS and not has_value:
            key, flag = _FLAGS[ours]
            if key == "seal" and found.get(key, flag) != flag:
                raise UserError("seal and no-seal in -o contradict one another")
            found[key] = flag
        elif ours in _VALUES and has_value:
            found[ours.replace("-", "_")] = value
        elif ours in _LISTS and has_value:
            entries = found.setdefault(ours, [])
            assert isinstance(entries, list)
            entries.append(value)
        elif ours in _FLAGS or ours in _VALUES or ours in _LISTS:
            needs = "takes no value" if has_value else "needs a value"
            raise UserError(f"option {name!r} in -o {needs}")
        else:
            raise UserError(f"unknown option {option!r} in -o", "see gitguardfs --help")
    if kernel:
        found["kernel"] = kernel
    return found


_SHORT = {"-r": "read-only", "-f": "foreground", "-d": "debug"}


def read_arguments(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The places and the options in the arguments of ``gitguardfs``, as ``-o`` would have them.

    Those of the command line come last, since they go before those of ``-o``. None if there is
    anything that is not known here.
    """
    places: list[str] = []
    outer: list[str] = []
    inner: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.removeprefix("--").partition("=")
        if word == "--":
            places += rest
            rest = []
        elif not word.startswith("-"):
            places.append(word)
        elif word == "-o" and rest:
            inner += split_o(rest.pop(0))
        elif word.startswith("-o") and len(word) > 2:
            inner += split_o(word[2:])
        elif word in _SHORT:
            outer.append(_SHORT[word])
        elif word.startswith("--") and name in _FLAGS and not has_value:
            outer.append(name)
        elif word.startswith("--") and name in _VALUES | _LISTS and (has_value or rest):
            outer.append(f"{name}={value if has_value else rest.pop(0)}")
        else:
            return None
    return tuple(places), (*inner, *outer)


def split_o(text: str) -> list[str]:
    r"""Split at commas; ``\,`` is a comma and ``\\`` a backslash within a value."""
    parts = re.findall(r"(?s)((?:[^,\\]|\\.|\\\Z)*)(?:,|\Z)", text)
    return [re.sub(r"\\([,\\])", r"\1", part) for part in parts if part]
