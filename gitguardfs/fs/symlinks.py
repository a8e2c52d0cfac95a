"""Resolves symlinks (bindfs's ``--resolve-symlinks``): the target is shown instead.

The path is walked from the mount's root, one component at a time, and each is checked by
``Access``. ``..`` goes back to the directory walked before and never asks the source. So a symlink
leads neither out of the source nor to or below a denied object.

A file gets a second name, as by a hard link. A directory and the directories below it are shown by
nodes of their own, a linked subtree, since the kernel gives each directory one name. Nodes of the
directories on the path stay pinned: when the host makes one of them guarded, that has to reach
the nodes found behind it (``NodeTable.restrict_known``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from stat import S_ISDIR, S_ISLNK, S_ISVTX
from typing import NamedTuple

from gitguardfs.base.constants import MAX_SYMLINKS
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Attributes, Caller
from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import GUARDED, Directory, LinkedSubtree, Node, ObjectKey, stale
from gitguardfs.fs.source import Source
from gitguardfs.names import links
from gitguardfs.names.rules import Verdict
from gitguardfs.options.change_policy import SymlinkPolicy
from gitguardfs.options.mount_options import MountOptions

LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
OUTSIDE = "symlink out of the source"


class LinkTarget(NamedTuple):
    """The object that a symlink leads to."""

    ref: NodeRef
    st: os.stat_result
    subtree: LinkedSubtree | None = None
    """The linked subtree of a directory; None for another object."""


class SymlinkResolver:
    """Resolves the symlinks of one mount."""

    def __init__(
        self,
        options: MountOptions,
        access: Access,
        nodes: NodeTable,
        source: Source,
        attributes: AttributeMapper,
        find_or_add: Callable[[NodeRef, os.stat_result], Node | None],
    ) -> None:
        """Take parts of a tree. Absolute symlinks to paths below the source lead into the mount.

        ``find_or_add`` returns the node of an entry; None if the entry is hidden.
        """
        policy = options.symlinks or SymlinkPolicy()
        self.deletion = policy.deletion
        self._source_parts = [part for part in os.fsencode(options.source).split(b"/") if part]
        self._access = access
        self._nodes = nodes
        self._source = source
        self._attributes = attributes
        self._find_or_add = find_or_add
        self._subtrees: dict[tuple[int, int, int], LinkedSubtree] = {}
        self._variants = count(GUARDED + 1)

    def target(self, ref: NodeRef) -> LinkTarget | None:
        """Return the target of the symlink at ``ref``.

        Returns None if nothing is there, or if the target is a directory above the symlink: that
        tree would have no end. Raises Refused if the target is outside of the source or may not be
        read, and OSError of the source.
        """
        way = self._way_to(ref.parent)
        above = frozenset((node.dev, node.ino) for node in way)
        if ref.parent.subtree is not None:
            above |= ref.parent.subtree.ancestors
        own = self._source.stat_at(ref.fd, ref.name)
        rest = [ref.name]
        symlinks = 0
        while rest:
            name = rest.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if len(way) == 1:
                    raise self._access.refused(OUTSIDE, ref)
                way.pop()
                continue
            component = self._access.link_component(way[-1], name)
            try:
                st = self._source.stat_at(component.fd, name)
            except OSError as error:
                if error.errno in LEADS_NOWHERE:
                    return None
                raise
            if S_ISLNK(st.st_mode):
                symlinks += 1
                if symlinks > MAX_SYMLINKS:
                    return None
                text = self._text(component)
                parts = text.split(b"/")
                if text.startswith(b"/"):
                    parts = self._below_source(ref, parts)
                    del way[1:]
                rest += reversed(parts)
            elif S_ISDIR(st.st_mode):
                way.append(self._directory(component, st))
            else:
                return None if rest else self._checked(LinkTarget(component, st))
        if (way[-1].dev, way[-1].ino) in above:
            return None
        return self._checked(self._as_target(way, self._subtree(ref.parent, own, above)))

    def _subtree(
        self, parent: Directory, link: os.stat_result, above: frozenset[ObjectKey]
    ) -> LinkedSubtree:
        """Return the linked subtree of a symlink; each path to the symlink has its own."""
        outer = 0 if parent.subtree is None else parent.subtree.variant
        key = link.st_dev, link.st_ino, outer
        subtree = self._subtrees.get(key)
        if subtree is None or subtree.ancestors != above:
            subtree = self._subtrees[key] = LinkedSubtree(next(self._variants), above)
        return subtree

    def replaced(self, ref: NodeRef) -> LinkTarget | None:
        """Return the target of a symlink at ``ref``, which a rename replaces; None if no symlink.

        Raises as ``target`` does.
        """
        st = self._source.find_at(ref.fd, ref.name)
        return self.target(ref) if st is not None and S_ISLNK(st.st_mode) else None

    def check_replaceable(self, caller: Caller, target: LinkTarget) -> NodeRef:
        """Return the name of a symlink's target, which is about to be removed or replaced.

        The kernel has checked permissions in the symlink's directory only. Raises
        OSError(EACCES) if ``caller`` has no permission in the target's directory, by the
        attributes that the guest sees; Refused, and any other OSError of the source.
        """
        ref = self._access.name(target.ref.parent.id, target.ref.name, change=True)
        self._access.check_unguarded(ref, target.st)
        directory, entry = (
            self._attributes.unguarded(0, st, caller.uid)
            for st in (self._source.stat(ref.fd), target.st)
        )
        if not may_remove((caller.uid, caller.gid), directory, entry):
            raise os_error(errno.EACCES)
        return ref

    def _way_to(self, directory: Directory) -> list[Directory]:
        way = [directory]
        while way[-1] is not self._nodes.root:
            above = way[-1].parent
            if above is None or above in way:
                raise stale()
            way.append(above)
        return way[::-1]

    def _text(self, component: NodeRef) -> bytes:
        try:
            return links.shown(self._source.readlink(component.fd, component.name))
        except OSError as error:
            if error.errno == errno.EINVAL:  # it is no symlink any more
                raise stale() from None
            raise

    def _below_source(self, ref: NodeRef, parts: list[bytes]) -> list[bytes]:
        parts = [part for part in parts if part not in (b"", b".")]
        length = len(self._source_parts)
        if parts[:length] != self._source_parts:
            raise self._access.refused(OUTSIDE, ref)
        return parts[length:]

    def _directory(self, component: NodeRef, st: os.stat_result) -> Directory:
        node = self._find_or_add(component, st)
        if not isinstance(node, Directory):
            raise self._access.refused("hidden", component)
        node.is_pinned = True
        return node

    def _as_target(self, way: list[Directory], subtree: LinkedSubtree) -> LinkTarget:
        parent, node = way[-2:]
        component = self._access.link_component(parent, node.name)
        return LinkTarget(component, self._source.stat_at(component.fd, component.name), subtree)

    def _checked(self, target: LinkTarget) -> LinkTarget:
        verdict, rule = self._access.verdict_of(target.ref, target.st)
        if verdict >= Verdict.DENY:
            raise self._access.refused(rule, target.ref)
        return target


def may_remove(caller: tuple[int, int], directory: Attributes, entry: Attributes) -> bool:
    """Return whether a user (uid, gid) may remove or replace ``entry`` of ``directory``.

    The rules are Linux's, applied to the attributes that the view shows. The user's further groups
    are unknown. So a permission of others counts only if the group has it too.
    """
    uid, gid = caller
    if uid == 0:
        return True
    mode = directory.mode
    if uid == directory.uid:
        bits = mode >> 6
    elif gid == directory.gid:
        bits = mode >> 3
    else:
        bits = mode & mode >> 3
    if bits & 0o3 != 0o3:
        return False
    return not mode & S_ISVTX or uid in (directory.uid, entry.uid)
