"""A VM's secrets: their names, hosts and placeholders. Their values are in the store.

The record is a file in the VM's state directory. The proxy reads it at every request, so a change
counts in a running VM.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.credentials import private_json, store, suspended

FILE = "secrets.json"
MIN_VALUE, MIN_DIGITS, MAX_VALUE = 8, 16, 4096
"""Characters of a value, and of one that has only digits. A shorter one could be guessed, and it
could be a part of other texts."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PREFIX = "gitguard-secret-"
PLACEHOLDER = re.compile(rf"{_PREFIX}[A-Za-z0-9_]+-[0-9a-f]{{32}}", re.IGNORECASE)
HTTPS_PORT = 443


class Kind(Enum):
    """The part of a request that holds a value."""

    BEARER = "bearer"
    """``Authorization: WORD VALUE``, usually with the word Bearer."""
    BASIC = "basic"
    """The password of ``Authorization: Basic``."""
    HEADER = "header"
    """The whole of a header field."""
    QUERY = "query"
    """The whole of a parameter of the URL's query."""


@dataclass(frozen=True)
class Place:
    """A place in the requests to one host, in which a value may stand. Always by https."""

    host: str
    """The host in normal form; an IPv6 address without brackets."""
    port: int
    kind: Kind
    word: str
    """The word before the value (BEARER), the user (BASIC), or the name (HEADER, QUERY)."""

    @property
    def authority(self) -> str:
        """Host and port; without the usual port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == HTTPS_PORT else f"{host}:{self.port}"

    @property
    def where(self) -> str:
        """The place for the user, without the host."""
        return {
            Kind.BEARER: f"Authorization: {self.word}",
            Kind.BASIC: f"the password of the user {self.word} (Authorization: Basic)",
            Kind.HEADER: f"the field {self.word}",
            Kind.QUERY: f"the parameter {self.word} of the URL",
        }[self.kind]


@dataclass(frozen=True)
class Secret:
    """A secret of a VM, without its value."""

    name: str
    """The variable in the guest."""
    placeholder: str
    """The text that the guest has in place of the value."""
    places: tuple[Place, ...]
    kept: str = ""
    """The name of the value's store, for the user."""
    preset: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that may get the value, with their ports."""
        return tuple(dict.fromkeys(place.authority for place in self.places))

    @property
    def where(self) -> str:
        """The places in a request, for the user."""
        return ", or ".join(dict.fromkeys(place.where for place in self.places))


def new_placeholder(name: str) -> str:
    """Return a placeholder that nobody can guess, of characters that no URL escapes."""
    return f"{_PREFIX}{name}-{secrets.token_hex(16)}"


def key(state_dir: Path, name: str) -> str:
    """Return the store's key for a secret's value."""
    return f"vm/{state_dir.name}/{name}"


def suspended_names(state_dir: Path) -> set[str]:
    """Return the names of secrets whose value is suspended, as far as known. UserError, OSError."""
    found = suspended.keys()
    return {one.name for one in load(state_dir) if key(state_dir, one.name) in found}


def why_suspended(name: str) -> str:
    """Return the text about a suspended secret: what has happened, and what helps."""
    return (
        f"the secret {name} is suspended, since a request held its value: change it at its service,"
        f" then gitguard vm secret rotate {name}"
    )


def load(state_dir: Path) -> tuple[Secret, ...]:
    """Return the secrets of the VM with this state directory. UserError, OSError."""
    content = private_json.read(state_dir / FILE)
    return () if content is None else _parsed(str(state_dir / FILE), content)


def save(state_dir: Path, found: Sequence[Secret]) -> None:
    """Replace the record atomically. Raises UserError, OSError."""
    path = state_dir / FILE
    fields = [
        {**asdict(secret), "places": [{**asdict(p), "kind": p.kind.value} for p in secret.places]}
        for secret in found
    ]
    private_json.write(path, private_json.read(path), fields)


def value_of(state_dir: Path, secret: Secret) -> str:
    """Return a secret's value from the store. Raises UserError if there is none, OSError."""
    value = store.read(key(state_dir, secret.name))
    if value is None:
        raise UserError(f"there is no value in {secret.kept}", code=Exit.SYSTEM)
    check_value(value)
    return value


def check_value(value: str) -> None:
    """Raise UserError for a value that cannot stand in every place; do not name it."""
    if not value:
        raise UserError("the value is empty", "nothing was kept")
    if "\n" in value or "\r" in value:
        raise UserError("the value has several lines", "give one line; nothing was kept")
    if not all(" " <= character <= "~" for character in value):
        raise UserError(
            "the value has a control character, or one that is not ASCII", "nothing was kept"
        )
    if value != value.strip():
        raise UserError("the value begins or ends with a blank", "nothing was kept")
    if not MIN_VALUE <= len(value) <= MAX_VALUE:
        raise UserError(
            f"the value has {len(value)} characters",
            f"{MIN_VALUE} to {MAX_VALUE} are possible; nothing was kept",
        )
    if value.isdigit() and len(value) < MIN_DIGITS:
        raise UserError(
            f"the value has only {len(value)} digits, and could be guessed",
            f"{MIN_DIGITS} or more are possible, or other characters; nothing was kept",
        )
    if PLACEHOLDER.search(value):
        raise UserError("the value is a placeholder, not a secret", "nothing was kept")


@functools.lru_cache(maxsize=4)
def _parsed(path: str, content: bytes) -> tuple[Secret, ...]:
    try:
        found = tuple(_secret(entry) for entry in json.loads(content))
        if len({secret.name for secret in found}) < len(found):  # they would share a value
            raise ValueError(path)
        return found
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{shown(path)} is damaged", "move it away", Exit.SYSTEM) from None


def _secret(entry: dict[str, object]) -> Secret:
    """Return the secret that an entry describes. Raises ValueError, KeyError, TypeError."""
    texts = [entry[field] for field in ("name", "placeholder", "kept", "preset")]
    name, placeholder, kept, preset = (text for text in texts if isinstance(text, str))
    if not NAME.fullmatch(name) or not PLACEHOLDER.fullmatch(placeholder):
        raise ValueError(name)
    places = entry["places"]
    if not isinstance(places, list) or not places:
        raise ValueError(name)
    return Secret(name, placeholder, tuple(_place(one) for one in places), kept, preset)


def _place(entry: dict[str, object]) -> Place:
    host, port, word = entry["host"], entry["port"], entry["word"]
    if not (isinstance(host, str) and isinstance(port, int) and isinstance(word, str)):
        raise TypeError("a place")
    return Place(host, port, Kind(entry["kind"]), word)
