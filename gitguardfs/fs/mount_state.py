"""What the operations of a mount share: its tables, and how an entry becomes a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from stat import S_IFBLK, S_IFMT, S_IFREG, S_ISLNK
from typing import NamedTuple

from gitguardfs.bindfs.change_policy import LinkPolicy, Policy
from gitguardfs.bindfs.idmap import ShareUid
from gitguardfs.fs.access import Gate, Identity, Place
from gitguardfs.fs.attributes import Attributes, View
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.handles import HandleTable
from gitguardfs.fs.host_rules import HostRules
from gitguardfs.fs.nodes import NEVER, Branch, InodeTable, Node
from gitguardfs.fs.removed_names import RemovedNames
from gitguardfs.fs.source import Backing
from gitguardfs.fs.symlinks import Links
from gitguardfs.guard.rules import Guard, Refused, Verdict

ORDINARY = Policy()


class Caller(NamedTuple):
    """Who asks, in guest ids."""

    uid: int
    gid: int


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
        is_local: Callable[[int], bool] = lambda _: True,
        by_paths: bool = False,
        read_only: bool = False,
        policy: Policy = ORDINARY,
        links: LinkPolicy | None = None,
        source: bytes = b"",
        opens_devices: bool = False,
    ) -> None:
        """Serve the directory behind ``root_fd``, which stays the caller's.

        ``changes_owners`` says that the process may give files away (it is root), ``is_local``
        that the file system with a certain st_dev stamps files by this machine's clock and waits
        for no server, ``by_paths`` that descriptors of the source hold paths and not objects,
        ``links`` that symlinks are resolved, for which ``source`` is the path of the directory,
        and ``opens_devices`` that block devices are opened as files.
        """
        root = os.fstat(root_fd)
        self.inodes = InodeTable(root)
        self.inodes.root.fd = root_fd
        self.handles = HandleTable()
        self._by_paths = by_paths
        self._descriptors = DescriptorCache(descriptor_limit, by_paths)
        self._backing = Backing(self._descriptors)
        forming, removed = Forming(self._backing, is_local), RemovedNames(self._backing, root_fd)
        if guard.forges:
            forming.accept(root_fd)
        self._gate = Gate(
            guard, self.inodes, self._descriptors, self._backing, read_only, forming, removed,
            by_paths, is_local,
        )  # fmt: skip
        self._host = HostRules(
            guard, self._gate, self._descriptors, self._backing, self.inodes.root, forming, removed
        )
        self._view = view
        self._share_owner = ShareUid(root.st_uid)
        self._changes_owners = changes_owners
        self._is_local = is_local
        self._policy = policy
        self._links: Links | None = None
        if links is not None:
            self._links = Links(links, source, self._gate, self.inodes, self._backing, self._see)
        shows_all = not guard.hides and view.idmap.shows_all
        self.lists_names = shows_all and links is None and not opens_devices
        """Whether names and types of the source can be told without a look at each object."""
        self._content_kinds = (S_IFREG, S_IFBLK) if opens_devices else (S_IFREG,)

    def _look_at(
        self, place: Place, st: os.stat_result, dotgit: Identity | bool = True
    ) -> tuple[Node | None, os.stat_result]:
        """What somebody finds who looks at ``place``: a node as ``_see`` gives it, and its stat.

        Where symlinks are resolved that is what one leads to. One that leads where it must not
        is denied as a symlink.
        """
        if self._links is None or not S_ISLNK(st.st_mode):
            return self._see(place, st, dotgit), st
        if self._gate.verdict_of(place, st, dotgit)[0] is Verdict.ALLOW:
            try:
                target = self._links.target(place)
            except Refused as refused:
                denied = self.inodes.see(place.parent, place.name, st, Verdict.DENY, refused.rule)
                return denied, st
            if target is not None:
                return self._see(target.place, target.st, branch=target.branch), target.st
            place = self._gate.again(place)
        return self._see(place, st, dotgit), st

    def _see(
        self,
        place: Place,
        st: os.stat_result,
        dotgit: Identity | bool = True,
        branch: Branch | None = None,
    ) -> Node | None:
        """The node for an entry that was just seen; None for one that is not to be shown."""
        judged = self._gate.judge(place, st, dotgit)
        if judged.verdict is Verdict.HIDE:
            if judged.fd >= 0:
                os.close(judged.fd)
            self.inodes.close_unguarded(st, judged.verdict, judged.rule)
            return None
        node = self.inodes.see(
            place.parent, place.name, st, judged.verdict, judged.rule, judged.birth, branch
        )
        while self.inodes.left:
            self._descriptors.close(self.inodes.left.pop())
        if not judged.is_open:
            node.judged = NEVER
        if self._by_paths:  # what it had may lead to what the host has put in its old place
            self._descriptors.close(node)
        if judged.fd >= 0:
            self._descriptors.keep(node, judged.fd)
        return node

    def _present_found(self, node: Node, st: os.stat_result, viewer: int) -> Attributes:
        """Show a node that was just found; let go of it if it cannot be shown."""
        try:
            return self._view.present(node, st, viewer)
        except BaseException:
            self._drop_unknown(node)
            raise

    def _drop_unknown(self, node: Node) -> None:
        """Let go of a node that the kernel was not told of."""
        if node.lookups == 0:
            self.inodes.drop(node)
            self._descriptors.close(node)

    def _strip_set_id(self, fd: int, st: os.stat_result) -> None:
        # A write by root keeps set-id bits; the guest does not see them and cannot drop them.
        if self._view.strips(st.st_mode):
            self._backing.chmod(fd, self._view.incoming_mode(S_IFMT(st.st_mode), st.st_mode))
