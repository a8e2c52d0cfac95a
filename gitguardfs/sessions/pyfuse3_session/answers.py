"""Checks that pyfuse3 can translate an answer. On any other, pyfuse3 raises and the mount ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyfuse3 import EntryAttributes, FileInfo, StatvfsData

ReadData = bytes | bytearray | memoryview

_END_OF_NUMBERS = 1 << 63


def _is_number(answer: Any) -> bool:
    return isinstance(answer, int) and 0 <= answer < _END_OF_NUMBERS


def _is_created(answer: Any) -> bool:
    match answer:
        case (FileInfo(), EntryAttributes()):
            return True
    return False


FITS: dict[str, Callable[[Any], bool]] = {
    "None": lambda answer: answer is None,
    "bool": lambda answer: isinstance(answer, bool),
    "int": _is_number,
    "bytes": lambda answer: isinstance(answer, bytes),
    "ReadData": lambda answer: isinstance(answer, ReadData),
    "Sequence[bytes]": lambda answer: all(isinstance(name, bytes) for name in answer),
    "EntryAttributes": lambda answer: isinstance(answer, EntryAttributes),
    "FileInfo": lambda answer: isinstance(answer, FileInfo),
    "pyfuse3.StatvfsData": lambda answer: isinstance(answer, StatvfsData),
    "tuple[FileInfo, EntryAttributes]": _is_created,
}
"""The check of an answer, by the return annotation of the handler that gave it."""
