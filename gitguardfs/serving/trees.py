"""Serves two trees as one view: the share, and the guest's own directories (``--local``).

A **tree** is a mount of its own: source, rules, timeouts and nodes. The number of a node or handle
says of which tree it is (``nodes.is_local``). This module alone decides which tree a name in a
directory of the share belongs to; all that lies below goes by the number.

The guest's tree is laid out like the share (``Mirror``): the directory ``app/node_modules`` of the
view is ``+app/=node_modules`` there. Nothing else has these two marks, so no directory of one kind
is taken for one of the other. A name across the border is EXDEV: programs copy then.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from enum import Enum
from stat import S_IFDIR, S_ISDIR
from typing import Any, NamedTuple, TypeVar, cast

from gitguardfs.errors import os_error
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import LOCAL_NUMBERS, ROOT_ID, Node, is_local
from gitguardfs.guard.local_names import LocalNames
from gitguardfs.guard.rules import ALLOW
from gitguardfs.protocol import (
    RENAME_EXCHANGE,
    Caller,
    EntryReply,
    GuestGid,
    GuestUid,
    NodeId,
    OpenReply,
    RequestError,
)
from gitguardfs.serving.boundary import GuardedBy, guarded_by
from gitguardfs.serving.operations import Operations

F = TypeVar("F", bound=Callable[..., Any])

PLACE, OWN = b"+", b"="
"""The first byte of a name in the guest's tree: of a directory that stands for one of the share,
and of a directory of the guest's own."""
NAME_MAX = 255
"""Bytes in a name."""
_DAEMON = Caller(GuestUid(0), GuestGid(0))
_NO_SUCH_NAME = (errno.ENOENT, errno.ENAMETOOLONG)

log = logging.getLogger(__name__)


class _Where(Enum):
    """What a name in a directory of the share leads to."""

    SHARE = "to the share, if to anything"
    OWN = "to a directory of the guest's own"
    NOWHERE = "to nothing, but a directory of that name would be the guest's own"


class _Entry(NamedTuple):
    """A name in one of the trees."""

    is_local: bool
    parent: NodeId
    name: bytes
    is_directory: bool


