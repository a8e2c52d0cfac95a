"""Reads and writes lines of fstab(5)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gitguardfs.base.constants import FSTYPE, SHARE_TYPES

MARK = "x-gitguardfs"
"""The option by which gitguardfs recognises the lines that it has written."""


@dataclass(frozen=True)
class FstabEntry:
    """One line of an fstab, parsed; ``number`` counts from 1."""

    number: int
    source: str
    target: str
    fstype: str
    options: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """Whether gitguardfs wrote the line."""
        return MARK in self.options

    @property
    def is_share(self) -> bool:
        """Whether the line mounts a share of the host."""
        return self.fstype in SHARE_TYPES

    @property
    def is_guard(self) -> bool:
        """Whether the line mounts a gitguardfs."""
        return self.fstype == FSTYPE


def entries(text: bytes) -> list[FstabEntry]:
    """Return the entries of an fstab, without comments and lines that cannot be parsed."""
    found = (_parse(number, raw) for number, raw in enumerate(text.split(b"\n"), 1))
    return [entry for entry in found if entry]


def _parse(number: int, raw: bytes) -> FstabEntry | None:
    fields = re.split(rb"[ \t]+", raw.strip(b" \t"))
    if len(fields) < 3 or fields[0].startswith(b"#"):
        return None
    source, target, fstype = (_unquote(field) for field in fields[:3])
    options = _unquote(fields[3]).split(",") if len(fields) > 3 else []
    target = re.sub(r"(?<=.)/+$", "", target)
    return FstabEntry(number, source, target, fstype, tuple(options))


def format_line(source: str, target: str, fstype: str, options: tuple[str, ...]) -> str:
    """Return the line that mounts ``source`` at ``target``, as ``entries`` reads it back."""
    return " ".join([*map(quote_field, (source, target, fstype, ",".join(options))), "0", "0"])


def quote_field(field: str) -> str:
    r"""Return a field with blank, tab, newline and backslash as ``\040`` and so on.

    Nothing else is quoted: getmntent(3), with which systemd reads the file, decodes only these.
    """
    return re.sub(r"[ \t\n\\]", lambda m: f"\\{ord(m[0]):03o}", field)


def _unquote(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 255]), field))
