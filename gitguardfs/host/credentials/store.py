"""Keeps the values of secrets: in the user's keyring, or in one file that only the user can read.

A new value gets into the keyring, or into the file if the library ``keyring`` finds no keyring, as
on a server. It stays there when it changes, so that there is never a second, older one. The file
has all keys: with their values, or with null for one that is in the keyring.

The file lies beside the states of the VMs: no project can hold it, since none may hold those.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gitguardfs.base import config_files
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.questions import OneByOne, PausedError
from gitguardfs.host.credentials import suspended

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

T = TypeVar("T")

SERVICE = "gitguardfs"
"""The name of the service in the keyring, for all keys."""
FILE = "secret-values.json"
READ_LIMIT = 20.0
"""Seconds for the keyring to answer. If it is locked, its user may be asked for a password."""
WRITE_LIMIT = 120.0
"""Seconds for the keyring to keep or delete a value, at the wish of a user who sits before it."""
MIN_PRIORITY = 1
"""Of a keyring that the library recommends. Those below keep nothing, or keep it in plain files."""

_QUESTIONS = OneByOne()
"""To the keyring."""


class NoKeyringError(UserError):
    """The value is in a keyring that this session cannot use."""

    def __init__(self) -> None:
        super().__init__(
            "the value is in a keyring, and this session has none",
            "use the session in which it was set", Exit.SYSTEM,
        )  # fmt: skip


def read(key: str) -> str | None:
    """Return the value of a key; None if there is none.

    Raises UserError if the keyring is missing, locked or does not answer in time, or the file is
    unusable; OSError.
    """
    values = _values()
    if key not in values or values[key] is not None:
        return values.get(key)
    name = name_in_keyring(key)
    return _ask(lambda keyring: keyring.get_password(SERVICE, name), READ_LIMIT)


def is_in_keyring(key: str) -> bool:
    """Return whether a value lies in the keyring, for which ``read`` waits. UserError, OSError."""
    values = _values()
    return key in values and values[key] is None


def keys(beginning: str) -> list[str]:
    """Return the keys that begin so, of all values that are kept. Raises UserError, OSError."""
    return [key for key in _values() if key.startswith(beginning)]


def name_in_keyring(key: str) -> str:
    """Return the user's name for a key in the keyring, which other state directories share."""
    return f"{key} in {os.path.realpath(_path().parent)}"


def write(key: str, value: str) -> str:
    """Keep a value; return the place, as the user knows it: a keyring's name, or the file's path.

    Raises UserError if the value is suspended, the keyring is missing, locked or does not answer in
    time, or the file is unusable; OSError.
    """
    if suspended.is_suspended("", value):
        raise UserError(
            "a request of an agent held this value, and it may know it",
            "get another one from its service; nothing was kept",
        )
    kept = _write(key, value)
    suspended.forget(key)
    return kept


def _write(key: str, value: str) -> str:
    try:
        has_keyring = _ask(lambda _: True, WRITE_LIMIT)
    except NoKeyringError:
        has_keyring = False
    with _file() as content:
        is_new = key not in content.values
        if content.values.get(key) is not None or (is_new and not has_keyring):
            content.change({**content.values, key: value})
            return str(content.path)
        content.change({**content.values, key: None})  # first: what is kept must be known
    name = name_in_keyring(key)

    def keep(keyring: KeyringBackend) -> str:
        keyring.set_password(SERVICE, name, value)
        return f"the keyring ({keyring.name})"

    try:
        return _ask(keep, WRITE_LIMIT)
    except BaseException:
        if is_new:
            _forget(key)
        raise


def delete(key: str) -> bool:
    """Delete the value of a key; return whether there was one that this session can reach.

    The keyring is asked too if the file does not know the key: it may have been moved away. Raises
    UserError if the keyring has the value and is missing, or is locked or does not answer in time,
    or the file is unusable; OSError. Then the file still has the key.
    """
    with _file() as content:
        is_known = key in content.values
        is_in_file = content.values.get(key) is not None
    name = name_in_keyring(key)

    def remove(keyring: KeyringBackend) -> bool:
        if keyring.get_password(SERVICE, name) is None:
            return False
        keyring.delete_password(SERVICE, name)
        return True

    try:
        was_there = is_in_file or _ask(remove, WRITE_LIMIT)
    except NoKeyringError:
        if is_known:
            raise
        was_there = False
    _forget(key)
    with suppress(UserError, OSError):  # the value is deleted all the same
        suspended.forget(key)
    return was_there


def _path() -> Path:
    return suspended.directory() / FILE


def _values() -> dict[str, str | None]:
    """Return what the file holds. Not locked: it is replaced whole. Raises UserError, OSError."""
    path = _path()
    config_files.make_private_directory(path.parent)
    return _parsed(path, _bytes_of(path))


def _forget(key: str) -> None:
    with _file() as content:
        content.change({name: value for name, value in content.values.items() if name != key})


def _ask(question: Callable[[KeyringBackend], T], limit: float) -> T:
    """Return the keyring's answer. Raises UserError, and NoKeyringError."""

    def ask() -> tuple[T] | None:
        keyring = _keyring()
        return None if keyring is None else (question(keyring),)

    try:
        answer = _QUESTIONS.ask(ask, limit)
        if answer is None:
            raise NoKeyringError
        return answer[0]
    except NoKeyringError:
        raise
    except PausedError:
        what = "the keyring has refused, and is asked again after a pause"
    except TimeoutError:
        what = f"the keyring did not answer within {limit:.0f} seconds"
    except Exception as error:  # of any library; its text could hold the value
        what = f"the keyring failed: {type(error).__name__}"
    raise UserError(what, "unlock it", Exit.SYSTEM)


def _keyring() -> KeyringBackend | None:
    """Return the keyring that the library chooses; None if that is no real one."""
    try:
        import keyring
    except ImportError:
        return None
    found = keyring.get_keyring()
    return found if found.priority >= MIN_PRIORITY else None


class _Content:
    """What the file holds, while this process has it locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = _bytes_of(path)
        self.values = _parsed(path, self._before)

    def change(self, values: dict[str, str | None]) -> None:
        """Write other values atomically; delete the file if there are none. UserError, OSError."""
        after = json.dumps(values, indent=1).encode() + b"\n" if values else None
        if values != self.values:
            config_files.write(config_files.FileChange(str(self.path), self._before, after, 0o600))


@contextmanager
def _file() -> Iterator[_Content]:
    """Lock the file, and yield what it holds. Raises UserError, OSError.

    Deletes what a process has left that was killed while it wrote the file.
    """
    path = _path()
    directory = path.parent
    config_files.make_private_directory(directory)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for left in directory.glob(f".{FILE}.*"):
            left.unlink()
        yield _Content(path)
    finally:
        os.close(fd)


def _bytes_of(path: Path) -> bytes | None:
    """Return the file's content; None if there is no file. Raises UserError, OSError."""
    unusable = UserError(
        f"{shown(str(path))} is not a regular file of yours", "move it away", Exit.SYSTEM
    )
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a symlink
            raise unusable from None
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(fd)
        raise unusable
    with open(fd, "rb") as file:
        os.fchmod(fd, 0o600)
        return file.read()


def _parsed(path: Path, content: bytes | None) -> dict[str, str | None]:
    try:
        found: Any = {} if content is None else json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        value is None or isinstance(value, str) for value in found.values()
    ):
        raise UserError(
            f"{shown(str(path))} is damaged",
            "move it away; gitguard vm secret rotate keeps a value anew", Exit.SYSTEM,
        )  # fmt: skip
    return found
