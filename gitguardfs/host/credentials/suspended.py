"""Remembers the values of secrets that a guest's request held: no VM may use such a value again.

A guest can put guesses into a request, and see in the answer which of them the proxy masks. So a
right guess must end the use of the value, and must not say which of the guesses it was. The file
has no value: a slow digest of each, and the store's keys under which it was found. It lies beside
the states of the VMs, so that neither a restart nor a reset forgets it.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gitguardfs.base import config_files
from gitguardfs.base.errors import Exit, UserError, shown

FILE = "suspended-secrets.json"
ROUNDS = 100_000
"""Of the digest: who reads the file must not find a short value soon."""

_unwritten: set[str] = set()
"""Values that this process has suspended and could not write down, as on a full disk."""


class _Record(NamedTuple):
    """The content of the file."""

    salt: str
    found: dict[str, list[str]]
    """The store's keys, by the digest of their value. A digest stays when its keys are gone."""


def directory() -> Path:
    """Return the user's directory of this file, of the values, and of the states of the VMs."""
    import platformdirs

    return Path(platformdirs.user_state_dir("gitguardfs", appauthor=False))


def keys() -> set[str]:
    """Return the store's keys whose value is suspended, as far as it is known. UserError, OSError.

    A value in a keyring is compared when it is used the next time.
    """
    return {key for found in _read()[1].found.values() for key in found}


def is_suspended(key: str, value: str) -> bool:
    """Return whether nobody may use a value; note that ``key`` has it. UserError, OSError."""
    if value in _unwritten:
        with suppress(UserError, OSError):
            _suspend(key, value)
        return True
    record = _read()[1]
    if not record.found or (digest := _digest(record.salt, value)) not in record.found:
        return False
    if key and key not in record.found[digest]:
        with suppress(UserError, OSError):  # it is only told later then
            _suspend(key, value)
    return True


def suspend(key: str, value: str) -> bool:
    """Suspend a value for all VMs; return whether it was not before. UserError, OSError.

    A value that cannot be written down is suspended for this process.
    """
    _unwritten.add(value)
    return _suspend(key, value)


def forget(key: str) -> None:
    """Note that a key has another value, or none. Raises UserError, OSError."""
    if key not in keys():
        return
    with _changing() as (before, record):
        for found in record.found.values():
            found[:] = [one for one in found if one != key]
        _write(before, record)


def _suspend(key: str, value: str) -> bool:
    with _changing() as (before, record):
        salt = record.salt or secrets.token_hex(16)
        digest = _digest(salt, value)
        is_new = digest not in record.found
        known = record.found.setdefault(digest, [])
        if key not in known:
            known.append(key)
            _write(before, _Record(salt, record.found))
    _unwritten.discard(value)
    return is_new


@functools.lru_cache(maxsize=256)
def _digest(salt: str, value: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", value.encode(), bytes.fromhex(salt), ROUNDS).hex()


@contextmanager
def _changing() -> Iterator[tuple[bytes | None, _Record]]:
    """Let no other process change the file meanwhile; yield what it holds. UserError, OSError."""
    config_files.make_private_directory(directory())
    fd = os.open(directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for left in directory().glob(f".{FILE}.*"):  # of a process that was killed
            left.unlink()
        yield _read()
    finally:
        os.close(fd)


def _write(before: bytes | None, record: _Record) -> None:
    after = json.dumps({"salt": record.salt, "found": record.found}, indent=1).encode() + b"\n"
    config_files.write(config_files.FileChange(str(directory() / FILE), before, after, 0o600))


def _read() -> tuple[bytes | None, _Record]:
    """Return the file's content, and what it says. Raises UserError, OSError."""
    path = directory() / FILE
    damaged = UserError(
        f"{shown(str(path))} is damaged", "change the values of all secrets, then delete it",
        Exit.SYSTEM,
    )  # fmt: skip
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, _Record("", {})
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise damaged from None
        raise
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise damaged
        content = file.read()
    try:
        salt, found = json.loads(content)["salt"], json.loads(content)["found"]
        bytes.fromhex(salt)
        if not all(isinstance(key, str) for known in found.values() for key in known):
            raise TypeError("a key")
        return content, _Record(salt, found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged from None
