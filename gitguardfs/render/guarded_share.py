"""A share and the guard over it, as the files that mount them describe it: validated, frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from gitguardfs.constants import SHARE_TYPES
from gitguardfs.errors import UserError
from gitguardfs.options.id_maps import parse_maps
from gitguardfs.options.mount_options import build
from gitguardfs.options.parsing import parse_o, quote_o

TAG_BYTES = {"9p": 31, "virtiofs": 36}
"""The longest mount tag: QEMU's MAX_TAG_LEN, and the field of struct virtio_fs_config."""

MESSAGE_BYTES = 262144
"""msize of 9p: few round trips; larger ones gained nothing."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NONCHARACTERS = "".join(
    map(chr, (*range(0xFDD0, 0xFDF0), *(p << 16 | n for p in range(17) for n in (0xFFFE, 0xFFFF))))
)
"""What Unicode leaves free for good; systemd takes a line with one for no UTF-8."""
_MEANT_FOR_OTHERS = ("user", "users", "owner", "group")
_OF_THE_GUEST = ("map_passwd", "map_group")


class Cache(StrEnum):
    """What v9fs may keep of a share.

    ``none`` is the default: what the host writes is seen at once, and nothing is lost by it,
    since the guard keeps pages of its own, checks them at each open, and serves memory maps by
    itself. ``mmap`` is for those who map files of the raw share. ``loose`` and ``fscache`` are
    not offered: they never look at the host again.
    """

    NONE = "none"
    MMAP = "mmap"


@dataclass(frozen=True)
class GuardedShare:
    """A host's share with the mount tag ``tag`` at ``mount``, and the guard's view of it.

    ``map`` is in the language of ``gitguardfs --map``, ``options`` are further ones of the guard
    by the names of ``-o``, without quoting. Paths are absolute. Raises UserError.
    """

    tag: str
    kind: str
    mount: str
    map_mount: str
    map: str
    options: tuple[str, ...] = ()
    cache: Cache = Cache.NONE

    def __post_init__(self) -> None:
        if self.kind not in SHARE_TYPES:
            raise UserError(f"{self.kind} is no type of share", f"one of {', '.join(SHARE_TYPES)}")
        check_tag(self.tag, self.kind)
        check_path(self.mount, "the share's mount point")
        check_path(self.map_mount, "the guard's mount point")
        inner, outer = sorted((f"{self.mount}/", f"{self.map_mount}/"), key=len, reverse=True)
        if inner.startswith(outer):
            raise UserError(
                f"{self.mount} and {self.map_mount} lie inside one another",
                "the share and the guarded view each need a place of their own",
            )
        parse_maps([self.map])
        check_guard_options(self.options)

    @property
    def share_options(self) -> tuple[str, ...]:
        """Mount options of the raw share."""
        return share_options(self.kind, self.cache)

    @property
    def guard_options(self) -> tuple[str, ...]:
        """Options of the guard, the map first, each quoted for ``-o``."""
        return (f"map={quote_o(self.map)}", *map(quote_o, self._further()))

    @property
    def no_cpu_idle(self) -> bool:
        """Whether the guard is to keep processors from being halted (``no-cpu-idle``)."""
        return bool(parse_o(self._quoted()).get("no_cpu_idle"))

    def _further(self) -> tuple[str, ...]:
        # Said outright: the raw share is closed even where its type cannot be told.
        return self.options if "seal" in parse_o(self._quoted()) else ("seal", *self.options)

    def _quoted(self) -> list[str]:
        return [quote_o(option) for option in self.options]


def share_options(kind: str, cache: Cache) -> tuple[str, ...]:
    """Mount options of a raw share.

    On 9p nobody but root gets through: whatever happens to the seal (``access=0``).
    """
    if kind == "virtiofs":
        return ("nosuid", "nodev")
    return (
        "trans=virtio",
        "version=9p2000.L",
        f"msize={MESSAGE_BYTES}",
        f"cache={cache}",
        "access=0",
        "nosuid",
        "nodev",
    )


def owner_map(share: tuple[int, int], guest: tuple[int, int]) -> str:
    """The map that shows the share's owner (uid, gid) as the guest's."""
    return f"{share[0]}/{guest[0]}:@{share[1]}/@{guest[1]}"


def check_tag(tag: str, kind: str | None = None) -> None:
    """Raise UserError for a mount tag too long for ``kind``, or that fstab cannot carry."""
    limit = TAG_BYTES[kind] if kind else max(TAG_BYTES.values())
    if not tag or _is_awkward(tag):
        raise UserError(
            f"{tag!r} cannot be a mount tag here",
            "no control characters, blanks at an end or backslash at the end",
        )
    if tag.startswith(("/", "#")) or re.match(r"(?i)(part)?(uuid|label)=|id=", tag):
        raise UserError(
            f"the mount tag {tag!r} would be taken for something else in fstab", "choose another"
        )
    if len(tag.encode()) > limit:
        raise UserError(f"the mount tag {tag!r} is longer than {limit} bytes")


def check_path(path: str, what: str) -> None:
    """Raise UserError for a mount point that is not absolute and plain, or cannot be written."""
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
    except UnicodeEncodeError:  # bytes that are no UTF-8: systemd refuses the whole line
        return True
    if set(text) & set(NONCHARACTERS):
        return True
    # A backslash at the end joins a unit's line with the next one.
    return bool(_CONTROL.search(text)) or text != text.strip() or text.endswith("\\")


def check_guard_options(options: tuple[str, ...]) -> None:
    """Raise UserError, by name, for an option that the guard would refuse at boot."""
    for option in options:
        if _CONTROL.search(option) or not option.isprintable():
            raise UserError(f"option {option!r} cannot be written into fstab or a unit")
        if option in _MEANT_FOR_OTHERS:
            raise UserError(f"option {option!r} would let others mount it", "leave it out")
    found = parse_o([quote_o(option) for option in options])
    if "map" in found:
        raise UserError(
            "the map is not one of the further options",
            "--user says whose the files are to be; gitguard units has --map as well",
        )
    if "mountpoint" in found:
        raise UserError("the mount point is not one of the further options", "leave it out")
    for name in ("foreground", "debug"):
        if name in found:
            raise UserError(f"option {name!r} is for a terminal", "leave it out")
    # Files with ids are those of the guest, which this need not be.
    build("/", "/", {key: found[key] for key in found if not key.startswith(_OF_THE_GUEST)})
    log = found.get("audit_log")
    if log is not None and not str(log).startswith("/"):
        raise UserError(f"audit-log={log} is not an absolute path", "nothing says relative to what")
