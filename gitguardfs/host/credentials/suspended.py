"""The values of secrets that a guest's request held: no VM may use such a value again.

A guest can put guesses into a request, and see in the answer which of them the proxy masks. So a
right guess must end the use of the value, and must not say which of the guesses it was. The file
has no value: a slow digest of each, and the store's keys under which it was found. It lies beside
the states of the VMs, so that neither a restart nor a reset forgets it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.credentials import private_json

FILE = "suspended-secrets.json"
ROUNDS = 100_000
"""Rounds of a digest: a reader of the file must not find a short value soon."""

_unwritten: set[str] = set()
"""Values that this process has suspended and could not write down, as on a full disk."""


class _Record(NamedTuple):
    content: bytes | None
    """The file as it was read."""
    salt: str
    found: dict[str, list[str]]
    """The store's keys, by the digest of their value. A digest stays when its keys are gone."""


def path() -> Path:
    """Return the path of the file."""
    return private_json.state_directory() / FILE


def keys() -> set[str]:
    """Return the store's keys whose value is suspended, as far as known. Raises UserError, OSError.

    A value in a keyring is compared when it is used the next time.
    """
    return {key for found in _read().found.values() for key in found}


def is_suspended(key: str, value: str) -> bool:
    """Return whether nobody may use a value; note that ``key`` has it. UserError, OSError."""
    record = _read()
    digest = _digest(record.salt, value) if record.found else ""
    if value not in _unwritten and digest not in record.found:
        return False
    if key and (value in _unwritten or key not in record.found[digest]):
        with suppress(UserError, OSError):  # the key is shown as suspended only later then
            _note(key, value)
    return True


def suspend(key: str, value: str) -> bool:
    """Suspend a value for all VMs; return whether it was not before. Raises UserError, OSError.

    A value that cannot be written down is suspended for this process.
    """
    _unwritten.add(value)
    return _note(key, value)


def forget(key: str) -> None:
    """Note that a key has another value, or none. Raises UserError, OSError."""
    if key not in keys():
        return
    with private_json.locked(path()):
        content, salt, found = _read()
        kept = {digest: [one for one in names if one != key] for digest, names in found.items()}
        private_json.write(path(), content, {"salt": salt, "found": kept})


def _note(key: str, value: str) -> bool:
    with private_json.locked(path()):
        content, salt, found = _read()
        salt = salt or secrets.token_hex(16)
        digest = _digest(salt, value)
        is_new = digest not in found
        if key not in found.get(digest, ()):
            found = {**found, digest: [*found.get(digest, ()), key]}
            private_json.write(path(), content, {"salt": salt, "found": found})
    _unwritten.discard(value)
    return is_new


@functools.lru_cache(maxsize=256)
def _digest(salt: str, value: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", value.encode(), bytes.fromhex(salt), ROUNDS).hex()


def _read() -> _Record:
    content = private_json.read(path())
    if content is None:
        return _Record(None, "", {})
    try:
        fields = json.loads(content)
        salt, found = fields["salt"], fields["found"]
        bytes.fromhex(salt)
        if not all(isinstance(key, str) for names in found.values() for key in names):
            raise TypeError("a key")
        return _Record(content, salt, found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{shown(str(path()))} is damaged",
            "change the values of all secrets, then delete it",
            Exit.SYSTEM,
        ) from None
