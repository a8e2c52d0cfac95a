"""The virtual file ``.git`` of ``--git=private``, which leads git to the agent's own repository.

A directory of the share that holds a ``.git`` shows a small regular file of that name. No node and
no descriptor stands for the host's ``.git`` itself: a lookup of that name finds this file, and
every change of it is refused by its name, as with ``--git=deny``, or by its node, here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from typing import NamedTuple, NoReturn, Protocol, cast

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, EntryReply, GuestUid, HandleId, NodeId, OpenReply
from gitguardfs.fs.blocking import Blocking, LatencyTracker
from gitguardfs.fs.directories import UNKNOWN_INODE
from gitguardfs.fs.nodes import TREE_BITS, Node, stale
from gitguardfs.fs.ranges import seek_in_data
from gitguardfs.fs.saved import Saved
from gitguardfs.fs.source import DOTGIT
from gitguardfs.fs.tree import Tree
from gitguardfs.names.rules import ALLOW, Refused, Verdict

MODE = S_IFREG | 0o444
FIRST_ID = 3 << 61
"""The first number of a virtual file; those of nodes are smaller (``fs.nodes``)."""
GIT_TREE = FIRST_ID >> TREE_BITS


class WorkTree(NamedTuple):
    """A work tree of the share, and its owner."""

    path: bytes
    """Relative to the mount's root; ``.`` is the root itself."""
    uid: int
    """The owner of its directory in the view, in guest ids: the agent."""
    gid: int


class Repositories(Protocol):
    """The agent's own repositories, one for each work tree."""

    def text(self, work_tree: WorkTree, /) -> bytes:
        """Return the content of the virtual file (gitrepository-layout(5), "gitfile").

        It waits for no server, and its length is always the same.
        """

    def prepare(self, work_tree: WorkTree, fd: int, /) -> None:
        """Make the repository if there is none, or fetch what is new on the host.

        ``fd`` is an O_PATH descriptor of the work tree in the source, valid during the call. On any
        thread, several at once. Raises OSError.
        """


class _VirtualFile:
    __slots__ = ("id", "lookup_count", "parent")

    def __init__(self, node_id: NodeId, parent: Node) -> None:
        self.id = node_id
        self.parent = parent
        self.lookup_count = 0


