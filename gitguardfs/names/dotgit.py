"""Recognises names that git could take for ``.git``, on any file system that a host may use.

Pure functions: bytes in, bool out. The authority is git: ``is_ntfs_dotgit`` (path.c),
``is_hfs_dotgit`` (utf8.c) and ``verify_dotfile`` (read-cache.c). A host may be Linux, macOS
or Windows. A name counts if a file system of any of them would resolve it to ``.git``. So names
are folded in the widest form, and the NTFS rules are applied after the Unicode rules.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

CACHED_NAMES = 1 << 14
"""Names in each cache of answers. A tree repeats its names; the limit bounds memory (2 MB)."""

# Default_Ignorable_Code_Point of Unicode: HFS+ and Linux casefold directories drop these.
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def _component(alternatives: bytes) -> re.Pattern[bytes]:
    # NTFS drops trailing dots and spaces, ends a name at ':' (a stream) and reads '\' as '/'.
    return re.compile(rb"(?i)(?:^|\\)(?:" + alternatives + rb")[. ]*(?:\Z|[:\\/])", re.DOTALL)


# Noncharacters that git's pick_one_utf8_char (utf8.c) treats as malformed.
_ENDS_NAME = re.compile("[\ufffe\uffff]")

_DOTGIT = _component(rb"\.git|git~1")

# An 8.3 name: FAT and NTFS give ``.env.local`` the second name ``ENV~1.LOC``.
_SHORT = re.compile(
    rb"(?:[^.~\x80-\xff]|[\x80-\xff][\x80-\xbf]*){1,6}~[0-9]{1,6}"
    rb"(?:\.(?:[^.\x80-\xff]|[\x80-\xff][\x80-\xbf]*){1,3})?\Z"
)

# No file system folds names of these characters in other ways than the patterns above.
_PORTABLE = re.compile(rb"[A-Za-z0-9._-]+\Z")


def folded(name: bytes) -> bytes:
    """Return ``name`` as HFS+ and casefold directories compare it; ASCII keeps its case.

    Malformed UTF-8 ends the string, as in git's ``next_hfs_char``.
    """
    if name.isascii():
        return name
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        text = name[: error.start].decode()
    text = _ENDS_NAME.split(text, maxsplit=1)[0]
    # casefold also turns the long s, the kelvin sign and ligatures into ordinary letters.
    return without_ignorable(text).casefold().encode()


def any_spelling(name: bytes) -> bytes:
    """Return a key that is the same for all names that some file system takes for one.

    Case and Unicode normalization do not count, nor do dots and spaces at the end and what follows
    a colon: NTFS, FAT and SMB servers drop these.
    """
    if not name.isascii():
        text = unicodedata.normalize("NFKD", folded(name).decode())
        name = unicodedata.normalize("NFKD", text.casefold()).encode()
    return name.partition(b":")[0].rstrip(b". ").lower()


def without_ignorable(text: str) -> str:
    """Return ``text`` without the code points that case-insensitive file systems drop."""
    return _IGNORABLE.sub("", text)


def as_on_windows(text: str) -> list[str]:
    """Return the components that NTFS and FAT read in ``text``, if they differ from ``text``.

    They drop dots and spaces at the end, end a name at ``:`` and read a backslash as a slash.
    """
    parts = [part.partition(":")[0].rstrip(". ") for part in text.split("\\")]
    return [part for part in parts if part and part != text]


def pattern_of(*names: bytes) -> re.Pattern[bytes]:
    """Return a pattern for ``matches`` of all names that could resolve to one of ``names``."""
    return _component(b"|".join(map(re.escape, names)))


def matches(pattern: re.Pattern[bytes], name: bytes) -> bool:
    """Return whether the pattern matches ``name``, as it stands or folded."""
    # Malformed UTF-8 ends a name on HFS+ only: NTFS reads on to the next backslash.
    text = folded(name)
    return pattern.search(text) is not None or (
        text is not name and pattern.search(name) is not None
    )


@lru_cache(CACHED_NAMES)
def is_dotgit(name: bytes) -> bool:
    """Return whether git could take the path component ``name`` for ``.git``."""
    return matches(_DOTGIT, name)


def is_portable(name: bytes) -> bool:
    """Return whether the rules of this module cover every name that ``name`` could resolve to.

    Any other name (with ``~``, backslash, non-ASCII) might resolve to ``.git`` by a folding that
    is unknown here. Callers compare its object with ``.git`` by device and inode.
    """
    return _PORTABLE.match(name) is not None


def may_be_short_name(name: bytes) -> bool:
    """Return whether FAT or NTFS may have made ``name`` up for an entry with a longer name."""
    return _SHORT.match(name) is not None
