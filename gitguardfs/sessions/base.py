"""The interface of a session, which takes a mount's requests from the kernel and answers them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from gitguardfs.base.protocol import (
    Caller,
    DirEntry,
    DirOffset,
    EntryReply,
    HandleId,
    NodeId,
    OpenReply,
    ReadData,
    SetAttr,
)
from gitguardfs.fs.blocking import Blocking
from gitguardfs.fs.boundary import Boundary


class Requests(Protocol):
    """The requests of one mount, which a session translates; each raises RequestError.

    All are called on one thread. A ``Blocking`` is a call that may wait; the session makes it.
    """

    boundary: Boundary

    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes, /) -> EntryReply:
        """Find an entry and count a lookup of its node."""

    def forget(self, node_id: NodeId, times: int, /) -> None:
        """Undo ``times`` lookups of a node."""

    def getattr(self, caller: Caller, node_id: NodeId, /) -> EntryReply:
        """Return the attributes of a node."""

    def setattr(
        self, caller: Caller, node_id: NodeId, changes: SetAttr, handle: HandleId | None, /
    ) -> EntryReply:
        """Change attributes, by ``handle`` if the caller has the file open."""

    def readlink(self, caller: Caller, node_id: NodeId, /) -> bytes:
        """Return the text of a symlink."""

    def access(self, caller: Caller, node_id: NodeId, mask: int, /) -> None:
        """Check that the guard allows ``mask`` (access(2))."""

    def statfs(self, caller: Caller, /) -> os.statvfs_result:
        """Return size and free space of the source."""

    def mknod(
        self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, rdev: int, /
    ) -> EntryReply:
        """Make a file, FIFO, socket or device."""

    def mkdir(self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, /) -> EntryReply:
        """Make a directory."""

    def symlink(
        self, caller: Caller, parent_id: NodeId, name: bytes, target: bytes, /
    ) -> EntryReply:
        """Make a symlink."""

    def link(
        self, caller: Caller, node_id: NodeId, parent_id: NodeId, name: bytes, /
    ) -> EntryReply:
        """Give a file another name."""

    def create(
        self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, flags: int, /
    ) -> tuple[OpenReply, EntryReply]:
        """Make a file and open it."""

    def unlink(self, caller: Caller, parent_id: NodeId, name: bytes, /) -> None:
        """Remove an entry that is not a directory."""

    def rmdir(self, caller: Caller, parent_id: NodeId, name: bytes, /) -> None:
        """Remove an empty directory."""

    def rename(
        self, caller: Caller, old_parent_id: NodeId, old_name: bytes, new_parent_id: NodeId,
        new_name: bytes, flags: int, /,
    ) -> None:  # fmt: skip
        """Move an entry, or exchange two."""

    def open(
        self, caller: Caller, node_id: NodeId, flags: int, /
    ) -> OpenReply | Blocking[OpenReply]:
        """Open a file."""

    def read(self, handle_id: HandleId, offset: int, size: int, /) -> ReadData | Blocking[ReadData]:
        """Read from an open file."""

    def write(self, handle_id: HandleId, offset: int, data: bytes, /) -> int | Blocking[int]:
        """Write to an open file."""

    def flush(self, handle_id: HandleId, /) -> Blocking[None] | None:
        """Report write errors at close(2)."""

    def fsync(self, handle_id: HandleId, datasync: bool, /) -> Blocking[None] | None:
        """Wait until what was written is on the disk."""

    def release(self, handle_id: HandleId, /) -> None:
        """Close a file's handle."""

    def opendir(self, caller: Caller, node_id: NodeId, /) -> HandleId:
        """Open a directory."""

    def readdir(
        self, handle_id: HandleId, offset: DirOffset, add: Callable[[DirEntry], bool], /
    ) -> None:
        """Pass entries on to ``add`` until it returns False."""

    def fsyncdir(self, handle_id: HandleId, datasync: bool, /) -> Blocking[None]:
        """Wait until changes of a directory are on the disk."""

    def releasedir(self, handle_id: HandleId, /) -> None:
        """Close a directory's handle."""

    def getxattr(self, caller: Caller, node_id: NodeId, name: bytes, /) -> bytes:
        """Return the value of an extended attribute."""

    def listxattr(self, caller: Caller, node_id: NodeId, /) -> list[bytes]:
        """Return the names of the extended attributes."""

    def setxattr(self, caller: Caller, node_id: NodeId, name: bytes, value: bytes, /) -> None:
        """Set an extended attribute."""

    def removexattr(self, caller: Caller, node_id: NodeId, name: bytes, /) -> None:
        """Remove an extended attribute."""


class MountFailed(Exception):  # noqa: N818  # named for what happened
    """The kernel, or fusermount3 for a user, refused to mount."""


class Session(Protocol):
    """One mount's connection to the kernel."""

    @property
    def answers(self) -> int:
        """How many calls that the session waited for have returned. The number only grows."""

    def mount(self, path: str, directory: int, options: set[str]) -> None:
        """Mount at ``path``: as root on the very directory behind the descriptor ``directory``.

        For a user fusermount3 mounts, by the path and with the user's rights. Raises MountFailed.
        """

    def serve(self, ready: Callable[[], None]) -> None:
        """Serve until the mount is unmounted or ``stop`` is called.

        ``ready`` is called once the mount answers.
        """

    def stop(self) -> None:
        """Finish the requests under way, and take no more. May be called in a signal handler."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make a call between two requests. May be called in a signal handler.

        A call given before ``serve`` is made there; one given after ``serve`` is dropped. ``call``
        must not raise.
        """

    def invalidate(self, node: NodeId) -> None:
        """Make the kernel drop the cached attributes of a node. Raises OSError.

        Takes no lock that a request may hold.
        """

    def close(self, unmount: bool = False) -> None:
        """Close the connection. The mount is left dead, unless ``unmount`` is true."""


class SessionFactory(Protocol):
    """Makes sessions of one kind."""

    reports_names_only: bool
    """Whether its sessions can report entries of a listing without attributes."""

    def __call__(self, operations: Requests) -> Session:
        """Return a session that serves ``operations``."""
