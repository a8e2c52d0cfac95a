"""Writes configuration files atomically: compares before, and can undo. No other module does.

A `FileChange` has a file's old and new content. It is written by a rename, so that a reader sees
the old content or the new one, also after a crash.
"""

from __future__ import annotations

import difflib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from gitguardfs.base.constants import MAX_SYMLINKS, SELINUX_LABEL
from gitguardfs.base.errors import Exit, GitguardExit, UserError, os_error, shown

BACKUP_SUFFIX = ".before-gitguardfs"


@dataclass(frozen=True)
class FileChange:
    """A file's content before and after; None stands for no file. Owner and mode are kept."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    """Mode of a new file."""

    @property
    def is_needed(self) -> bool:
        """Return whether the content differs."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff; empty if the content is the same."""
        old, new = _lines(self.before), _lines(self.after)
        origin = "/dev/null" if self.before is None else self.path
        result = "/dev/null" if self.after is None else self.path
        text = "".join(difflib.unified_diff(old, new, origin, result))
        if not text and self.is_needed:  # an empty file is made or deleted
            return f"--- {origin}\n+++ {result}\n"
        return text


def _lines(content: bytes | None) -> list[str]:
    lines = (content or b"").decode(errors="replace").split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, f"{lines[-1]}\n\\ No newline at end of file\n"] if lines[-1] else ended


def plan(path: str, after: bytes | str | None, mode: int = 0o644) -> FileChange:
    """Return the change from the present content of ``path`` to ``after``. Raises as ``read``."""
    text = after.encode() if isinstance(after, str) else after
    return FileChange(path, read(path), text, mode)


def read(path: str) -> bytes | None:
    """Return the content of a file; None if there is none, empty for a device or a FIFO.

    Raises UserError for a symlink that another user may have made, and OSError.
    """
    try:
        with _place_of(path) as place:
            return place.content()
    except FileNotFoundError:
        return None
    except OSError as error:
        error.filename = path  # not what it is called in its directory
        raise


def write(change: FileChange, *, backup: bool = False) -> None:
    """Apply a change. Makes the file's directory if it is missing.

    ``backup`` keeps the old content beside the file (BACKUP_SUFFIX), unless a backup exists: the
    first one has the content from before gitguardfs. A symlink is followed if only root or the
    caller can have made it. Raises UserError if the content is no longer ``change.before`` or the
    object is not a regular file, OSError if it cannot be written.
    """
    if not change.is_needed:
        return
    with _place_of(change.path, make=change.after is not None) as place:
        if not place.is_regular():
            raise UserError(f"{change.path} is not a regular file", "move it away")
        if place.content() != change.before:
            raise UserError(f"{change.path} was changed meanwhile", "run the command again")
        if backup and change.before is not None:
            with _directory_of(f"{change.path}{BACKUP_SUFFIX}") as (directory, name):
                saved = _Place(directory, name)
                if not saved.exists():
                    saved.put(change.before, place, change.mode)
        if change.after is not None:
            place.put(change.after, place, change.mode)
            return
    _remove(change.path)


def put(path: str | os.PathLike[str], after: bytes | str | None, mode: int = 0o600) -> None:
    """Give a file this content, whatever it has; None removes it. Raises as ``write``."""
    write(plan(os.fspath(path), after, mode))


def revert(change: FileChange) -> None:
    """Undo an applied change. Raises UserError if the file was changed since, and OSError."""
    write(replace(change, before=change.after, after=change.before))


def _remove(path: str) -> None:
    """Remove a file, and its directory if that holds drop-ins (``.d``) and is empty then."""
    with _directory_of(path) as (directory, name):
        os.unlink(name, dir_fd=directory)
    holder = os.path.dirname(path)
    if holder.endswith(".d"):
        with suppress(OSError), _directory_of(holder) as (directory, name):
            os.rmdir(name, dir_fd=directory)  # fails if other drop-ins are in it


