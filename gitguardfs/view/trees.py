"""Serves two trees as one view: the share, and the guest's own directories (``--local``).

A **tree** is a mount of its own: source, rules, timeouts and nodes. The number of a node or handle
says of which tree it is (``numbers.is_local``). For a name in a directory of the share ``border``
decides; all that lies below goes by the number.

A name across the border is EXDEV: programs copy then.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from stat import S_IFDIR, S_ISDIR
from typing import Any, NamedTuple, TypeVar, cast

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import (
    RENAME_EXCHANGE,
    Caller,
    EntryReply,
    NodeId,
    OpenReply,
    RequestError,
)
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.boundary import GuardedBy, guarded_by
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import Node
from gitguardfs.fs.numbers import LOCAL_NUMBERS, is_local
from gitguardfs.fs.operations import Operations
from gitguardfs.names.local_names import LocalNames
from gitguardfs.names.rules import ALLOW
from gitguardfs.view.border import Border, Where
from gitguardfs.view.mirror import OWN, Mirror

F = TypeVar("F", bound=Callable[..., Any])


log = logging.getLogger(__name__)


class _Entry(NamedTuple):
    """A name in one of the trees."""

    is_local: bool
    parent: NodeId
    name: bytes
    is_directory: bool


class Trees:
    """The requests of a view of two trees; ``sessions.base.Requests`` is their interface.

    Each raises RequestError.
    """

    def __init__(
        self,
        share: Operations,
        share_mount: Mount,
        local: Operations,
        local_mount: Mount,
        names: LocalNames,
    ) -> None:
        """Serve the directories that ``names`` names from ``local``, and all others from ``share``.

        The nodes and handles of ``local`` have ``LOCAL_NUMBERS``.
        """
        self.boundary = share.boundary
        self._share, self._local = share, local
        self._access, self._source = share_mount.access, share_mount.source
        self._timeout = share_mount.options.cache_timeout
        self._marker = names.marker
        self._mirror = Mirror(local, local_mount)
        self._border = Border(share_mount, self._mirror, names)
        share.overlays.append(self._overlay)

        self.statfs = share.statfs
        self.getattr = _by_node(share.getattr, local.getattr)
        self.setattr = _by_node(share.setattr, local.setattr)
        self.readlink = _by_node(share.readlink, local.readlink)
        self.access = _by_node(share.access, local.access)
        self.open = _by_node(share.open, local.open)
        self.opendir = _by_node(share.opendir, local.opendir)
        self.getxattr = _by_node(share.getxattr, local.getxattr)
        self.listxattr = _by_node(share.listxattr, local.listxattr)
        self.setxattr = _by_node(share.setxattr, local.setxattr)
        self.removexattr = _by_node(share.removexattr, local.removexattr)
        self.read = _by_number(share.read, local.read)
        self.write = _by_number(share.write, local.write)
        self.flush = _by_number(share.flush, local.flush)
        self.fsync = _by_number(share.fsync, local.fsync)
        self.release = _by_number(share.release, local.release)
        self.readdir = _by_number(share.readdir, local.readdir)
        self.fsyncdir = _by_number(share.fsyncdir, local.fsyncdir)
        self.releasedir = _by_number(share.releasedir, local.releasedir)

    def _overlay(
        self, directory: Node, dir_fd: int, names: list[bytes]
    ) -> dict[bytes, tuple[int, int] | None]:
        """Return what a listing of the share shows of the guest's own, and what not of the share's.

        A name that the share cannot be asked about is left to the listing. Raises OSError.
        """
        standing = None if directory.verdict is not ALLOW else self._standing(directory)
        own = {} if standing is None else self._mirror.own_in(standing)
        shown: dict[bytes, tuple[int, int] | None] = {}
        for name in {*filter(self._marker, names), *filter(self._marker, own)}:
            try:
                where, _ = self._border.where(NodeRef(directory, dir_fd, name))
            except OSError:
                continue
            if where is Where.OWN:
                shown[name] = S_IFDIR, LOCAL_NUMBERS.offset + own.get(name, 0)
            elif where is Where.NOWHERE:
                shown[name] = None
        return shown

    def _standing(self, directory: Node, *names: bytes) -> NodeId | None:
        """Return what stands for a directory of the share, or for one below it; None if nothing.

        Nothing does for a directory that was removed, which a process may still be in.
        """
        try:
            place = self._access.place(directory)
        except OSError:
            return None
        return self._mirror.find([*place, *names])

    def _place(self, parent_id: NodeId) -> list[bytes]:
        """Return where a directory of the share is now, also if the host has just moved it.

        Raises Refused, OSError(ESTALE).
        """
        parent = self._access.node(parent_id)
        self._access.revalidation.check_now(parent)
        return self._access.place(parent)

    def _changing(self, parent_id: NodeId, name: bytes) -> NodeRef:
        """Return a name that is changed, in a directory whose place is the present one.

        Raises Refused, OSError.
        """
        self._place(parent_id)
        return self._access.name(parent_id, name, change=True)

    @guarded_by(GuardedBy.NOTHING)
    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node. Raises RequestError."""
        (self._local if is_local(node_id) else self._share).forget(node_id, times)
        self._mirror.note_forgotten()

    # Requests on names

    @guarded_by(GuardedBy.NAME)
    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes) -> EntryReply:
        """Find an entry and count a lookup of its node. Raises RequestError."""
        if is_local(parent_id):
            return self._local.lookup(caller, parent_id, name)
        if self._marker(name) is not None:
            where, place = self._border.where(self._access.name(parent_id, name))
            if where is Where.OWN:
                return self._top(self._local.lookup(caller, self._mirror.make(place), OWN + name))
            if where is Where.NOWHERE:
                return EntryReply(NodeId(0), None, self._timeout, 0.0)
        return self._share.lookup(caller, parent_id, name)

    def _top(self, reply: EntryReply) -> EntryReply:
        """Return a reply for an entry of the share: the host may put something in its way."""
        return reply._replace(entry_timeout=self._timeout)

    @guarded_by(GuardedBy.NAME)
    def mkdir(self, caller: Caller, parent_id: NodeId, name: bytes, mode: int) -> EntryReply:
        """Make a directory. Raises RequestError."""
        if is_local(parent_id):
            return self._local.mkdir(caller, parent_id, name, mode)
        if self._marker(name) is not None:
            where, place = self._border.where(self._changing(parent_id, name))
            if where is not Where.SHARE:
                try:
                    above = self._mirror.make(place)
                    return self._top(self._local.mkdir(caller, above, OWN + name, mode))
                except BaseException:
                    self._mirror.tidy(place)
                    raise
        return self._share.mkdir(caller, parent_id, name, mode)

    @guarded_by(GuardedBy.NAME)
    def mknod(
        self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, rdev: int
    ) -> EntryReply:
        """Make a file, FIFO, socket or device. Raises RequestError."""
        return self._free(parent_id, name).mknod(caller, parent_id, name, mode, rdev)

    @guarded_by(GuardedBy.NAME)
    def symlink(self, caller: Caller, parent_id: NodeId, name: bytes, target: bytes) -> EntryReply:
        """Make a symlink. Raises RequestError."""
        return self._free(parent_id, name).symlink(caller, parent_id, name, target)

    @guarded_by(GuardedBy.NAME)
    def create(
        self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, flags: int
    ) -> tuple[OpenReply, EntryReply]:
        """Make a file and open it. Raises RequestError."""
        return self._free(parent_id, name).create(caller, parent_id, name, mode, flags)

    @guarded_by(GuardedBy.NAME)
    def link(self, caller: Caller, node_id: NodeId, parent_id: NodeId, name: bytes) -> EntryReply:
        """Give a file another name. Raises RequestError: EXDEV across the border."""
        if is_local(node_id) != is_local(parent_id):
            raise os_error(errno.EXDEV)
        return self._free(parent_id, name).link(caller, node_id, parent_id, name)

    def _free(self, parent_id: NodeId, name: bytes) -> Operations:
        """Return the tree in which something other than a directory can get a name.

        Raises OSError(EEXIST) if a directory has it: one of the guest's own, or one of the share
        that is not shown.
        """
        if is_local(parent_id):
            return self._local
        if self._marker(name) is not None:
            ref = self._access.name(parent_id, name, change=True)
            where, _ = self._border.where(ref)
            if where is not Where.SHARE and (
                where is Where.OWN or self._source.find_at(ref.fd, name) is not None
            ):
                raise os_error(errno.EEXIST)
        return self._share

    @guarded_by(GuardedBy.NAME)
    def unlink(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an entry that is not a directory. Raises RequestError."""
        if is_local(parent_id):
            self._local.unlink(caller, parent_id, name)
        elif self._marker(name) is not None and self._found(parent_id, name).is_local:
            raise os_error(errno.EISDIR)
        else:
            self._share.unlink(caller, parent_id, name)

    @guarded_by(GuardedBy.NAME)
    def rmdir(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an empty directory. Raises RequestError."""
        if is_local(parent_id):
            self._local.rmdir(caller, parent_id, name)
            return
        parent = self._access.node(parent_id)
        if self._marker(name) is not None:
            entry = self._found(parent_id, name)
            if entry.is_local:
                self._local.rmdir(caller, entry.parent, entry.name)
                self._mirror.tidy(self._access.place(parent))
                return
        if self._standing(parent, name) is not None and self._holds_own(
            self._mirror.find([*self._place(parent_id), name])
        ):
            raise os_error(errno.ENOTEMPTY)
        self._share.rmdir(caller, parent_id, name)

    def _holds_own(self, standing: NodeId | None) -> bool:
        """Return whether the guest has directories of its own in one of the share."""
        return standing is not None and any(map(self._marker, self._mirror.own_in(standing)))

    @guarded_by(GuardedBy.NAME)
    def rename(
        self,
        caller: Caller,
        old_parent_id: NodeId,
        old_name: bytes,
        new_parent_id: NodeId,
        new_name: bytes,
        flags: int,
    ) -> None:
        """Move an entry, or exchange two. Raises RequestError: EXDEV across the border."""
        old, new = (old_parent_id, old_name), (new_parent_id, new_name)
        are_local = [is_local(old_parent_id), is_local(new_parent_id)]
        if all(are_local):
            self._local.rename(caller, *old, *new, flags)
            return
        if not any(are_local) and not (self._marker(old_name) or self._marker(new_name)):
            self._rename_in_share(caller, old, new, flags)
            return
        moved = self._found(*old)
        target = self._destination(*new, moved)
        if flags & RENAME_EXCHANGE:
            self._destination(*old, self._found(*new))
        if moved.is_local:
            self._local.rename(caller, moved.parent, moved.name, target.parent, target.name, flags)
            if not is_local(old_parent_id):
                self._mirror.tidy(self._access.place(self._access.node(old_parent_id)))
        else:
            self._rename_in_share(caller, old, new, flags)

    def _found(self, parent_id: NodeId, name: bytes) -> _Entry:
        """Return what a name leads to. Raises Refused, OSError(ENOENT)."""
        if is_local(parent_id):
            mode = self._mirror.mode_at(parent_id, name)
            return _Entry(True, parent_id, name, mode is not None and S_ISDIR(mode))
        ref = self._changing(parent_id, name)
        where, place = self._border.where(ref)
        if where is Where.OWN:
            return _Entry(True, self._mirror.make(place), OWN + name, True)
        mode = None if where is Where.NOWHERE else self._source.mode_at(ref.fd, name)
        if mode is None:
            raise os_error(errno.ENOENT)
        return _Entry(False, parent_id, name, S_ISDIR(mode))

    def _destination(self, parent_id: NodeId, name: bytes, moved: _Entry) -> _Entry:
        """Return where ``moved`` would be under a new name.

        Raises Refused; OSError: EXDEV if that is in the other tree, EISDIR if it is no directory
        and a directory has the name.
        """
        target = moved._replace(parent=parent_id, name=name, is_local=is_local(parent_id))
        if not target.is_local:
            ref = self._changing(parent_id, name)
            there = self._source.mode_at(ref.fd, name)
            is_directory = there is not None and S_ISDIR(there)
            where, place = Where.SHARE, list[bytes]()
            if self._border.is_marked(ref) and (
                there is None or is_directory or moved.is_directory
            ):
                where, place = self._border.where_directory(ref, is_directory)
            if where is not Where.SHARE and moved.is_directory:
                if not moved.is_local or (there is not None and not is_directory):
                    raise os_error(errno.EXDEV)
                return _Entry(True, self._mirror.make(place), OWN + name, True)
            if where is Where.OWN or (where is Where.NOWHERE and is_directory):
                raise os_error(errno.EISDIR)
        if target.is_local is not moved.is_local:
            raise os_error(errno.EXDEV)
        return target

    def _rename_in_share(
        self, caller: Caller, old: tuple[NodeId, bytes], new: tuple[NodeId, bytes], flags: int
    ) -> None:
        """Move an entry of the share, and with a directory what the guest has of its own in it."""
        if not any(self._standing(self._access.node(parent), name) for parent, name in (old, new)):
            self._share.rename(caller, *old, *new, flags)
            return
        old_place, new_place = ([*self._place(parent), name] for parent, name in (old, new))
        is_exchange = bool(flags & RENAME_EXCHANGE)
        holds_own = self._holds_own(self._mirror.find(new_place))
        if not is_exchange and holds_own and self._is_directory(*new):
            raise os_error(errno.ENOTEMPTY)
        if self._mirror.find(old_place) is not None and self._is_directory(*old):
            self._mirror.check_room(new_place)
        if is_exchange and self._mirror.find(new_place) is not None and self._is_directory(*new):
            self._mirror.check_room(old_place)
        self._share.rename(caller, *old, *new, flags)
        try:
            if self._is_directory(*new):
                is_exchange = is_exchange and self._is_directory(*old)
                self._mirror.move(old_place, new_place, is_exchange)
            elif is_exchange and self._is_directory(*old):
                self._mirror.move(new_place, old_place, False)
        except (OSError, RequestError) as error:
            log.error(
                "the guest's own directories in %r stay at their former place (%s): see"
                " gitguard local list",
                b"/".join(old_place),
                os.strerror(error.errno or errno.EIO),
            )

    def _is_directory(self, parent_id: NodeId, name: bytes) -> bool:
        """Return whether a name of the share leads to a directory. Raises OSError."""
        ref = self._access.name(parent_id, name)
        mode = self._source.mode_at(ref.fd, name)
        return mode is not None and S_ISDIR(mode)


def _by_node(share: F, local: F) -> F:
    """Return a request on a node, which goes to the tree of that node."""

    def request(caller: Caller, node_id: NodeId, *rest: Any) -> Any:
        return (local if is_local(node_id) else share)(caller, node_id, *rest)

    return cast("F", request)


def _by_number(share: F, local: F) -> F:
    """Return a request on a handle, which goes to the tree of that handle."""

    def request(number: int, *rest: Any) -> Any:
        return (local if is_local(number) else share)(number, *rest)

    return cast("F", request)
