"""The layout of the guest's own directories: like the share, as far as there are any.

The directory ``app/node_modules`` of the view is ``+app/=node_modules`` there. Nothing else has
these two marks, so no directory of one kind is taken for one of the other.
"""

from __future__ import annotations

import errno

from gitguardfs.base.constants import LOCAL_OWN, LOCAL_PLACE
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import (
    RENAME_EXCHANGE,
    Caller,
    GuestGid,
    GuestUid,
    NodeId,
    RequestError,
)
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import ROOT_ID, Node
from gitguardfs.fs.operations import Operations

PLACE, OWN = LOCAL_PLACE, LOCAL_OWN
NAME_MAX = 255
"""Bytes in a name."""
_DAEMON = Caller(GuestUid(0), GuestGid(0))
_NO_SUCH_NAME = (errno.ENOENT, errno.ENAMETOOLONG)


class Mirror:
    """The directories of the guest's tree that stand for directories of the share.

    Each that was found has one lookup counted, while the kernel knows something in it: so it keeps
    its node, which a rename updates.
    """

    def __init__(self, local: Operations, mount: Mount) -> None:
        self._local = local
        self._mount = mount
        self._held: set[NodeId] = set()
        self._forgotten = 0

    def note_forgotten(self) -> None:
        """Note that the kernel has forgotten a node; forget what stands for directories it left.

        All nodes are gone through once it has forgotten as many as it still knows here.
        """
        nodes = self._mount.nodes
        self._forgotten += 1
        if self._forgotten < len(nodes) - len(self._held):
            return
        self._forgotten = 0
        used: set[Node] = set()
        for node in nodes:
            step = None if node.id in self._held else node.parent
            while step is not None and step not in used:
                used.add(step)
                step = step.parent
        for number in self._held - {node.id for node in used}:
            self._held.discard(number)
            self._local.forget(number, 1)

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
