"""The two lines of fstab(5) for a guarded share, and putting them into a file that others own.

Our lines say so themselves, by the option ``x-gitguardfs``, which nothing reads but this. Any
other line is left as it is, byte for byte.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gitguardfs.errors import UserError
from gitguardfs.mounts import FSTYPE, SHARE_TYPES
from gitguardfs.render import quote
from gitguardfs.render.guarded import GuardedShare

MARK = "x-gitguardfs"
_AT_BOOT = ("_netdev", "nofail", MARK)
"""After the network's and the devices' start, and never in the way of a login."""


def share_line(spec: GuardedShare) -> str:
    """The line that mounts the raw share."""
    return _line(spec.tag, spec.mount, spec.kind, (*spec.share_options, *_AT_BOOT))


def guard_line(spec: GuardedShare) -> str:
    r"""The line that mounts the guard, which needs the share and comes after it.

    The generic options come before the user's own: ``\`` at the end of a pattern, which we write
    as ``\\``, makes libmount take the comma after it for a part of the pattern.
    """
    the_map, *further = spec.guard_options
    # mount(8) follows anybody's symlinks to the target before the guard sees it.
    place = f"mountpoint={quote.mount_option(spec.map_mount)}"
    # The automatic dependency on an absolute source is lost with _netdev.
    requires = f"x-systemd.requires={_requirement(spec.mount)}"
    options = (the_map, requires, *_AT_BOOT, place, *further)
    if any('"' in option for option in options):
        raise UserError('fstab cannot carry a " in an option', "use --style systemd")
    return _line(spec.mount, spec.map_mount, FSTYPE, options)


def _requirement(path: str) -> str:
    # As a unit's name where a comma or a quote would end or open something in a list of options.
    plain = re.fullmatch(r"[A-Za-z0-9/._+@-]+", path)
    return path if plain else f"{quote.systemd_unit_name(path)}.mount"


def _line(source: str, target: str, kind: str, options: tuple[str, ...]) -> str:
    return " ".join([*map(quote.fstab, (source, target, kind, ",".join(options))), "0", "0"])


def render(spec: GuardedShare) -> str:
    """Both lines."""
    return f"{share_line(spec)}\n{guard_line(spec)}\n"


@dataclass(frozen=True)
class Entry:
    """A line of an fstab, read; ``number`` counts from 1."""

    number: int
    source: str
    target: str
    kind: str
    options: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """Whether we wrote it."""
        return MARK in self.options

    @property
    def is_share(self) -> bool:
        """Whether it brings in a directory of the host."""
        return self.kind in SHARE_TYPES

    @property
    def is_guard(self) -> bool:
        """Whether it is a gitguardfs."""
        return self.kind == FSTYPE


def entries(text: bytes) -> list[Entry]:
    """The entries of an fstab; comments and what is none are passed over."""
    found = (_parse(number, raw) for number, raw in enumerate(text.split(b"\n"), 1))
    return [entry for entry in found if entry]


def _parse(number: int, raw: bytes) -> Entry | None:
    fields = re.split(rb"[ \t]+", raw.strip(b" \t"))
    if len(fields) < 3 or fields[0].startswith(b"#"):
        return None
    source, target, kind = (_unquote(field) for field in fields[:3])
    options = _unquote(fields[3]).split(",") if len(fields) > 3 else []
    target = re.sub(r"(?<=.)/+$", "", target)
    return Entry(number, source, target, kind, tuple(options))


def _unquote(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 255]), field))


def install(text: bytes, spec: GuardedShare) -> bytes:
    """``text`` with both lines for ``spec`` in it; ours that say otherwise are replaced.

    A share that somebody else's line mounts just there is left to that line. Raises UserError
    if a line of somebody else's is in the way.
    """
    adopted = False
    for entry in entries(text):
        if not entry.is_ours:
            adopted |= _adopts(entry, spec)
    wanted = [] if adopted else [share_line(spec)]
    wanted.append(guard_line(spec))
    ours = [e for e in entries(text) if e.is_ours and _concerns(e, spec)]
    lines = text.split(b"\n")
    new = [os.fsencode(line) for line in wanted]
    if [lines[e.number - 1] for e in ours] == new:
        return text
    if [e.is_guard for e in ours] == [line == wanted[-1] for line in wanted]:
        for entry, line in zip(ours, new, strict=True):
            lines[entry.number - 1] = line
        return b"\n".join(lines)
    kept = _without(text, {entry.number for entry in ours})
    end = b"" if not kept or kept.endswith(b"\n") else b"\n"
    return kept + end + b"".join(line + b"\n" for line in new)


def _concerns(entry: Entry, spec: GuardedShare) -> bool:
    if entry.is_share:
        return entry.source == spec.tag or entry.target == spec.mount
    return entry.is_guard and (entry.target == spec.map_mount or entry.source == spec.mount)


def _adopts(entry: Entry, spec: GuardedShare) -> bool:
    """Whether somebody else's line mounts our share just there; UserError if it hurts."""
    if entry.target == spec.mount and entry.is_share and entry.source == spec.tag:
        return True
    if entry.target in (spec.mount, spec.map_mount):
        raise UserError(
            f"line {entry.number} of fstab already mounts {entry.source} at {entry.target}",
            "take it out, or choose another mount point",
        )
    if entry.is_share and entry.source == spec.tag and "noauto" not in entry.options:
        raise UserError(
            f"line {entry.number} of fstab already mounts {spec.tag} at {entry.target}",
            f"take it out, or give --mount {entry.target}",
        )
    return False


def remove(text: bytes, mount: str, map_mounts: tuple[str, ...]) -> bytes:
    """``text`` without our lines for the share at ``mount`` and its guards."""
    numbers = {
        entry.number
        for entry in entries(text)
        if entry.is_ours
        and (
            (entry.is_share and entry.target == mount)
            or (entry.is_guard and (entry.source == mount or entry.target in map_mounts))
        )
    }
    return _without(text, numbers)


def _without(text: bytes, numbers: set[int]) -> bytes:
    lines = re.findall(rb"[^\n]*\n|[^\n]+\Z", text)
    return b"".join(line for number, line in enumerate(lines, 1) if number not in numbers)
