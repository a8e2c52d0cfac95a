"""What the operations of a mount share: its tables, and how an entry becomes a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from stat import S_IFBLK, S_IFMT, S_IFREG, S_ISLNK
from typing import NamedTuple

from gitguardfs.bindfs.change_policy import LinkPolicy, Policy
from gitguardfs.bindfs.idmap import ShareUid
from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.attributes import Attributes, View
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.handles import HandleTable
from gitguardfs.fs.host_rules import HostRules
from gitguardfs.fs.nodes import NEVER, LinkedSubtree, Node, NodeTable, ObjectKey
from gitguardfs.fs.removed_names import RemovedNames
from gitguardfs.fs.source import Source
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
        can_chown: bool,
        is_local: Callable[[int], bool] = lambda _: True,
        path_based: bool = False,
        read_only: bool = False,
        policy: Policy = ORDINARY,
        links: LinkPolicy | None = None,
        source_path: bytes = b"",
        opens_devices: bool = False,
    ) -> None:
        """Serve the directory behind ``root_fd``, which stays the caller's.

        ``can_chown`` says that the process may give files away (it is root), ``is_local``
        that the file system with a certain st_dev stamps files by this machine's clock and waits
        for no server, ``path_based`` that descriptors of the source hold paths and not objects,
        ``links`` that symlinks are resolved, for which ``source_path`` is the directory's path,
        and ``opens_devices`` that block devices are opened as files.
        """
        root = os.fstat(root_fd)
        self.nodes = NodeTable(root)
        self.nodes.root.fd = root_fd
        self.handles = HandleTable()
        self._path_based = path_based
        self._descriptors = DescriptorCache(descriptor_limit, path_based)
        self._source = Source(self._descriptors)
        forming, removed = Forming(self._source, is_local), RemovedNames(self._source, root_fd)
        if guard.checks_fake_repositories:
            forming.accept(root_fd)
        self._access = Access(
            guard, self.nodes, self._descriptors, self._source, read_only, forming, removed,
            path_based, is_local,
        )  # fmt: skip
        self._host = HostRules(
            guard, self._access, self._descriptors, self._source, self.nodes.root, forming, removed
        )
        self._view = view
        self._share_owner = ShareUid(root.st_uid)
        self._can_chown = can_chown
        self._is_local = is_local
        self._policy = policy
        self._links: Links | None = None
        if links is not None:
            self._links = Links(
                links, source_path, self._access, self.nodes, self._source, self._see
            )
        shows_all = not guard.hides and view.idmap.shows_all
        self.can_list_names_only = shows_all and links is None and not opens_devices
        """Whether names and types of the source can be told without a look at each object."""
        self._content_kinds = (S_IFREG, S_IFBLK) if opens_devices else (S_IFREG,)

    def _look_at(
        self, place: NodeRef, st: os.stat_result, dotgit: ObjectKey | bool | None = True
    ) -> tuple[Node | None, os.stat_result]:
        """What somebody finds who looks at ``place``: a node as ``_see`` gives it, and its stat.

        Where symlinks are resolved that is what one leads to. One that leads where it must not
        is denied as a symlink.
        """
        if self._links is None or not S_ISLNK(st.st_mode):
            return self._see(place, st, dotgit), st
        if self._access.verdict_of(place, st, dotgit)[0] is Verdict.ALLOW:
            try:
                target = self._links.target(place)
            except Refused as refused:
                denied = self.nodes.get_or_add(
                    place.parent, place.name, st, Verdict.DENY, refused.rule
                )
                return denied, st
            if target is not None:
                return self._see(target.place, target.st, branch=target.branch), target.st
            place = self._access.reopened(place)
        return self._see(place, st, dotgit), st

    def _see(
        self,
        place: NodeRef,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None = True,
        branch: LinkedSubtree | None = None,
    ) -> Node | None:
        """The node for an entry that was just seen; None for one that is not to be shown."""
        classified = self._access.classify(place, st, dotgit)
        if classified.verdict is Verdict.HIDE:
            if classified.fd >= 0:
                os.close(classified.fd)
            self.nodes.restrict_known(st, classified.verdict, classified.rule)
            return None
        node = self.nodes.get_or_add(
            place.parent,
            place.name,
            st,
            classified.verdict,
            classified.rule,
            classified.btime_ns,
            branch,
        )
        while self.nodes.left:
            self._descriptors.close(self.nodes.left.pop())
        if not classified.is_open:
            node.classified_at = NEVER
        if self._path_based:  # what it had may lead to what the host has put in its old place
            self._descriptors.close(node)
        if classified.fd >= 0:
            self._descriptors.keep(node, classified.fd)
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
        if node.lookup_count == 0:
            self.nodes.drop(node)
            self._descriptors.close(node)

    def _strip_set_id(self, fd: int, st: os.stat_result) -> None:
        # A write by root keeps set-id bits; the guest does not see them and cannot drop them.
        if self._view.strips(st.st_mode):
            self._source.chmod(fd, self._view.incoming_mode(S_IFMT(st.st_mode), st.st_mode))