@dataclass(frozen=True)
class _Place:
    """A name in an open directory; a symlink of that name is never followed."""

    directory: int
    name: str

    def stat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)

    def exists(self) -> bool:
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_regular(self) -> bool:
        """Return whether the name is a regular file, or free."""
        return not self.exists() or stat.S_ISREG(self.stat().st_mode)

    def open(self) -> int:
        # O_NONBLOCK: opening a FIFO must not block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(self.name, flags, dir_fd=self.directory)

    def content(self) -> bytes | None:
        if not self.exists():
            return None
        if not stat.S_ISREG(self.stat().st_mode):
            return b""
        with os.fdopen(self.open(), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""

    def put(self, content: bytes, like: _Place, mode: int) -> None:
        """Write a temporary file with the owner and mode of ``like``, and rename it. OSError."""
        temporary = f".{self.name[:100]}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=self.directory)
        here = self.directory
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                _copy_metadata(file.fileno(), like, mode)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.name, src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=here)
            raise
        _sync_directory(here)


@contextmanager
def _place_of(path: str, *, make: bool = False) -> Iterator[_Place]:
    """Yield the place of a file, after following symlinks. Raises UserError, OSError."""
    named = path
    for _ in range(MAX_SYMLINKS):
        with _directory_of(path, make=make) as (directory, name):
            place = _Place(directory, name)
            if not (place.exists() and stat.S_ISLNK(place.stat().st_mode)):
                yield place
                return
            target = os.readlink(name, dir_fd=directory)
            if not _may_follow(place):
                raise UserError(
                    f"{shown(path)} is a symlink of another user's, and leads to {shown(target)}",
                    "replace it by the file",
                )
            path = os.path.join(os.path.dirname(path), target)
    raise os_error(errno.ELOOP, named)


def _may_follow(link: _Place) -> bool:
    """Return whether only root or the caller can have made a symlink."""
    user = os.geteuid()
    above = os.stat(".", dir_fd=link.directory)
    is_ours = {link.stat().st_uid, above.st_uid} <= {0, user}
    return is_ours and (user != 0 or not above.st_mode & 0o022)


@contextmanager
def _directory_of(path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the directory of ``path``; yield its descriptor and the last component of ``path``."""
    above, name = os.path.split(os.path.abspath(path))
    fd = _open_directory(above, make)
    try:
        yield fd, name
    finally:
        os.close(fd)


def _open_directory(path: str, make: bool) -> int:
    if os.geteuid() != 0 or not hasattr(os, "O_PATH"):  # a Mac
        if make:
            os.makedirs(path, 0o755, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    from gitguardfs.linux import safe_open

    found = safe_open.resolve(path)
    if found.missing and not make:
        os.close(found.fd)
        raise os_error(errno.ENOENT, path)
    fd = found.fd
    for name in found.missing:
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(name, flags, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _copy_metadata(descriptor: int, like: _Place, mode: int) -> None:
    """Copy owner, mode and SELinux label of the file ``like``; set ``mode`` if it is missing."""
    try:
        model = like.open()
    except FileNotFoundError:
        os.fchmod(descriptor, mode)
        return
    try:
        st = os.fstat(model)
        os.fchown(descriptor, st.st_uid, st.st_gid)
        os.fchmod(descriptor, st.st_mode & 0o777)
        with suppress(OSError, AttributeError):  # a Mac has no such calls
            os.setxattr(descriptor, SELINUX_LABEL, os.getxattr(model, SELINUX_LABEL))
    finally:
        os.close(model)


def _sync_directory(directory: int) -> None:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory of mode 0700; give an existing one that mode.

    Raises UserError if the directory belongs to another user, OSError.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise UserError(
                f"{os.fspath(path)} belongs to another user", "move it away", Exit.SYSTEM
            )
        os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def check_or_write(changes: list[FileChange], check: bool) -> int:
    """Write the changes, or with ``check`` only report differences. Returns the exit code."""
    wrong = [change for change in changes if change.is_needed]
    for change in wrong:
        if not check:
            write(change)
        print(f"{change.path}: {'differs' if check else 'written'}")
    return GitguardExit.FINDINGS if check and wrong else GitguardExit.OK
