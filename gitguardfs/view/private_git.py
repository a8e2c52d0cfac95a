"""The virtual file ``.git`` of ``--git=private``, which leads git to the agent's own repository.

A directory of the source that holds a ``.git`` shows a small regular file of that name. No node and
no descriptor stands for the host's ``.git`` itself: whatever asks for that name gets this file, and
every change of it is refused by its name, as with ``--git=deny``, or by its node, here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import (
    Caller,
    EntryReply,
    GuestUid,
    HandleId,
    NodeId,
    OpenReply,
    ReadData,
    SetAttr,
)
from gitguardfs.fs.blocking import Blocking, LatencyTracker
from gitguardfs.fs.boundary import Boundary, GuardedBy, guarded_by
from gitguardfs.fs.directories import UNKNOWN_INODE
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import Node, stale
from gitguardfs.fs.source import DOTGIT
from gitguardfs.names.rules import ALLOW, Refused, Verdict

if TYPE_CHECKING:
    from gitguardfs.fs.operations import Operations

MODE = S_IFREG | 0o444
FIRST_ID = 3 << 61
"""The first number of a virtual file; those of nodes are smaller (``fs.nodes``)."""
_RULE = "git"


class Place(NamedTuple):
    """A work tree of the source, and who works in it."""

    path: bytes
    """Relative to the mount's root; ``.`` is the root itself."""
    uid: int
    """The owner of its directory in the view, in guest ids: the agent."""
    gid: int


class Repositories(Protocol):
    """The agent's own repositories, one for each work tree."""

    def text(self, place: Place) -> bytes:
        """Return the content of the virtual file (gitrepository-layout(5), "gitfile").

        It waits for no server, and its length is always the same.
        """

    def prepare(self, place: Place, work_tree: int) -> None:
        """Make the repository if there is none, or fetch what is new on the host.

        ``work_tree`` is an O_PATH descriptor of the work tree in the source, valid during the call.
        On any thread, several at once. Raises OSError.
        """


class _VirtualFile:
    __slots__ = ("id", "lookup_count", "parent")

    def __init__(self, node_id: NodeId, parent: Node) -> None:
        self.id = node_id
        self.parent = parent
        self.lookup_count = 0


