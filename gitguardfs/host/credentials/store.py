"""The store of secret values: the user's keyring, or one file that only the user can read.

A new value gets into the keyring, or into the file if the library ``keyring`` finds no keyring, as
on a server. It stays there when it changes, so that there is never a second, older one. The file
has all keys: with their values, or with null for one that is in the keyring.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.questions import OneByOne, PausedError
from gitguardfs.host.credentials import private_json, suspended

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

T = TypeVar("T")
Values = dict[str, str | None]

SERVICE = "gitguardfs"
"""The name of the service in the keyring, for all keys."""
FILE = "secret-values.json"
READ_LIMIT = 20.0
"""Seconds for the keyring to answer. If it is locked, its user may be asked for a password."""
WRITE_LIMIT = 120.0
"""Seconds for the keyring to keep or delete a value, at the wish of a user who sits before it."""
MIN_PRIORITY = 1
"""Lowest priority of a keyring that the library recommends. Others keep nothing, or plain files."""

_QUESTIONS = OneByOne()
"""The questions to the keyring."""


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
    """Return the keys of all values that begin so. Raises UserError, OSError."""
    return [key for key in _values() if key.startswith(beginning)]


def name_in_keyring(key: str) -> str:
    """Return the user's name for a key in the keyring, which other state directories share."""
    return f"{key} in {os.path.realpath(_path().parent)}"


def write(key: str, value: str) -> str:
    """Keep a value; return its place, as the user knows it: a keyring's name, or the file's path.

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
    with _changing() as values:
        is_new = key not in values
        is_for_file = values.get(key) is not None or (is_new and not has_keyring)
        values[key] = value if is_for_file else None  # a key of the keyring first: it must be known
    if is_for_file:
        return str(_path())
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
    with _changing() as values:
        is_known = key in values
        is_in_file = values.get(key) is not None
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
    return private_json.state_directory() / FILE


def _values() -> Values:
    """Return the values in the file. Not locked: it is replaced whole. UserError, OSError."""
    return _parsed(private_json.read(_path()))


@contextmanager
def _changing() -> Iterator[Values]:
    """Lock the file; yield its values, and write them anew if they differ then. UserError, OSError.

    The file is deleted when there are none.
    """
    path = _path()
    with private_json.locked(path):
        before = private_json.read(path)
        values = _parsed(before)
        yield values
        if values != _parsed(before):
            private_json.write(path, before, values)


def _forget(key: str) -> None:
    with _changing() as values:
        values.pop(key, None)


def _ask(question: Callable[[KeyringBackend], T], limit: float) -> T:
    """Return the keyring's answer. Raises UserError, and NoKeyringError."""

    def ask() -> tuple[T] | None:
        keyring = _keyring()
        return None if keyring is None else (question(keyring),)

    try:
        answer = _QUESTIONS.ask(ask, limit)
    except PausedError:
        why = "the keyring has refused, and is asked again after a pause"
    except TimeoutError:
        why = f"the keyring did not answer within {limit:.0f} seconds"
    except Exception as error:  # of any library; its text could hold the value
        why = f"the keyring failed: {type(error).__name__}"
    else:
        if answer is None:
            raise NoKeyringError
        return answer[0]
    raise UserError(why, "unlock it", Exit.SYSTEM)


def _keyring() -> KeyringBackend | None:
    """Return the keyring that the library chooses; None if that is no real one."""
    try:
        import keyring
    except ImportError:
        return None
    found = keyring.get_keyring()
    return found if found.priority >= MIN_PRIORITY else None


def _parsed(content: bytes | None) -> Values:
    try:
        found: Any = {} if content is None else json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        value is None or isinstance(value, str) for value in found.values()
    ):
        raise UserError(
            f"{shown(str(_path()))} is damaged",
            "move it away; gitguard vm secret rotate keeps a value anew", Exit.SYSTEM,
        )  # fmt: skip
    return found
