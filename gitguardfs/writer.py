"""The one writer of files that others rely on: whole or not at all, compared before, undone after.

A `Change` is what a file holds and what it is to hold. It is applied by a rename, so that a
reader, or a crash, meets the old text or the new one and nothing between.
"""

from __future__ import annotations

import difflib
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace

from gitguardfs.errors import Exit, UserError

BACKUP_SUFFIX = ".before-gitguardfs"
_LABEL = "security.selinux"
_MAX_SYMLINKS = 40


@dataclass(frozen=True)
class Change:
    """``path``'s content before and after; None is no file. Owner and mode stay as they are."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    """Of a file that is made."""

    @property
    def is_one(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    def diff(self) -> str:
        """The change as a unified diff; empty if there is none."""
        old, new = _lines(self.before), _lines(self.after)
        origin = "/dev/null" if self.before is None else self.path
        result = "/dev/null" if self.after is None else self.path
        text = "".join(difflib.unified_diff(old, new, origin, result))
        if not text and self.is_one:  # an empty file comes or goes
            return f"--- {origin}\n+++ {result}\n"
        return text


def _lines(content: bytes | None) -> list[str]:
    lines = (content or b"").decode(errors="replace").split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, f"{lines[-1]}\n\\ No newline at end of file\n"] if lines[-1] else ended


def planned(path: str, after: bytes | str | None, mode: int = 0o644) -> Change:
    """The change that makes ``path`` hold ``after``, from what it holds now. OSError."""
    text = after.encode() if isinstance(after, str) else after
    return Change(path, read(path), text, mode)


def read(path: str) -> bytes | None:
    """What ``path`` holds; None if it does not exist. OSError for any other reason."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def apply(change: Change, *, backup: bool = False) -> None:
    """Carry out a change, in a directory that is made if it is missing.

    ``backup`` keeps what was there beside it (BACKUP_SUFFIX), unless an earlier change has: the
    first one is what was there before us. A symlink that is root's, or the caller's, is followed.
    UserError if the file is no longer what the change was made for; OSError if it cannot be
    written.
    """
    if not change.is_one:
        return
    real = _follow(change.path)
    if read(change.path) != change.before:
        raise UserError(f"{change.path} was changed by somebody else just now", "run it again")
    saved = f"{change.path}{BACKUP_SUFFIX}"
    if backup and change.before is not None and not os.path.lexists(saved):
        _put(saved, change.before, real, change.mode)
    if change.after is None:
        os.unlink(change.path)
        _drop_empty_drop_in_directory(change.path)
        return
    os.makedirs(os.path.dirname(real), 0o755, exist_ok=True)
    _put(real, change.after, real, change.mode)


def revert(change: Change) -> None:
    """Undo an applied change; UserError if the file was changed since."""
    apply(replace(change, before=change.after, after=change.before))


def _follow(path: str) -> str:
    """The file itself; UserError if a symlink to it is another user's, or leads to a device."""
    named = path
    for _ in range(_MAX_SYMLINKS):
        if not os.path.islink(path):
            break
        if os.lstat(path).st_uid not in (0, os.geteuid()):
            raise UserError(f"{path} is a symlink of another user's", "replace it by the file")
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise UserError(f"{named} is not a file", "move it away")
    return path


def _drop_empty_drop_in_directory(path: str) -> None:
    directory = os.path.dirname(path)
    if directory.endswith(".d"):
        with suppress(OSError):  # others' drop-ins are in it
            os.rmdir(directory)


def _put(path: str, content: bytes, like: str, mode: int) -> None:
    directory, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            _dress(file.fileno(), like, mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_directory(directory)


def _dress(descriptor: int, like: str, mode: int) -> None:
    """Owner, mode and SELinux label of the file ``like``; without one, ``mode`` and our own."""
    try:
        st = os.stat(like)
    except FileNotFoundError:
        os.fchmod(descriptor, mode)
        return
    os.fchown(descriptor, st.st_uid, st.st_gid)
    os.fchmod(descriptor, st.st_mode & 0o7777)
    with suppress(OSError):
        os.setxattr(descriptor, _LABEL, os.getxattr(like, _LABEL))


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_or_write(changes: list[Change], check: bool) -> int:
    """Write the changes and say so, or with ``check`` only say what differs; the exit code."""
    wrong = [change for change in changes if change.is_one]
    for change in wrong:
        if not check:
            apply(change)
        print(f"{change.path}: {'differs' if check else 'written'}")
    return Exit.USAGE if check and wrong else Exit.OK