class PrivateGit:
    """Serves the requests on virtual files, and hands all others on. Each raises RequestError."""

    REQUESTS = (
        "lookup", "forget", "getattr", "setattr", "readlink", "access", "link", "open", "read",
        "write", "flush", "fsync", "release", "opendir", "getxattr", "listxattr", "setxattr",
        "removexattr",
    )  # fmt: skip
    """The requests that may be about a virtual file. Those that change names are refused."""

    def __init__(self, mount: Mount, repositories: Repositories) -> None:
        self._access = mount.access
        self._attributes = mount.attributes
        self._descriptors = mount.descriptors
        self._handles = mount.handles
        self._source = mount.source
        self._repositories = repositories
        self._ids = cast("Iterator[NodeId]", count(FIRST_ID))
        self._files: dict[NodeId, _VirtualFile] = {}
        self._in: dict[NodeId, _VirtualFile] = {}
        """By the node of the directory that holds it."""
        self._open: dict[HandleId, bytes] = {}
        self._preparing = LatencyTracker()
        self._is_closed = mount.guard.verdict_by_globs(DOTGIT)[0] > Verdict.READONLY
        """Whether --hide or --deny takes the file away: then it is as with ``--git=deny``."""

    def serve_before(self, operations: Operations) -> None:
        """Take the place of those requests of ``operations``."""
        self.boundary: Boundary = operations.boundary
        self._next = {name: getattr(operations, name) for name in self.REQUESTS}
        for name in self.REQUESTS:
            setattr(operations, name, getattr(self, name))

    # Names

    @guarded_by(GuardedBy.NAME)
    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes) -> EntryReply:
        """Find an entry. Raises RequestError."""
        if name == DOTGIT:
            ref = self._access.name(parent_id, name)
            file = self._file_in(ref.parent, ref.fd)
            if file is not None:
                reply = self._place(file, ref.fd, caller.uid)[1]
                self._files[file.id] = self._in[parent_id] = file
                file.lookup_count += 1
                return reply
        found: EntryReply = self._next["lookup"](caller, parent_id, name)
        return found

    def overlay(
        self, directory: Node, dir_fd: int, names: list[bytes]
    ) -> dict[bytes, tuple[int, int] | None]:
        """Return what the listing of a directory shows in the place of ``.git``."""
        file = None
        with suppress(OSError):  # the entry's own stat gives the error
            file = self._file_in(directory, dir_fd) if DOTGIT in names else None
        if file is None:
            return {}
        return {DOTGIT: (S_IFREG, file.id if file.id in self._files else UNKNOWN_INODE)}

    def _file_in(self, directory: Node, dir_fd: int) -> _VirtualFile | None:
        """Return the virtual file in a directory; None if there is none. Raises OSError.

        There is one where the host has a directory, file or symlink called ``.git``. Anything else
        of that name is guarded as with ``--git=deny``.
        """
        st = self._source.find_at(dir_fd, DOTGIT)
        is_shown = st is not None and S_IFMT(st.st_mode) in (S_IFDIR, S_IFREG, S_IFLNK)
        if not is_shown or directory.verdict is not ALLOW or self._is_closed:
            return None
        file = self._in.get(directory.id)
        if file is None or file.parent is not directory:
            file = _VirtualFile(next(self._ids), directory)
        return file

    @guarded_by(GuardedBy.NOTHING)
    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node. Raises RequestError."""
        file = self._files.get(node_id)
        if file is None:
            self._next["forget"](node_id, times)
            return
        file.lookup_count -= times
        if file.lookup_count <= 0:
            del self._files[node_id]
            if self._in.get(file.parent.id) is file:
                del self._in[file.parent.id]

    # Attributes

    def _place(self, file: _VirtualFile, dir_fd: int, uid: GuestUid) -> tuple[Place, EntryReply]:
        """Return the work tree of a virtual file, and the reply that reports the file."""
        st = self._source.stat(dir_fd)
        shown = self._attributes.report(file.parent, st, uid)
        attributes = shown.attributes
        assert attributes is not None
        path = b"/".join(self._access.place(file.parent)) or b"."
        place = Place(path, attributes.uid, attributes.gid)
        size = len(self._repositories.text(place))
        attributes = attributes._replace(
            ino=file.id, mode=MODE, nlink=1, rdev=0, size=size, blocks=1
        )
        return place, shown._replace(node=file.id, attributes=attributes)

    def _directory_of(self, file: _VirtualFile) -> int:
        """Return a descriptor of the directory that a virtual file is in, if it still is."""
        parent = self._access.node(file.parent.id)
        dir_fd = self._descriptors.of(parent)
        if parent is not file.parent or self._file_in(parent, dir_fd) is None:
            raise stale()
        return dir_fd

    @guarded_by(GuardedBy.NODE)
    def getattr(self, caller: Caller, node_id: NodeId) -> EntryReply:
        """Return the attributes of a node. Raises RequestError."""
        file = self._files.get(node_id)
        if file is None:
            reply: EntryReply = self._next["getattr"](caller, node_id)
            return reply
        return self._place(file, self._directory_of(file), caller.uid)[1]

    @guarded_by(GuardedBy.NODE)
    def setattr(
        self, caller: Caller, node_id: NodeId, changes: SetAttr, handle: HandleId | None
    ) -> EntryReply:
        """Change attributes; of a virtual file EACCES. Raises RequestError."""
        self._check_other(node_id)
        reply: EntryReply = self._next["setattr"](caller, node_id, changes, handle)
        return reply

    def _check_other(self, node_id: NodeId) -> None:
        """Raise Refused for a virtual file, which nobody may change."""
        file = self._files.get(node_id)
        if file is not None:
            raise Refused(_RULE, partial(self._access.path, file.parent, DOTGIT))

    @guarded_by(GuardedBy.NODE)
    def readlink(self, caller: Caller, node_id: NodeId) -> bytes:
        """Return the text of a symlink. Raises RequestError."""
        if node_id in self._files:
            raise os_error(errno.EINVAL)
        text: bytes = self._next["readlink"](caller, node_id)
        return text

    @guarded_by(GuardedBy.NODE)
    def access(self, caller: Caller, node_id: NodeId, mask: int) -> None:
        """Check that the guard allows ``mask`` (access(2)). Raises RequestError."""
        file = self._files.get(node_id)
        if file is None:
            self._next["access"](caller, node_id, mask)
        elif mask & (os.W_OK | os.X_OK):
            self._check_other(node_id)

    @guarded_by(GuardedBy.NAME)
    def link(self, caller: Caller, node_id: NodeId, parent_id: NodeId, name: bytes) -> EntryReply:
        """Give a file another name; a virtual file EACCES. Raises RequestError."""
        self._check_other(node_id)
        reply: EntryReply = self._next["link"](caller, node_id, parent_id, name)
        return reply

    # Content

    @guarded_by(GuardedBy.NODE)
    def open(self, caller: Caller, node_id: NodeId, flags: int) -> OpenReply | Blocking[OpenReply]:
        """Open a file. A virtual one, once the agent's repository is ready. Raises RequestError."""
        file = self._files.get(node_id)
        if file is None:
            opened: OpenReply = self._next["open"](caller, node_id, flags)
            return opened
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            self._check_other(node_id)
        dir_fd = self._directory_of(file)
        place, _ = self._place(file, dir_fd, caller.uid)
        work_tree = self._source.duplicate(dir_fd)
        handle = self._handles.new_id()

        def prepare() -> OpenReply:
            self._repositories.prepare(place, work_tree)
            return OpenReply(handle, keep_cache=False, direct_io=True)

        def note(_: OpenReply) -> None:
            self._open[handle] = self._repositories.text(place)

        return Blocking(
            self.boundary, "open", self._preparing, prepare, is_small=False, is_local=False,
            finish=note, cleanup=lambda: os.close(work_tree), queue=place,
        )  # fmt: skip

    @guarded_by(GuardedBy.HANDLE)
    def read(self, handle_id: HandleId, offset: int, size: int) -> ReadData | Blocking[ReadData]:
        """Read from an open file. Raises RequestError."""
        text = self._open.get(handle_id)
        if text is not None:
            return text[offset : offset + size]
        data: ReadData | Blocking[ReadData] = self._next["read"](handle_id, offset, size)
        return data

    @guarded_by(GuardedBy.HANDLE)
    def write(self, handle_id: HandleId, offset: int, data: bytes) -> int | Blocking[int]:
        """Write to an open file. Raises RequestError."""
        if handle_id in self._open:
            raise os_error(errno.EBADF)
        written: int | Blocking[int] = self._next["write"](handle_id, offset, data)
        return written

    @guarded_by(GuardedBy.HANDLE)
    def flush(self, handle_id: HandleId) -> Blocking[None] | None:
        """Report write errors at close(2). Raises RequestError."""
        if handle_id in self._open:
            return None
        blocking: Blocking[None] | None = self._next["flush"](handle_id)
        return blocking

    @guarded_by(GuardedBy.HANDLE)
    def fsync(self, handle_id: HandleId, datasync: bool) -> Blocking[None] | None:
        """Wait until what was written is on the disk. Raises RequestError."""
        if handle_id in self._open:
            return None
        blocking: Blocking[None] = self._next["fsync"](handle_id, datasync)
        return blocking

    @guarded_by(GuardedBy.HANDLE)
    def release(self, handle_id: HandleId) -> None:
        """Close a file's handle. Raises RequestError."""
        if self._open.pop(handle_id, None) is None:
            self._next["release"](handle_id)

    @guarded_by(GuardedBy.NODE)
    def opendir(self, caller: Caller, node_id: NodeId) -> HandleId:
        """Open a directory. Raises RequestError."""
        if node_id in self._files:
            raise os_error(errno.ENOTDIR)
        handle: HandleId = self._next["opendir"](caller, node_id)
        return handle

    # Extended attributes

    @guarded_by(GuardedBy.NODE)
    def getxattr(self, caller: Caller, node_id: NodeId, name: bytes) -> bytes:
        """Return the value of an extended attribute. Raises RequestError."""
        if node_id in self._files:
            raise os_error(errno.ENODATA)
        value: bytes = self._next["getxattr"](caller, node_id, name)
        return value

    @guarded_by(GuardedBy.NODE)
    def listxattr(self, caller: Caller, node_id: NodeId) -> list[bytes]:
        """Return the names of the extended attributes. Raises RequestError."""
        if node_id in self._files:
            return []
        names: list[bytes] = self._next["listxattr"](caller, node_id)
        return names

    @guarded_by(GuardedBy.NODE)
    def setxattr(self, caller: Caller, node_id: NodeId, name: bytes, value: bytes) -> None:
        """Set an extended attribute; of a virtual file EACCES. Raises RequestError."""
        self._check_other(node_id)
        self._next["setxattr"](caller, node_id, name, value)

    @guarded_by(GuardedBy.NODE)
    def removexattr(self, caller: Caller, node_id: NodeId, name: bytes) -> None:
        """Remove an extended attribute; of a virtual file EACCES. Raises RequestError."""
        self._check_other(node_id)
        self._next["removexattr"](caller, node_id, name)
