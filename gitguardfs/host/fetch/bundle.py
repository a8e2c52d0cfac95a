"""Reads the bundle that an agent wrote: opens it without following anything, parses its header.

The header is never given to git. What this module does not know is refused as a whole, so that
there is one reading of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from stat import S_ISREG
from typing import BinaryIO

from gitguardfs.base.errors import Exit, UserError, os_error

DIRECTORY = ".gitguard"
NAME = "agent.bundle"
PATH = f"{DIRECTORY}/{NAME}"
HEADS, TAGS = "refs/heads/", "refs/tags/"
MAX_HEADER = 1 << 20
"""The most bytes of a header: it has about a hundred for each branch."""
MAX_REFS = 1000
MAX_NAME = 200
"""The most characters of a ref: file names have 255, and git adds ``.lock``."""
_CHUNK = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ID = {"sha1": r"[0-9a-f]{40}", "sha256": r"[0-9a-f]{64}"}
_REF = re.compile(r"refs/(?:heads|tags)/[A-Za-z0-9_][A-Za-z0-9._/+@#=-]*", re.ASCII)
_UNFIT = re.compile(r"\.\.|//|/\.|/$|\.$|\.lock(/|$)|@\{", re.IGNORECASE)
"""Names that git-check-ref-format(1) refuses; case does not count for some disks."""


class Refused(UserError):  # noqa: N818  # what happened
    """The bundle is not one that the agent's repository would write."""

    def __init__(self, why: str, hint: str = "look at what the agent does to that file") -> None:
        super().__init__(f"{PATH} is refused: {why}", hint, Exit.SYSTEM)


@dataclass(frozen=True)
class Written:
    """Time and size of a bundle file."""

    time: float
    size: int
    identity: tuple[int, int, int]
    """Device, inode and time in nanoseconds: another file has others."""


@dataclass(frozen=True)
class Header:
    """The header of a bundle."""

    object_format: str
    prerequisites: tuple[str, ...]
    """The commits that it builds on."""
    refs: dict[str, str]
    """The object ids of its branches and tags, by full name. None if nothing is new."""
    length: int
    """Where the pack begins."""

    def named(self, prefix: str) -> dict[str, str]:
        """Return the branches (HEADS) or the tags (TAGS) by their short names."""
        found = self.refs.items()
        return {name.removeprefix(prefix): one for name, one in found if name.startswith(prefix)}


@contextmanager
def _opened_directory(top: str) -> Iterator[int]:
    fd = os.open(os.path.join(top, DIRECTORY), _DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def copy(top: str, target: BinaryIO, limit: int) -> Written:
    """Copy the bundle of a project to ``target``. Raises UserError if there is none; Refused."""
    try:
        with _opened_directory(top) as directory:
            fd = os.open(NAME, _FILE, dir_fd=directory)
    except FileNotFoundError:
        raise _nothing(top) from None
    except OSError as error:  # a symlink, a socket, a file that is no directory
        raise Refused(f"it cannot be opened: {error.strerror}") from None
    try:
        st = os.fstat(fd)
        if not S_ISREG(st.st_mode):
            raise Refused("it is not a regular file")
        size = 0
        while chunk := os.read(fd, _CHUNK):
            size += len(chunk)
            if size > limit or st.st_size > limit:
                raise Refused(f"it is larger than {limit >> 20} MiB", "--limit SIZE allows more")
            target.write(chunk)
        target.flush()
    finally:
        os.close(fd)
    return Written(st.st_mtime, size, _identity(st))


def _nothing(top: str) -> UserError:
    names = []
    with suppress(OSError), _opened_directory(top) as directory:
        names = os.listdir(directory)
    if any(name.startswith(f"{NAME}.new.") for name in names):
        why, hint = f"{PATH} is being written", "fetch again; if that stays so, "
    else:
        why, hint = f"there is no {os.path.join(top, PATH)}", ""
    hint += "in the guest, which shows the project with --git private: git sync"
    return UserError(f"nothing is published here: {why}", hint, Exit.SYSTEM)


def former(top: str) -> int:
    """Return the number of bundles beside it that the agent's earlier repositories left."""
    with suppress(OSError), _opened_directory(top) as directory:
        names = os.listdir(directory)
        return sum(one.startswith("former-") and one.endswith(".bundle") for one in names)
    return 0


def remove(top: str, only: Written | None = None) -> bool:
    """Remove the bundle; with ``only``, if no newer one is in its place. Return whether it is gone.

    Raises OSError.
    """
    try:
        with _opened_directory(top) as directory:
            st = os.stat(NAME, dir_fd=directory, follow_symlinks=False)
            if only is not None and _identity(st) != only.identity:
                return False
            os.unlink(NAME, dir_fd=directory)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise os_error(error.errno or 0, os.path.join(top, PATH)) from None
    return True


def _identity(st: os.stat_result) -> tuple[int, int, int]:
    return st.st_dev, st.st_ino, st.st_mtime_ns


def parse(file: BinaryIO) -> Header:
    """Return the header of a bundle. Raises Refused."""
    file.seek(0)
    start = file.read(MAX_HEADER)
    head, end, _ = start.partition(b"\n\n")
    if not end:
        raise Refused(f"it has no header of at most {MAX_HEADER >> 20} MiB")
    signature, *lines = head.decode(errors="surrogateescape").split("\n")
    object_format = "sha1"
    if signature == "# v3 git bundle":
        while lines and lines[0].startswith("@"):
            name, _, object_format = lines.pop(0).partition("=")
            if name != "@object-format" or object_format not in _ID:
                raise Refused(f"it asks for {name[:MAX_NAME]!a}, which is not supported")
    elif signature != "# v2 git bundle":
        raise Refused("it is not a bundle of version 2 or 3")
    prerequisites = []
    while lines and lines[0].startswith("-"):
        prerequisites.append(_object_id(lines.pop(0)[1:].partition(" ")[0], object_format))
    if len(lines) > MAX_REFS:
        raise Refused(f"it has more than {MAX_REFS} branches and tags")
    refs: dict[str, str] = {}
    for line in lines:
        value, _, name = line.partition(" ")
        _check_name(name)
        if name in refs:
            raise Refused(f"it has {name} twice")
        refs[name] = _object_id(value, object_format)
    if not refs and (prerequisites or len(start) > len(head) + len(end)):
        raise Refused("there is no branch in it")
    _check_apart(refs)
    return Header(object_format, tuple(prerequisites), refs, len(head) + len(end))


def _object_id(text: str, object_format: str) -> str:
    if not re.fullmatch(_ID[object_format], text, re.ASCII) or not text.strip("0"):
        raise Refused("a line of its header has no object id")
    return text


def _check_name(name: str) -> None:
    """Raise Refused for a name that is not an ordinary one of a branch or a tag."""
    fits = len(name) <= MAX_NAME and _REF.fullmatch(name) and not _UNFIT.search(name)
    if not fits or name.partition("/")[2].partition("/")[2].casefold() == "head":
        # In ASCII alone: letters of other scripts look like those that are allowed.
        raise Refused(f"it has a ref of the name {name[:MAX_NAME]!a}")


def _check_apart(refs: dict[str, str]) -> None:
    """Raise Refused for refs that a disk could take for one file, or for a file and a directory."""
    seen: dict[str, str] = {}
    for name in refs:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            raise Refused(f"it has both {other} and {name}")
    for folded, name in seen.items():
        parts = folded.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        for one in above:
            if one in seen:
                raise Refused(f"it has both {seen[one]} and {name}")
