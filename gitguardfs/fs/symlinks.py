"""Symlinks that are resolved here (bindfs's ``--resolve-symlinks``): the target takes their place.

The way is walked from the mount's root, one component at a time and each through the gate; ``..``
takes back a step that was walked and never asks the source. So a link can lead neither out of the
source nor to or below anything guarded. A file has a second name then, as by a hard link; a
directory, with the directories below it, is shown by nodes of its own (a branch), since the kernel
gives each one name. The directories on the way stay known for good: what the host does to one of
them has to reach what was found behind it (``NodeTable.restrict_known``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from stat import S_ISDIR, S_ISLNK, S_ISVTX
from typing import NamedTuple

from gitguardfs.bindfs.change_policy import LinkPolicy
from gitguardfs.errors import os_error
from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.nodes import GUARDED, LinkedSubtree, Node, NodeTable, ObjectKey, stale
from gitguardfs.fs.source import Source
from gitguardfs.guard.rules import Refused, Verdict
from gitguardfs.protocol import Attributes, Caller

MAX_LINKS = 40
"""Symlinks on one way, as in the kernel (MAXSYMLINKS)."""

LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
OUTSIDE = "symlink out of the source"


class Target(NamedTuple):
    """What a symlink leads to."""

    place: NodeRef
    st: os.stat_result
    branch: LinkedSubtree | None = None
    """Of a directory."""


class Links:
    """The symlinks of one mount."""

    def __init__(
        self,
        policy: LinkPolicy,
        source_path: bytes,
        access: Access,
        nodes: NodeTable,
        source: Source,
        attributes: AttributeMapper,
        see: Callable[[NodeRef, os.stat_result], Node | None],
    ) -> None:
        """``source_path`` is the path of the source: absolute links below it lead to the mount.

        ``see`` gives the node for an entry.
        """
        self.deletion = policy.deletion
        self._source_parts = [part for part in source_path.split(b"/") if part]
        self._access = access
        self._nodes = nodes
        self._source = source
        self._attributes = attributes
        self._see = see
        self._branches: dict[tuple[int, int, int], LinkedSubtree] = {}
        self._variants = count(GUARDED + 1)

    def target(self, place: NodeRef) -> Target | None:
        """What the symlink at ``place`` leads to.

        None if that is nothing, or a directory on the way to the link, which would have no end.
        Refused if it is outside of the source, or guarded in any way that
        keeps it from being read.
        """
        way = self._way_to(place.parent)
        above = frozenset((node.dev, node.ino) for node in way)
        if place.parent.branch is not None:
            above |= place.parent.branch.ancestors
        own = self._source.stat_at(place.fd, place.name)
        rest = [place.name]
        links = 0
        while rest:
            name = rest.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if len(way) == 1:
                    raise self._refused(place)
                way.pop()
                continue
            step = self._access.link_component(way[-1], name)
            try:
                st = self._source.stat_at(step.fd, name)
            except OSError as error:
                if error.errno in LEADS_NOWHERE:
                    return None
                raise
            if S_ISLNK(st.st_mode):
                links += 1
                if links > MAX_LINKS:
                    return None
                text = self._text(step)
                parts = text.split(b"/")
                if text.startswith(b"/"):
                    parts = self._below_source(place, parts)
                    del way[1:]
                rest += reversed(parts)
            elif S_ISDIR(st.st_mode):
                way.append(self._directory(step, st))
            else:
                return None if rest else self._checked(Target(step, st))
        if (way[-1].dev, way[-1].ino) in above:
            return None
        return self._checked(self._as_target(way, self._branch(place.parent, own, above)))

    def _branch(
        self, parent: Node, link: os.stat_result, above: frozenset[ObjectKey]
    ) -> LinkedSubtree:
        """The branch behind a symlink; another one behind each way that leads to it."""
        outer = 0 if parent.branch is None else parent.branch.variant
        key = link.st_dev, link.st_ino, outer
        branch = self._branches.get(key)
        if branch is None or branch.ancestors != above:
            branch = self._branches[key] = LinkedSubtree(next(self._variants), above)
        return branch

    def unpin(self, node: Node) -> None:
        """Let go of a directory that is removed: nothing lies behind it any more."""
        node.is_pinned = False

    def replaced(self, place: NodeRef) -> Target | None:
        """What a rename to ``place`` replaces, if that is a symlink's target."""
        st = self._source.find_at(place.fd, place.name)
        return self.target(place) if st is not None and S_ISLNK(st.st_mode) else None

    def check_replaceable(self, caller: Caller, target: Target) -> NodeRef:
        """Return the place of a symlink's target, which is about to be removed or replaced.

        The kernel has looked at the rights in the symlink's directory only. Raises Refused,
        Later, or OSError(EACCES) if ``caller`` may not do that in the target's, as attributes
        are reported.
        """
        self._access.settle(target.place)  # while nothing is removed yet
        place = self._access.reopened(target.place)
        self._access.check_unguarded(place, target.st)
        place = self._access.reopened(place)
        directory, entry = (
            self._attributes.unguarded(0, st, caller.uid)
            for st in (self._source.stat(place.fd), target.st)
        )
        if not may_remove((caller.uid, caller.gid), directory, entry):
            raise os_error(errno.EACCES)
        return place

    def _way_to(self, directory: Node) -> list[Node]:
        way = [directory]
        while way[-1] is not self._nodes.root:
            above = way[-1].parent
            if above is None or above in way:
                raise stale()
            way.append(above)
        return way[::-1]

    def _text(self, step: NodeRef) -> bytes:
        try:
            return self._source.readlink_at(step.fd, step.name)
        except OSError as error:
            if error.errno == errno.EINVAL:  # no symlink any more
                raise stale() from None
            raise

    def _below_source(self, place: NodeRef, parts: list[bytes]) -> list[bytes]:
        parts = [part for part in parts if part not in (b"", b".")]
        length = len(self._source_parts)
        if parts[:length] != self._source_parts:
            raise self._refused(place)
        return parts[length:]

    def _directory(self, step: NodeRef, st: os.stat_result) -> Node:
        node = self._see(step, st)
        if node is None:
            raise Refused("hidden", partial(self._access.path, step.parent, step.name))
        node.is_pinned = True
        return node

    def _as_target(self, way: list[Node], branch: LinkedSubtree) -> Target:
        parent, node = way[-2:]
        step = self._access.link_component(parent, node.name)
        return Target(step, self._source.stat_at(step.fd, step.name), branch)

    def _checked(self, target: Target) -> Target:
        verdict, rule = self._access.verdict_of(target.place, target.st)
        if verdict >= Verdict.DENY:
            raise Refused(rule, partial(self._access.path, target.place.parent, target.place.name))
        return target

    def _refused(self, place: NodeRef) -> Refused:
        return Refused(OUTSIDE, partial(self._access.path, place.parent, place.name))


def denied() -> OSError:
    """The symlinks of a mount are not to be made or removed."""
    return os_error(errno.EPERM)


def may_remove(caller: tuple[int, int], directory: Attributes, entry: Attributes) -> bool:
    """Whether a user (uid, gid) may remove or replace ``entry`` of ``directory``.

    As in Linux, by attributes as the view shows them; but the user's further groups are not
    known: what others may do counts only where the group may do it too.
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
