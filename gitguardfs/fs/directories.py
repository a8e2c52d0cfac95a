"""Open directories and their listings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from stat import S_IFDIR

from gitguardfs.base.protocol import (
    Caller,
    DirEntry,
    DirOffset,
    EntryReply,
    HandleId,
    NodeId,
    OpenReply,
    make,
)
from gitguardfs.fs import revalidation
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.blocking import Blocking
from gitguardfs.fs.handles import DirectoryHandle
from gitguardfs.fs.nodes import ROOT_ID, Node, ObjectKey
from gitguardfs.fs.parts import Parts
from gitguardfs.names.rules import ALLOW

UNKNOWN_INODE = 0xFFFFFFFF
"""The inode number of an entry whose stat failed, as in libfuse (FUSE_UNKNOWN_INO)."""


class Directories(Parts):
    """The requests on open directories. Errors: see ``tree``."""

    def opendir(self, caller: Caller, node_id: NodeId) -> OpenReply:
        """Open a directory; the reply says whether the kernel may keep a cached listing.

        It may for as long as it may cache names. The kernel compares mtime only, which the host can
        put back: ctime it cannot. If the host tells of its changes, they set ``listed_at`` to 0.
        """
        node = self.check.directory(node_id)
        keeps = False
        if self.cache_timeout:
            now = revalidation.clock()
            is_young = now - node.listed_at < self.cache_timeout
            if is_young and self.note_absent is not None:
                keeps = True
            else:
                st = self.source.stat(self.descriptors.of(node))
                times = st.st_mtime_ns, st.st_ctime_ns
                keeps = is_young and times == node.listed_as
                if not keeps:
                    node.listed_as, node.listed_at = times, now
        handle = self.handles.add_directory(DirectoryHandle(node, caller.uid, caller.pid))
        return OpenReply(handle, keeps, direct_io=not self.cache_timeout)

    def open_directory_again(self, caller: Caller, handle_id: HandleId, node_id: NodeId) -> None:
        """Open a directory that a former daemon had open, unless that was done before."""
        if self.handles.is_former(handle_id):
            node = self.check.directory(node_id)
            self.handles.directories[handle_id] = DirectoryHandle(node, caller.uid, caller.pid)

    def readdir(
        self, handle_id: HandleId, offset: DirOffset, add: Callable[[DirEntry], bool]
    ) -> None:
        """Pass the entries from ``offset`` on to ``add``, until it returns False (reply full).

        Counts a lookup for each entry with a node that ``add`` took. If the request fails, no
        lookup is counted: the kernel gets the error and no entries.
        """
        handle = self.handles.directory(handle_id)
        names_only = self.can_list_names_only and self.advice.wants_names_only(handle.pid)
        added: list[Node] = []
        try:
            for entry, node in self._entries(handle, offset, names_only):
                if node is not None:
                    added.append(node)
                if not add(entry):
                    if node is not None:
                        self.resolver.undo_lookup(added.pop())
                    break
        except BaseException:
            for node in added:
                self.resolver.undo_lookup(node)
            raise

    def _entries(
        self, handle: DirectoryHandle, offset: DirOffset, names_only: bool
    ) -> Iterator[tuple[DirEntry, Node | None]]:
        """Yield each entry with its node, for which a lookup has been counted, or with None.

        With ``names_only``, files and symlinks of the source's own file system come without
        attributes and node. An entry whose stat fails has neither attributes nor a type.
        """
        self.check.node(handle.node.id)
        dir_fd = self.descriptors.of(handle.node)
        # On file systems mounted below the source, a node's id is not the object's inode number.
        names_only = names_only and handle.node.dev == self.nodes.root.dev
        if handle.snapshot is None or offset == 0:
            names = self._take_snapshot(handle, dir_fd, names_only)
        else:
            names = handle.snapshot
        typed = (handle.types if names_only else {}).get
        overlaid, allows = handle.overlaid.get, self.check.allows
        dotgit: ObjectKey | bool | None = True
        for index in range(offset, len(names)):
            name = names[index]
            shown = typed(name)
            if shown is None or shown[0] == S_IFDIR or not allows(name):
                shown = _dots(handle.node, name) if index < 2 else overlaid(name)
            if shown is not None:
                yield make(DirEntry, (name, index + 1, None, *shown)), None
                continue
            try:
                if dotgit is True:
                    dotgit = self.check.dotgit(dir_fd)
                st = self.source.stat_at(dir_fd, name)
                found = self.listed(handle, dir_fd, name, st, dotgit)
                if found is None:
                    continue
            except FileNotFoundError:
                continue  # removed since the snapshot
            except OSError:  # reported by name alone, so that its own lookup gives the error
                if self.guard.is_listed(name):
                    yield DirEntry(name, DirOffset(index + 1), inode=UNKNOWN_INODE), None
                continue
            node, reply = found
            if node.verdict is not ALLOW and not self.guard.is_listed(name):
                self.resolver.undo_lookup(node)
                continue
            yield make(DirEntry, (name, index + 1, reply, 0, 0)), node

    def listed(
        self,
        handle: DirectoryHandle,
        dir_fd: int,
        name: bytes,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None,
    ) -> tuple[Node, EntryReply] | None:
        """Return the node of an entry and its reply; None if it is hidden. Count a lookup.

        ``dotgit`` is the directory's ``.git``, as ``Access.dotgit`` returns it. Raises OSError.
        """
        ref = make(NodeRef, (handle.node, dir_fd, name, self.guard.is_plain(name)))
        return self.resolver.entry(ref, st, handle.uid, dotgit)

    def _take_snapshot(self, handle: DirectoryHandle, dir_fd: int, typed: bool) -> list[bytes]:
        types = self.source.typed_names(dir_fd) if typed else {}
        if offset := self.nodes.offset:
            types = {name: (kind, inode + offset) for name, (kind, inode) in types.items()}
        names = [b".", b"..", *(types or self.source.names(dir_fd))]
        overlaid: dict[bytes, tuple[int, int]] = {}
        for overlay in self.overlays:
            for name, shown in overlay(handle.node, dir_fd, names).items():
                if name in names:
                    names.remove(name)
                    types.pop(name, None)
                if shown is not None:
                    names.append(name)
                    overlaid[name] = shown
        self.handles.keep_snapshot(handle, names)
        handle.types, handle.overlaid = types, overlaid
        return names

    def fsyncdir(self, handle_id: HandleId, datasync: bool) -> Blocking[None]:
        """Return the call that waits until changes of a directory are on the disk (fsync(2))."""
        node = self.check.node(self.handles.directory(handle_id).node.id)
        fd = self.source.open_directory(self.descriptors.of(node))
        return Blocking(
            self.syncing, os.fdatasync if datasync else os.fsync, fd,
            is_small=True, is_local=self.source.is_local(node.dev), cleanup=lambda: os.close(fd),
        )  # fmt: skip

    def releasedir(self, handle_id: HandleId) -> None:
        """Close a directory's handle."""
        self.handles.release_directory(handle_id)


def _dots(node: Node, name: bytes) -> tuple[int, int]:
    """Return type and inode number of ``.`` or ``..``; the mount's root is its own parent."""
    if name == b".." and node.parent is not None:
        node = node.parent
    return S_IFDIR, node.ino if node.id == ROOT_ID else node.id
