"""The store: one directory for each work tree, on the guest's own disk.

========================  ==========  ================================================
``key``                   0600        a secret, from which the names are made
``<id>.lock``             0600        held while a repository is made, refreshed, removed
``<id>.former``           0600        says that another project has taken its place
``<id>/``                 0700        a work tree's: the agent may pass through it, by an ACL
``<id>/host.path``        0600        which work tree: the share, the agent, the path
``<id>/host.state``       0600        what the host's repository looked like when fetched
``<id>/host.git/``        0755        the store owner's copy of the human's branches
``…/gitguard-reason``     0644        in it: why nothing new came, for git sync
``…/lacks-files``         0644        in it: the human's clone is partial, and lacks files
``…/left-out``            0644        in it: sparse patterns, for the agent's hook
``<id>/agent.unborn``     0600        what the agent's was made as, before the first commit
``<id>/agent/``           0700        the agent's repository, which is the agent's
========================  ==========  ================================================

Other users of the guest learn an id, from a virtual ``.git`` or a command line; that opens nothing
to them.

The agent can mount a FUSE file system of its own over its repository, and never answer there. So
nothing here looks at ``agent`` itself: a listing tells whether it is there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gitguardfs.base import store_directory
from gitguardfs.base.constants import PRIVATE_STORE
from gitguardfs.base.errors import os_error
from gitguardfs.base.store_directory import remove_tree

AGENT = "agent"
HOST = "host.git"
LACKS = "lacks-files"
"""A file of the copy, while an object is missing: the host's command that fetches it."""
REASON = "gitguard-reason"
_KEY_BYTES = 32
_ID = re.compile("[0-9a-f]{32}")
KEPT = {AGENT, HOST, "host.path", "host.state", "agent.unborn"}
"""The names in a work tree's directory. Anything else was left by a process that was killed."""
_KEY_SECONDS = 10.0
TIDY_SECONDS = 5.0
"""How long the start of a daemon may take to remove leftovers."""
_POLL = 0.02
"""Seconds between two looks at a lock."""


def default() -> str:
    """Return the path of this user's store."""
    if os.geteuid() == 0:
        return PRIVATE_STORE
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local/state")
    return os.path.join(base, "gitguardfs-git")


@dataclass(frozen=True)
class Entry:
    """A directory of the store."""

    path: str
    share: str
    """The share's tag or device."""
    work_tree: bytes
    """The path of the work tree in the share."""
    uid: int
    """The agent."""
    is_reset: bool
    """Whether the agent's repository was deleted and not made again."""
    is_former: bool
    """Whether the human has put another project at its path, which has a directory of its own."""
    made: float
    """When the directory was made: seconds (time.time)."""


class Store:
    """A store, made if it is not there."""

    def __init__(self, path: str) -> None:
        """Open the store. Raises UserError if others can change it, OSError."""
        self.path = os.path.abspath(path)
        store_directory.make(self.path, 0o711, "--private-store")
        self._key = self._made_key()
        self._tidy()

    def _made_key(self) -> bytes:
        path = os.path.join(self.path, "key")
        if not os.path.exists(path):
            with locked(path, _KEY_SECONDS):
                if not os.path.exists(path):
                    write(path, secrets.token_bytes(_KEY_BYTES), 0o600)
            sync(self.path)
        with open(path, "rb") as file:
            key = file.read()
        if len(key) != _KEY_BYTES:
            raise OSError(errno.EIO, "the key of the store is damaged", path)
        return key

    def _tidy(self) -> None:
        """Remove leftovers of killed processes; a directory that another daemon is making stays."""
        deadline = time.monotonic() + TIDY_SECONDS
        left: dict[str, list[str]] = {}
        for name in os.listdir(self.path):
            directory, ending = os.path.join(self.path, name[:32]), name[32:]
            if not _ID.fullmatch(name[:32]) or ending in (".lock", ".former"):
                continue
            left.setdefault(directory, []).extend([ending] if ending else [])
        for directory, endings in left.items():
            with suppress(OSError), locked(directory, 0.0):
                paths = [directory + ending for ending in endings]
                with suppress(FileNotFoundError):
                    names = set(os.listdir(directory)) - KEPT
                    paths += [os.path.join(directory, name) for name in names]
                for path in paths:
                    remove_tree(path, deadline - time.monotonic())

    def directories(self, share: str, path: bytes, uid: int) -> list[str]:
        """Return the directories of a work tree for the agent ``uid``: former ones, then its own.

        It costs a stat for each.
        """
        text = b"\0".join((os.fsencode(share), b"%d" % uid, path))
        found: list[str] = []
        while not found or _is_former(found[-1]):
            number = b"\0%d" % len(found) if found else b""
            name = hmac.new(self._key, text + number, hashlib.sha256).hexdigest()[:32]
            found.append(os.path.join(self.path, name))
        return found


