"""Maps attributes of the source to those that the guest sees.

Attributes of a node leave through ``AttributeMapper.report`` only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from time import monotonic

from gitguardfs.base.constants import PERMISSION_BITS, SET_ID_BITS
from gitguardfs.base.protocol import Attributes, EntryReply, GuestUid, ShareGid, ShareUid, make
from gitguardfs.fs.nodes import NEVER, ROOT_ID, Directory, Node
from gitguardfs.names import links
from gitguardfs.names.rules import ALLOW, Verdict
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mount_options import MountOptions

WRITE_BITS = 0o222
MAPPED_TIMEOUT = 1.0
"""Seconds for which the kernel keeps attributes that may move without its seeing it, at most: of
files that a program may have mapped, and of those with further names, which may be outside."""

_change_of = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns")
"""Attributes that change with a file's content."""


def change_key(st: os.stat_result) -> int:
    """Return a digest of size, mtime and ctime; it changes with a file's content."""
    return hash(_change_of(st))


Override = Callable[[Attributes, int, ShareUid, ShareGid, GuestUid], Attributes]
"""Overrides attributes for a user of the guest; see ``AttributeOverrider.apply``."""

CACHED_OWNERS = 1024
"""Pairs of owners whose guest ids are remembered; a share has few."""


class AttributeMapper:
    """Applies the id map, the overrides and the guard to attributes."""

    def __init__(
        self,
        idmap: IdMap,
        options: MountOptions,
        override: Override | None = None,
        shown_text: Callable[[Node], bytes] | None = None,
    ) -> None:
        """Take ``shown_text``, which returns the text of a symlink as the view shows it.

        None if every text is shown as it is stored.
        """
        self.idmap = idmap
        self._dropped_bits = 0 if options.allow_suid else SET_ID_BITS
        """Mode bits that no object but a directory has in this mount."""
        # Attributes that differ between users must not be cached.
        self._caches_attributes = options.overrides.mirror is None
        self._least_timeout = self.entry_timeout = options.cache_timeout
        """How long the kernel may cache names, in seconds: what is guarded, and all the rest."""
        self._attr_timeout = options.cache_timeout * self._caches_attributes
        self._override = override
        self._shown_text = shown_text
        self._guest_ids = lru_cache(CACHED_OWNERS)(idmap.guest_ids)
        self.drop_listing: Callable[[int], None] | None = None
        """Makes the kernel drop a directory's listing, if it keeps that without being asked."""
        self.may_be_elsewhere: Callable[[bytes], object] | None = None
        """Tells whether another tree may get a name, of which no change tells."""

    def keep(self, seconds: float) -> None:
        """Have the kernel cache for so long what no rule is about, and no other name leads to."""
        self.entry_timeout = seconds
        self._attr_timeout = seconds * self._caches_attributes

    def bits_without_setid(self, mode: int) -> int | None:
        """Return the permission bits without set-id bits; None if there are none to drop.

        A write by root keeps a file's set-id bits; the guest does not see them, so its kernel
        cannot drop them.
        """
        has_some = mode & self._dropped_bits and S_IFMT(mode) != S_IFDIR
        return mode & PERMISSION_BITS & ~SET_ID_BITS if has_some else None

    def mode_for_source(self, file_type: int, mode: int) -> int:
        """Return the permission bits to set in the share; ``file_type`` is the object's S_IFMT."""
        return mode & PERMISSION_BITS & ~(0 if file_type == S_IFDIR else self._dropped_bits)

    def report(self, node: Node, st: os.stat_result, uid: GuestUid) -> EntryReply:
        """Return the reply that reports ``node`` as the user ``uid`` of the guest sees it.

        Notes in the node what was reported to the kernel. A denied object shows its type, owner 0:0
        and no permissions. The owner is 0 because the root of a user namespace overrides the
        permission bits of owners that are mapped there. Raises OSError: EIO if the owner's id
        cannot be shown; that of the source if a symlink cannot be read.
        """
        node_id = node.id
        shown = self.unguarded(st.st_ino if node_id == ROOT_ID else node_id, st, uid)
        entry_timeout, attr_timeout = self.entry_timeout, self._attr_timeout
        if self.drop_listing is not None and type(node) is Directory and node.listed_at != NEVER:
            times = st.st_mtime_ns, st.st_ctime_ns
            is_old = monotonic() - node.listed_at >= entry_timeout
            if is_old or times != node.listed_as or node.verdict is not ALLOW:
                node.listed_at = NEVER
                self.drop_listing(node_id)
        if (
            node.file_type == S_IFLNK
            and st.st_size > len(links.NEUTRAL)
            and node.verdict < Verdict.DENY
            and self._shown_text is not None
        ):
            shown = shown._replace(size=len(self._shown_text(node)))
        if node.verdict is not ALLOW:
            entry_timeout = self._least_timeout
            attr_timeout = entry_timeout * self._caches_attributes
            if node.verdict is Verdict.READONLY:
                shown = shown._replace(mode=shown.mode & ~WRITE_BITS)
            else:
                shown = shown._replace(mode=S_IFMT(st.st_mode), uid=0, gid=0)
        elif node.file_type == S_IFREG:
            node.reported = hash(_change_of(st))  # change_key, without the call
            node.size = st.st_size
            if node.was_mappable or st.st_nlink > 1:
                attr_timeout = min(attr_timeout, MAPPED_TIMEOUT)
            if st.st_nlink > 1:  # only one of its names is known (``live``)
                entry_timeout = self._least_timeout
        elif isinstance(node, Directory) and node.classified_at == NEVER:
            entry_timeout = 0.0  # the kernel looks the name up at each use
        if self.may_be_elsewhere is not None and self.may_be_elsewhere(node.name):
            entry_timeout = min(entry_timeout, self._least_timeout)
            attr_timeout = min(attr_timeout, self._least_timeout)
        return make(EntryReply, (node_id, shown, entry_timeout, attr_timeout))

    def unguarded(self, ino: int, st: os.stat_result, uid: GuestUid) -> Attributes:
        """Return the attributes of an object without the guard's part; note nothing.

        Raises OSError(EIO) if the owner's id cannot be shown.
        """
        mode = st.st_mode
        owner: ShareUid = st.st_uid  # type: ignore[assignment]
        group: ShareGid = st.st_gid  # type: ignore[assignment]
        guest_uid, guest_gid = self._guest_ids(owner, group)
        if S_IFMT(mode) != S_IFDIR:
            mode &= ~self._dropped_bits
        shown = make(
            Attributes,
            (
                ino,
                mode,
                st.st_nlink,
                guest_uid,
                guest_gid,
                st.st_rdev,
                st.st_size,
                st.st_blocks,
                st.st_blksize,
                st.st_atime_ns,
                st.st_mtime_ns,
                st.st_ctime_ns,
            ),
        )
        if self._override is not None:
            shown = self._override(shown, mode, owner, group, uid)
        return shown
