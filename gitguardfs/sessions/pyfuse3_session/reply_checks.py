"""Checks that pyfuse3 can translate a reply. On any other, pyfuse3 raises and the mount ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyfuse3 import EntryAttributes, FileInfo, StatvfsData

from gitguardfs.base.protocol import ReadData

_END_OF_NUMBERS = 1 << 63


def _is_number(reply: Any) -> bool:
    return isinstance(reply, int) and 0 <= reply < _END_OF_NUMBERS


def _is_created(reply: Any) -> bool:
    match reply:
        case (FileInfo(), EntryAttributes()):
            return True
    return False


REPLY_CHECKS: dict[str, Callable[[Any], bool]] = {
    "None": lambda reply: reply is None,
    "bool": lambda reply: isinstance(reply, bool),
    "int": _is_number,
    "bytes": lambda reply: isinstance(reply, bytes),
    "ReadData": lambda reply: isinstance(reply, ReadData),
    "Sequence[bytes]": lambda reply: all(isinstance(name, bytes) for name in reply),
    "EntryAttributes": lambda reply: isinstance(reply, EntryAttributes),
    "FileInfo": lambda reply: isinstance(reply, FileInfo),
    "pyfuse3.StatvfsData": lambda reply: isinstance(reply, StatvfsData),
    "tuple[FileInfo, EntryAttributes]": _is_created,
}
"""The check of a reply, by the return annotation of the handler that returned it."""
