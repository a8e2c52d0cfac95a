"""The permission language of bindfs: ``0644,a+X``, ``og-x:og+rD:u=rwX``, ``gd-w``.

Rules are separated by commas or colons and applied in order. A rule is an octal number, or has
three parts. First come classes, any of ``ugoa``; ``d`` and ``f`` limit the rule to directories or
to other files. Then comes ``+``, ``-`` or ``=``. Last come permissions: ``rwx``; ``X``, x on
directories and on files that have an x already; ``D``, x on directories; ``u``, ``g`` or ``o``, a
copy of that class's bits. ``s`` and ``t`` are ignored.
``X``, ``D`` and copies use the mode that the object has before the first rule. Only the lower nine
bits change (bindfs(1), "PERMISSION SPECIFICATION").
"""

from __future__ import annotations

import re
from functools import lru_cache
from stat import S_ISDIR
from typing import NamedTuple

_WHO = {"u": 0o700, "g": 0o070, "o": 0o007, "a": 0o777}
_PLAIN = {"r": 0o444, "w": 0o222, "x": 0o111, "s": 0, "t": 0}
_SHIFT = {"u": 6, "g": 3, "o": 0}
ALL = 0o777

_SYMBOLIC = re.compile(r"([ugoadf]*)([-+=])([rwxXDstugo]*)\Z")
_OCTAL = re.compile(r"[0-7]+\Z")

CACHED_MODES = 1024
"""Modes whose result is cached; a tree has few different ones, so the limit is hardly reached."""


class PermsError(ValueError):
    """A rule that cannot be parsed."""


class _PermsRule(NamedTuple):
    who: int
    """The bits that the rule may change."""
    operator: str
    bits: str
    """The operands, or an octal number."""
    directories: bool
    files: bool

    def apply(self, mode: int, original: int) -> int:
        is_directory = S_ISDIR(original)
        if not (self.directories if is_directory else self.files):
            return mode
        if self.operator == "octal":
            return mode & ~ALL | int(self.bits, 8)
        bits = 0
        for operand in self.bits:
            if operand in _PLAIN:
                bits |= _PLAIN[operand]
            elif operand in _SHIFT:
                bits |= (original >> _SHIFT[operand] & 7) * 0o111
            elif is_directory or (operand == "X" and original & 0o111):
                bits |= 0o111
        bits &= self.who
        if self.operator == "+":
            return mode | bits
        if self.operator == "-":
            return mode & ~bits
        return mode & ~self.who | bits


class Perms:
    """A list of rules; ``apply`` changes the permission bits of a mode (with the file type)."""

    def __init__(self, text: str) -> None:
        """Parse ``text``. Raises PermsError, which names the wrong rule."""
        self.text = text
        self._rules = tuple(_parse(rule) for rule in _split(text))
        self.apply = lru_cache(CACHED_MODES)(self._apply)

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The rules that change no bits, such as ``d+x``, which has no u, g, o or a."""
        rules = zip(_split(self.text), self._rules, strict=True)
        return tuple(text for text, rule in rules if not rule.who)

    def _apply(self, mode: int) -> int:
        changed = mode
        for rule in self._rules:
            changed = rule.apply(changed, mode)
        return changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Perms) and self._rules == other._rules

    def __hash__(self) -> int:
        return hash(self._rules)


def _split(text: str) -> list[str]:
    return re.split("[,:]", re.sub(r"[,:]\Z", "", text))


def _parse(text: str) -> _PermsRule:
    if _OCTAL.match(text):
        if int(text, 8) > ALL:
            raise PermsError(f"{text} is more than 0777")
        return _PermsRule(ALL, "octal", text, True, True)
    match = _SYMBOLIC.match(text)
    if match is None:
        raise PermsError(f"{text!r} is not a rule; write it like 0644, a+X, og-w or gd=rx")
    left, operator, bits = match.groups()
    who = 0
    for letter in left or "a":
        who |= _WHO.get(letter, 0)
    limits = {letter for letter in left if letter in "df"} or {"d", "f"}
    return _PermsRule(who, operator, bits, "d" in limits, "f" in limits)
