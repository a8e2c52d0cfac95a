"""The images and ready disks in the cache: which VMs use them, and deleting those that none uses.

A command that makes a VM's disk holds the store's lock, shared, until that disk exists. `prune`
holds it alone. So nothing is deleted between being found and being used.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.vm import fetching, images, ready
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.state import State
from gitguardfs.options.config_files import make_private_directory

_LOCK = "lock"
_REMOVED = "removed-"
_FETCHED = re.compile(r"[0-9a-f]{12}-.*")
_PART = ".part"

Identity = tuple[int, int]
"""Device and inode of a file: the same by whatever name."""


@dataclass(frozen=True)
class Stored:
    """One entry of the cache."""

    path: str
    kind: str
    """``base``, ``ready``, ``damaged`` (a ready disk) or ``unfinished``."""
    size: int
    """Bytes that it takes on the disk."""
    users: tuple[str, ...]
    """The names of the VMs whose disks lie over it."""
    made_from: str = ""
    """The image below a ready disk."""
    agent: str = ""
    """The command of the agent that a ready disk is for."""

    @property
    def name(self) -> str:
        """The name in listings."""
        return os.path.basename(self.path)


def in_use(cache: str) -> AbstractContextManager[None]:
    """Keep ``prune`` from deleting anything, while the context lasts. Raises UserError, OSError."""
    return _locked(cache, fcntl.LOCK_SH, "another command is deleting images")


def _locked(cache: str, how: int, who: str) -> AbstractContextManager[None]:
    os.makedirs(os.path.dirname(cache), 0o700, exist_ok=True)
    make_private_directory(os.path.realpath(cache))
    return fetching.locked(os.path.join(cache, _LOCK), who, how)


def stored(cache: str) -> tuple[list[Stored], list[UserError]]:
    """Return what is in the cache, and an error for each VM of which not all uses are known."""
    uses, errors = _uses()
    names = sorted(os.listdir(cache), reverse=True) if os.path.isdir(cache) else []
    paths = [os.path.join(cache, name) for name in names if _is_ours(name) and not _is_lock(name)]
    return [_entry(path, uses) for path in paths], errors


def _uses() -> tuple[dict[str, set[Identity]], list[UserError]]:
    """Return the files below each VM's disk, all the way down.

    They are found by the disks themselves: not by the record of a ready disk, which may be damaged,
    and not by their names, since a directory can have several.
    """
    uses: dict[str, set[Identity]] = {}
    errors = []
    for state in states.all_states():
        if not state.has_disk:
            continue
        uses[state.name] = set()
        try:
            for base in images.below(state.disk):
                files = _identities(base).keys()
                if files <= uses[state.name]:  # there is none
                    break
                uses[state.name].update(files)
        except UserError as error:
            message = f"what the VM {state.name} uses is not known: {error.message}"
            hint = "gitguard vm reset --project DIR deletes that VM"
            errors.append(UserError(message, hint, Exit.SYSTEM))
    return uses, errors


def _entry(path: str, uses: dict[str, set[Identity]]) -> Stored:
    name = os.path.basename(path)
    made = ready.at(path) if name.startswith(ready.PREFIX) else None
    if made is not None:
        kind = "ready"
    elif name.startswith(ready.PREFIX):
        kind = "damaged"
    else:
        is_whole = _FETCHED.fullmatch(name) is not None and not name.endswith(_PART)
        kind = "base" if is_whole else "unfinished"
    files = _identities(path)
    users = tuple(vm for vm, below in uses.items() if below & files.keys())
    size, below, agent = sum(files.values()), "", ""
    if made is not None:
        below, agent = made.image.disk, made.command
    return Stored(path, kind, size, users, below, agent)


def _identities(path: str) -> dict[Identity, int]:
    """Return the file, or the files in the directory, and the bytes that each takes."""
    found = {}
    paths = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else []
    for one in paths or [path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(one)
            found[(status.st_dev, status.st_ino)] = status.st_blocks * 512
    return found


def prune(cache: str) -> Iterator[Stored]:
    """Delete what no VM uses, and what killed commands have left; yield each that is deleted.

    Raises UserError if the disk of a VM cannot be read, since what it needs is not known then; at
    the end also if something could not be deleted.
    """
    with _locked(cache, fcntl.LOCK_EX, "another command is starting a VM"):
        found, errors = stored(cache)
        if errors:
            raise errors[0]
        for one in found:
            if not one.users:
                try:
                    _remove(cache, one)
                except UserError as error:
                    errors.append(error)
                else:
                    yield one
        for name in filter(_is_lock, os.listdir(cache)):
            if _is_ours(name):
                os.unlink(os.path.join(cache, name))
    if errors:
        raise errors[0]


def _is_ours(name: str) -> bool:
    ours = (ready.PREFIX, ready.BUILD, _REMOVED)
    return name.startswith(ours) or _FETCHED.fullmatch(name) is not None


def _is_lock(name: str) -> bool:
    return name.endswith(".lock")


def _remove(cache: str, one: Stored) -> None:
    """Delete a file, or a directory that has lost its name first: half a disk must not count."""
    if one.name.startswith(ready.BUILD):
        ready.clear(State("/", one.path))
    elif not os.path.isdir(one.path):
        os.unlink(one.path)
    else:
        gone = os.path.join(cache, _REMOVED + secrets.token_hex(4))
        os.rename(one.path, gone)
        states.delete(gone)