class Mirror:
    """The directories of the guest's tree that stand for directories of the share.

    Each that was found has one lookup counted: so it keeps its node, which a rename updates.
    """

    def __init__(self, local: Operations, mount: Mount) -> None:
        self._local = local
        self._mount = mount
        self._held: set[NodeId] = set()

    def find(self, place: list[bytes]) -> NodeId | None:
        """Return what stands for the directory at ``place``; None if nothing does yet."""
        above = ROOT_ID
        for name in place:
            found = self._step(above, name)
            if found is None:
                return None
            above = found
        return above

    def make(self, place: list[bytes]) -> NodeId:
        """Return what stands for the directory at ``place``. Raises RequestError."""
        above = ROOT_ID
        for name in place:
            found = self._step(above, name)
            if found is None:
                found = self._local.mkdir(_DAEMON, above, PLACE + name, 0o700).node
                self._held.add(found)
            above = found
        return above

    def _step(self, above: NodeId, name: bytes) -> NodeId | None:
        try:
            found = self._local.lookup(_DAEMON, above, PLACE + name).node
        except RequestError as error:
            if error.errno in _NO_SUCH_NAME:
                return None
            raise
        if found in self._held:
            self._local.forget(found, 1)
        elif found:
            self._held.add(found)
        return found or None

    def mode_at(self, directory: NodeId, name: bytes) -> int | None:
        """Return the st_mode of an entry of the guest's tree; None if there is none.

        Raises OSError.
        """
        try:
            return self._mount.source.mode_at(self._descriptor(directory), name)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return None
            raise

    def own_in(self, directory: NodeId) -> dict[bytes, int]:
        """Return the guest's own directories: inode number by name. Raises OSError."""
        entries = self._mount.source.typed_names(self._descriptor(directory))
        return {name[1:]: inode for name, (_, inode) in entries.items() if name[:1] == OWN}

    def _descriptor(self, directory: NodeId) -> int:
        return self._mount.descriptors.of(self._mount.nodes.get(directory))

    def tidy(self, place: list[bytes]) -> None:
        """Remove what stands for the directory at ``place`` and those above it, if it is empty."""
        for depth in range(len(place), 0, -1):
            above = self.find(place[: depth - 1])
            node = None if above is None else self._step(above, place[depth - 1])
            if above is None or node is None:
                continue
            try:
                self._local.rmdir(_DAEMON, above, PLACE + place[depth - 1])
            except RequestError:  # it holds something
                return
            self._held.discard(node)
            self._local.forget(node, 1)

    def check_room(self, place: list[bytes]) -> None:
        """Check that what stands for a directory can come to ``place``; make what is above that.

        Raises RequestError, OSError(ENAMETOOLONG).
        """
        if len(PLACE + place[-1]) > NAME_MAX:
            raise os_error(errno.ENAMETOOLONG)
        self.make(place[:-1])

    def move(self, old: list[bytes], new: list[bytes], is_exchange: bool) -> None:
        """Move what stands for a directory after that was moved, or exchanged with another.

        What a directory that is gone has left at the new place is left at the old one.
        """
        is_at_old, is_at_new = self.find(old) is not None, self.find(new) is not None
        if is_at_new and not is_at_old and is_exchange:
            old, new = new, old
        elif not is_at_old:
            return
        flags = RENAME_EXCHANGE if is_at_old and is_at_new else 0
        above_old, above_new = self.make(old[:-1]), self.make(new[:-1])
        self._local.rename(_DAEMON, above_old, PLACE + old[-1], above_new, PLACE + new[-1], flags)
        self.tidy(old)


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
        share.overlays.append(self._overlay)

        self.statfs = share.statfs
        self.forget = _by_number(share.forget, local.forget)
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

    # What a name leads to

    def _where(self, ref: NodeRef) -> tuple[_Where, list[bytes]]:
        """Return where a name in a directory of the share leads, and the directory's place.

        What is no directory on the share is shown as it is there. Raises OSError.
        """
        if self._is_marked(ref):
            there = self._source.mode_at(ref.fd, ref.name)
            if there is None or S_ISDIR(there):
                return self._where_directory(ref, there is not None)
        return _Where.SHARE, []

    def _is_marked(self, ref: NodeRef) -> bool:
        """Return whether a directory of that name may be the guest's; rules for names come first.

        Below a guarded directory none is.
        """
        is_guarded = ref.parent.verdict is not ALLOW or not self._access.allows(ref.name)
        return not is_guarded and self._marker(ref.name) is not None

    def _where_directory(self, ref: NodeRef, is_there: bool) -> tuple[_Where, list[bytes]]:
        """Return where the name of a directory leads; ``is_there``: the share has that directory.

        A marker decides when a directory is made: the guest's own stay when the marker goes.
        """
        marker = self._marker(ref.name)
        assert marker is not None
        place = self._access.place(ref.parent)
        standing = self._mirror.find(place)
        if standing is not None and self._mirror.mode_at(standing, OWN + ref.name) is not None:
            return _Where.OWN, place
        if marker.beside and not any(self._source.find_at(ref.fd, at) for at in marker.beside):
            return _Where.SHARE, place
        if marker.inside and is_there and not self._holds(ref, marker.inside):
            return _Where.SHARE, place
        return _Where.NOWHERE, place

    def _holds(self, ref: NodeRef, name: bytes) -> bool:
        fd = self._source.open_node(ref.fd, ref.name)
        try:
            return self._source.find_at(fd, name) is not None
        finally:
            os.close(fd)

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
                where, _ = self._where(NodeRef(directory, dir_fd, name))
            except OSError:
                continue
            if where is _Where.OWN:
                shown[name] = S_IFDIR, LOCAL_NUMBERS.offset + own.get(name, 0)
            elif where is _Where.NOWHERE:
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

    # Requests on names

    @guarded_by(GuardedBy.NAME)
    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes) -> EntryReply:
        """Find an entry and count a lookup of its node. Raises RequestError."""
        if is_local(parent_id):
            return self._local.lookup(caller, parent_id, name)
        if self._marker(name) is not None:
            where, place = self._where(self._access.name(parent_id, name))
            if where is _Where.OWN:
                return self._top(self._local.lookup(caller, self._mirror.make(place), OWN + name))
            if where is _Where.NOWHERE:
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
            where, place = self._where(self._changing(parent_id, name))
            if where is not _Where.SHARE:
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
            where, _ = self._where(ref)
            if where is not _Where.SHARE and (
                where is _Where.OWN or self._source.find_at(ref.fd, name) is not None
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
        where, place = self._where(ref)
        if where is _Where.OWN:
            return _Entry(True, self._mirror.make(place), OWN + name, True)
        mode = None if where is _Where.NOWHERE else self._source.mode_at(ref.fd, name)
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
            where, place = _Where.SHARE, list[bytes]()
            if self._is_marked(ref) and (there is None or is_directory or moved.is_directory):
                where, place = self._where_directory(ref, is_directory)
            if where is not _Where.SHARE and moved.is_directory:
                if not moved.is_local or (there is not None and not is_directory):
                    raise os_error(errno.EXDEV)
                return _Entry(True, self._mirror.make(place), OWN + name, True)
            if where is _Where.OWN or (where is _Where.NOWHERE and is_directory):
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
