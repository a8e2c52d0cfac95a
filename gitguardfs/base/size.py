"""Reads sizes of a user (8G, 8GiB, 512m, or a number of MiB), and shows sizes. Pure."""

from __future__ import annotations

import re

from gitguardfs.base.errors import UserError

_SIZE = re.compile(r"([1-9][0-9]{0,8})([MG]?)(iB|B)?", re.IGNORECASE | re.ASCII)


def mebibytes(text: str, option: str) -> int:
    """Return a size in MiB. Raises UserError, which names the option, if ``text`` is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{option} {text!r} is not a size", f"{option} 8G, or {option} 4096M")
    return int(match[1]) * (1024 if match[2].upper() == "G" else 1)


def as_size(size: int) -> str:
    """Return a number of bytes as a person reads it: 512 B, 1.5 KiB, 812 MiB."""
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.1f} {unit}" if number < 10 and unit != "B" else f"{number:.0f} {unit}"
