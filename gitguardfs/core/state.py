"""What the operations of a mount share: its tables, and how an entry becomes a node."""

from __future__ import annotations

import os
from enum import Enum
from stat import S_IFMT
from typing import NamedTuple

from gitguardfs.core.backing import Backing
from gitguardfs.core.descriptors import DescriptorCache
from gitguardfs.core.gate import Gate, Identity, Place
from gitguardfs.core.guard import Guard, Verdict
from gitguardfs.core.handles import HandleTable
from gitguardfs.core.idmap import ShareUid
from gitguardfs.core.inodes import InodeTable, Node
from gitguardfs.core.view import View


class Caller(NamedTuple):
    """Who asks, in guest ids."""

    uid: int
    gid: int


class XattrPolicy(Enum):
    """The value of ``--xattr``: extended attributes of the user namespace."""

    NONE = "none"
    RO = "ro"
    RW = "rw"


class State:
    """The tables of one mount. Changed on one thread only, never across an await."""

    def __init__(
        self,
        root_fd: int,
        guard: Guard,
        view: View,
        *,
        descriptor_limit: int,
        changes_owners: bool,
        is_local: bool = True,
        read_only: bool = False,
        xattr: XattrPolicy = XattrPolicy.NONE,
    ) -> None:
        """Serve the directory behind ``root_fd``, which stays the caller's.

        ``changes_owners`` says that the process may give files away (it is root), ``is_local``
        that the source's file system stamps files by this machine's clock.
        """
        root = os.fstat(root_fd)
        self.inodes = InodeTable(root)
        self.inodes.root.fd = root_fd
        self.handles = HandleTable()
        self._descriptors = DescriptorCache(descriptor_limit)
        self._backing = Backing(self._descriptors)
        self._gate = Gate(guard, self.inodes, self._descriptors, self._backing, read_only)
        self._view = view
        self._share_owner = ShareUid(root.st_uid)
        self._changes_owners = changes_owners
        self._is_local = is_local
        self._xattr = xattr

    def _see(self, place: Place, st: os.stat_result, dotgit: Identity | bool = True) -> Node | None:
        """The node for an entry that was just seen; None for one that is not to be shown."""
        judged = self._gate.judge(place, st, dotgit)
        if judged.verdict is Verdict.HIDE:
            if judged.fd >= 0:
                os.close(judged.fd)
            self.inodes.close_unguarded(st, judged.verdict, judged.rule)
            return None
        node = self.inodes.see(
            place.parent, place.name, st, judged.verdict, judged.rule, judged.birth
        )
        if judged.fd >= 0:
            self._descriptors.keep(node, judged.fd)
        return node

    def _strip_set_id(self, fd: int, st: os.stat_result) -> None:
        # A write by root keeps set-id bits; the guest does not see them and cannot drop them.
        if self._view.strips(st.st_mode):
            self._backing.chmod(fd, self._view.incoming_mode(S_IFMT(st.st_mode), st.st_mode))