class GitFiles:
    """The requests on virtual files, and the lookup that finds them. Errors: see ``fs.tree``."""

    def __init__(self, share: Tree, repositories: Repositories) -> None:
        self._share = share
        self._repositories = repositories
        self._ids = cast("Iterator[NodeId]", count(FIRST_ID))
        self._files: dict[NodeId, _VirtualFile] = {}
        self._in: dict[NodeId, _VirtualFile] = {}
        """By the node of the directory that holds it."""
        self._open: dict[HandleId, bytes] = {}
        self.note: Callable[[Saved], None] = lambda _: None
        """Notes a file with its directory, or a handle with its content; None once it is gone."""
        self._preparing = LatencyTracker()
        self._is_closed = share.guard.verdict_by_globs(DOTGIT)[0] > Verdict.READONLY
        """Whether --hide or --deny takes the file away: then it is as with ``--git=deny``."""

    def saved(self) -> Saved:
        """Return the tables, for the next daemon."""
        files = [(file.id, file.parent.id, file.lookup_count) for file in self._files.values()]
        return next(self._ids), tuple(files), tuple(self._open.items())

    def next_id(self) -> int:
        """Return a number that no file and no handle has had."""
        return next(self._ids)

    def rows(self) -> Iterator[Saved]:
        """Yield all files and handles as rows for ``note``: number, and directory or content."""
        yield from ((file.id, file.parent.id) for file in self._files.values())
        yield from self._open.items()

    def restore(self, former: Saved) -> None:
        """Fill the tables of a new daemon; the share's are filled already."""
        first, files, opened = former
        self._ids = cast("Iterator[NodeId]", count(first))
        for number, parent_id, lookups in files:
            parent = self._share.nodes.by_id.get(parent_id)
            if parent is not None:
                file = self._files[number] = self._in[parent_id] = _VirtualFile(number, parent)
                file.lookup_count = lookups
        self._open.update(opened)

    # Names

    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes) -> EntryReply:
        """Find ``.git`` in a directory of the share."""
        ref = self._share.check.name(parent_id, name)
        file = self._file_in(ref.parent, ref.fd)
        if file is None:
            return self._share.lookup(caller, parent_id, name, ref)
        reply = self._report(file, ref.fd, caller.uid)[1]
        if file.id not in self._files:
            self.note((file.id, parent_id))
        self._files[file.id] = self._in[parent_id] = file
        file.lookup_count += 1
        return reply

    def overlay(
        self, directory: Node, dir_fd: int, names: list[bytes]
    ) -> dict[bytes, tuple[int, int] | None]:
        """Return the virtual file that a listing of a directory shows as ``.git``."""
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
        st = self._share.source.find_at(dir_fd, DOTGIT)
        is_shown = st is not None and S_IFMT(st.st_mode) in (S_IFDIR, S_IFREG, S_IFLNK)
        if not is_shown or directory.verdict is not ALLOW or self._is_closed:
            return None
        file = self._in.get(directory.id)
        if file is None or file.parent is not directory:
            file = _VirtualFile(next(self._ids), directory)
        return file

    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a file."""
        file = self._files.get(node_id)
        if file is None:
            return
        file.lookup_count -= times
        if file.lookup_count <= 0:
            del self._files[node_id]
            if self._in.get(file.parent.id) is file:
                del self._in[file.parent.id]
            self.note((node_id, None))

    # Attributes

    def _report(
        self, file: _VirtualFile, dir_fd: int, uid: GuestUid
    ) -> tuple[WorkTree, EntryReply]:
        """Return the work tree of a virtual file, and the reply that reports the file."""
        shown = self._share.attributes.report(file.parent, self._share.source.stat(dir_fd), uid)
        attributes = shown.attributes
        assert attributes is not None
        path = b"/".join(self._share.check.names_to(file.parent)) or b"."
        work_tree = WorkTree(path, attributes.uid, attributes.gid)
        size = len(self._repositories.text(work_tree))
        attributes = attributes._replace(
            ino=file.id, mode=MODE, nlink=1, rdev=0, size=size, blocks=1
        )
        return work_tree, shown._replace(node=file.id, attributes=attributes)

    def _of(self, node_id: NodeId) -> _VirtualFile:
        file = self._files.get(node_id)
        if file is None:
            raise stale()
        return file

    def _directory_of(self, file: _VirtualFile) -> int:
        """Return a descriptor of the directory that a virtual file is in, if it still is."""
        parent = self._share.check.node(file.parent.id)
        dir_fd = self._share.descriptors.of(parent)
        if parent is not file.parent or self._file_in(parent, dir_fd) is None:
            raise stale()
        return dir_fd

    def getattr(self, caller: Caller, node_id: NodeId) -> EntryReply:
        """Return the attributes of a file."""
        file = self._of(node_id)
        return self._report(file, self._directory_of(file), caller.uid)[1]

    def statx(self, caller: Caller, node_id: NodeId) -> tuple[EntryReply, int]:
        """Return the attributes of a file; it has no birth time."""
        file = self._of(node_id)
        return self._report(file, self._directory_of(file), caller.uid)[1], 0

    def ioctl(self, caller: Caller, node_id: NodeId, *_: object) -> NoReturn:
        """Raise OSError(ENOTTY): a file has no flags."""
        raise os_error(errno.ENOTTY)

    def _refuse(self, caller: Caller, node_id: NodeId, *_: object) -> NoReturn:
        """Refuse to change a file."""
        raise Refused("git", partial(self._share.check.path, self._of(node_id).parent, DOTGIT))

    setattr = link = setxattr = removexattr = _refuse

    def access(self, caller: Caller, node_id: NodeId, mask: int) -> None:
        """Check that a file is only to be read (access(2))."""
        if mask & (os.W_OK | os.X_OK):
            self._refuse(caller, node_id)

    def readlink(self, caller: Caller, node_id: NodeId) -> bytes:
        """Raise OSError(EINVAL): a file is no symlink."""
        raise os_error(errno.EINVAL)

    def opendir(self, caller: Caller, node_id: NodeId) -> OpenReply:
        """Raise OSError(ENOTDIR)."""
        raise os_error(errno.ENOTDIR)

    # Content

    def open(self, caller: Caller, node_id: NodeId, flags: int) -> Blocking[OpenReply]:
        """Open a file, once the agent's repository is ready."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            self._refuse(caller, node_id)
        file = self._of(node_id)
        dir_fd = self._directory_of(file)
        work_tree, _ = self._report(file, dir_fd, caller.uid)
        fd = self._share.source.duplicate(dir_fd)
        handle = cast("HandleId", next(self._ids))

        def prepare() -> OpenReply:
            self._repositories.prepare(work_tree, fd)
            return OpenReply(handle, keep_cache=False, direct_io=True)

        def note(_: OpenReply) -> None:
            text = self._open[handle] = self._repositories.text(work_tree)
            self.note((handle, text))

        return Blocking(
            self._preparing, prepare, is_small=False, is_local=False,
            finish=note, cleanup=lambda: os.close(fd), queue=work_tree,
        )  # fmt: skip

    def _text(self, handle_id: HandleId) -> bytes:
        try:
            return self._open[handle_id]
        except KeyError:
            raise os_error(errno.EBADF) from None

    def read(self, handle_id: HandleId, offset: int, size: int) -> bytes:
        """Read from an open file."""
        return self._text(handle_id)[offset : offset + size]

    def write(self, handle_id: HandleId, *_: object) -> NoReturn:
        """Raise OSError(EBADF): a file is open for reading only."""
        raise os_error(errno.EBADF)

    fallocate = write

    def lseek(self, handle_id: HandleId, offset: int, whence: int) -> int:
        """Return where data or a hole begins: a file has no holes."""
        return seek_in_data(len(self._text(handle_id)), offset, whence)

    def copy_file_range(self, handle_id: HandleId, *_: object) -> NoReturn:
        """Raise OSError(EXDEV): the guest's kernel copies by reads and writes then."""
        raise os_error(errno.EXDEV)

    def setlk(self, handle_id: HandleId, *_: object) -> NoReturn:
        """Raise OSError(ENOLCK): a file cannot be locked, nor be asked for locks."""
        raise os_error(errno.ENOLCK)

    getlk = setlk

    def flush(self, handle_id: HandleId, *_: object) -> None:
        """Do nothing at close(2) and fsync(2): nothing is written."""

    fsync = flush

    def release(self, handle_id: HandleId) -> None:
        """Close a file's handle."""
        self._text(handle_id)
        del self._open[handle_id]
        self.note((handle_id, None))

    # Extended attributes

    def getxattr(self, caller: Caller, node_id: NodeId, name: bytes) -> bytes:
        """Raise OSError(ENODATA): a file has no extended attributes."""
        raise os_error(errno.ENODATA)

    def listxattr(self, caller: Caller, node_id: NodeId) -> list[bytes]:
        """Return no names."""
        return []