def entries(store: str) -> list[Entry]:
    """Return the directories of the store, by share and path. Raises OSError."""
    found = []
    with suppress(FileNotFoundError):
        for name in filter(_ID.fullmatch, os.listdir(store)):
            path = os.path.join(store, name)
            with suppress(FileNotFoundError):
                share, uid, work_tree = read(os.path.join(path, "host.path")).split(b"\n", 2)
                found.append(
                    Entry(
                        path, os.fsdecode(share), work_tree, int(uid), not has_agent(path),
                        _is_former(path), os.stat(os.path.join(path, "host.path")).st_mtime,
                    )
                )  # fmt: skip
    return sorted(found, key=lambda one: (one.share, one.work_tree, one.is_former, one.path))


def of_agent(store: str, share: str, uid: int) -> list[str]:
    """Return the directories of an agent's work trees in a share, the newest one first.

    Raises OSError.
    """
    found = [one for one in entries(store) if (one.share, one.uid) == (share, uid)]
    return [one.path for one in sorted(found, key=lambda one: one.made, reverse=True)]


def _is_former(directory: str) -> bool:
    return os.path.exists(f"{directory}.former")


def set_aside(directory: str) -> None:
    """Give the work tree another directory from now on; this one stays. Raises OSError.

    Called with the lock held.
    """
    write(f"{directory}.former", b"", 0o600)
    sync(os.path.dirname(directory))


def description(share: str, uid: int, work_tree: bytes) -> bytes:
    """Return the content of ``host.path``."""
    return b"%s\n%d\n%s" % (os.fsencode(share).replace(b"\n", b"?"), uid, work_tree)


def has_agent(directory: str) -> bool:
    """Return whether the agent's repository is in a work tree's directory. Raises OSError."""
    with suppress(FileNotFoundError):
        return AGENT in os.listdir(directory)
    return False


@contextmanager
def locked(directory: str, limit: float) -> Iterator[None]:
    """Hold the lock of a work tree's directory, against other threads and other daemons.

    Waits ``limit`` seconds at most. Raises OSError, ETIMEDOUT at the limit.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(f"{directory}.lock", flags, 0o600)
    try:
        deadline = time.monotonic() + limit
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise os_error(errno.ETIMEDOUT) from None
            time.sleep(_POLL)
        yield
    finally:
        os.close(lock)


def let_in(directory: str, uid: int, gid: int) -> None:
    """Let the agent pass through a directory, and nobody else. Raises OSError.

    Where the disk has no ACLs, the group of the agent's work tree may pass.
    """
    os.chmod(directory, 0o700)
    if os.geteuid() == uid:
        return
    try:
        os.setxattr(directory, "system.posix_acl_access", _acl(uid))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.chown(directory, -1, gid)
        os.chmod(directory, 0o710)


def _acl(uid: int) -> bytes:
    """Return an ACL (acl(5)) with all rights for the owner, and one to pass for a user."""
    nobody = 0xFFFFFFFF
    entries = ((1, 7, nobody), (2, 1, uid), (4, 0, nobody), (16, 1, nobody), (32, 0, nobody))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def note_reason(directory: str, text: str) -> None:
    """Note in the copy why nothing new came from the human; "" removes the note. Raises OSError."""
    path = os.path.join(directory, HOST, REASON)
    content = text.encode(errors="surrogateescape")
    with suppress(FileNotFoundError):
        if not content:
            os.unlink(path)
        elif read(path) == content:
            return
    if content:
        write(path, content)


def read(path: str) -> bytes:
    """Return the content of a file of the store. Raises OSError."""
    with open(path, "rb") as file:
        return file.read()


def write(path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a file of the store, whole or not at all, also after a crash. Raises OSError."""
    new = f"{path}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(new, flags, 0o600), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def sync(path: str) -> None:
    """Bring a directory, or a file, of the store to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(path: str) -> None:
    """Bring a directory and all below it to the disk. Raises OSError."""
    for directory, _, names in os.walk(path):
        for name in names:
            sync(os.path.join(directory, name))
        sync(directory)
