"""The images and ready disks in the cache: which VMs use them, and deleting those that none uses.

A command that makes a VM's disk holds the store's lock, shared, until that disk exists. `prune`
holds it alone. So nothing is deleted between being found and being used.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gitguardfs.config_files import make_private_directory
from gitguardfs.errors import Exit, UserError, shown
from gitguardfs.vm import fetching, images, ready
from gitguardfs.vm import state as states
from gitguardfs.vm.state import State

_LOCK = "lock"
_REMOVED = "removed-"
_FETCHED = re.compile(r"[0-9a-f]{12}-.*")
_UNFINISHED = (".part", ".lock")


@dataclass(frozen=True)
class Stored:
    """One entry of the cache."""

    path: str
    kind: str
    """``base`` or ``ready``."""
    size: int
    """Bytes that it takes on the disk."""
    users: tuple[str, ...]
    """The names of the VMs whose disks lie over it."""
    made_from: str = ""
    """The image below a ready disk."""

    @property
    def name(self) -> str:
        """The name in listings."""
        return os.path.basename(self.path)


def in_use(cache: str) -> AbstractContextManager[None]:
    """Keep ``prune`` from deleting anything, while the context lasts. Raises UserError, OSError."""
    return _locked(cache, fcntl.LOCK_SH, "another command is deleting images")


def _locked(cache: str, how: int, who: str) -> AbstractContextManager[None]:
    os.makedirs(os.path.dirname(cache), 0o700, exist_ok=True)
    make_private_directory(Path(cache))
    return fetching.locked(os.path.join(cache, _LOCK), who, how)


def stored(cache: str) -> list[Stored]:
    """Return what is in the cache. Raises UserError if the disk of a VM cannot be read."""
    entries = sorted(os.listdir(cache)) if os.path.isdir(cache) else []
    disks = [
        ready.at(os.path.join(cache, name)) for name in entries if name.startswith(ready.PREFIX)
    ]
    below = {state.name: _backing(state.disk) for state in states.with_disks()}
    found = []
    for disk in filter(None, disks):
        users = tuple(name for name, base in below.items() if base == disk.disk)
        found.append(Stored(disk.directory, "ready", _size(disk.disk), users, disk.image.disk))
    for path in (os.path.join(cache, name) for name in entries if _FETCHED.fullmatch(name)):
        if path.endswith(_UNFINISHED):
            continue
        above = [one.users for one in found if one.made_from == path]
        direct = [name for name, base in below.items() if base == path]
        users = tuple(dict.fromkeys((*direct, *(name for names in above for name in names))))
        found.append(Stored(path, "base", _size(path), users))
    return found


def prune(cache: str) -> list[Stored]:
    """Delete what no VM uses, and what killed commands have left; return what was in the list.

    Raises UserError if the disk of a VM cannot be read: what it needs is not known then.
    """
    with _locked(cache, fcntl.LOCK_EX, "another command is starting a VM"):
        unused = [one for one in stored(cache) if not one.users]
        for one in unused:
            _remove(cache, one.path)
        kept = {os.path.basename(one.path) for one in stored(cache)}
        for name in os.listdir(cache):
            path = os.path.join(cache, name)
            if name.startswith(ready.BUILD):
                ready.clear(State("/", path))
            elif name not in kept and name != _LOCK and _is_ours(name):
                _remove(cache, path)
    return unused


def _is_ours(name: str) -> bool:
    return name.startswith((ready.PREFIX, _REMOVED)) or _FETCHED.fullmatch(name) is not None


def _remove(cache: str, path: str) -> None:
    """Delete a file, or a directory that has lost its name first: half a disk must not count."""
    if not os.path.isdir(path):
        os.unlink(path)
        return
    gone = os.path.join(cache, _REMOVED + secrets.token_hex(4))
    os.rename(path, gone)
    shutil.rmtree(gone)


def _backing(disk: str) -> str | None:
    try:
        return images.backing_of(disk)
    except UserError as error:
        raise UserError(
            f"{shown(disk)} cannot be read: {error.message}",
            "gitguard vm reset --project DIR deletes that VM",
            Exit.SYSTEM,
        ) from None


def _size(path: str) -> int:
    return os.stat(path).st_blocks * 512
