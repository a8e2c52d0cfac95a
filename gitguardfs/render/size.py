"""Parses sizes: 8G, 8GiB, 512m, or a number of MiB. Pure."""

from __future__ import annotations

import re

from gitguardfs.errors import UserError

_SIZE = re.compile(r"([1-9][0-9]{0,8})([MG]?)(iB|B)?", re.IGNORECASE | re.ASCII)


def mebibytes(text: str, option: str) -> int:
    """Return a size in MiB. Raises UserError, which names the option, if ``text`` is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{option} {text!r} is not a size", f"{option} 8G, or {option} 4096M")
    return int(match[1]) * (1024 if match[2].upper() == "G" else 1)
