"""One mount: its options, its tables, and the parts that work on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from stat import S_IFBLK, S_IFREG

from gitguardfs.fs.access import Access
from gitguardfs.fs.attributes import CACHED_OWNERS, AttributeMapper, Override
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.handles import HandleTable
from gitguardfs.fs.new_name_check import NewNameCheck
from gitguardfs.fs.ninep import NinepDescriptors, NinepResolver, NinepSource
from gitguardfs.fs.nodes import Node, NodeTable
from gitguardfs.fs.numbers import SHARE_NUMBERS, Numbers
from gitguardfs.fs.own_disk import OwnDisk
from gitguardfs.fs.placing import Placing
from gitguardfs.fs.rename_check import RenameCheck
from gitguardfs.fs.resolver import Resolver
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import SymlinkResolver
from gitguardfs.names import links
from gitguardfs.names.rules import RuleSet
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mount_options import MountOptions


@dataclass(frozen=True)
class Surroundings:
    """What a mount has to know of its source and of its process, beside the options."""

    root_fd: int
    """A descriptor of the directory that is guarded; its owner closes it."""
    idmap: IdMap
    descriptor_limit: int
    """Descriptors that are cached at most."""
    can_chown: bool
    """Whether the daemon may give files away, being root."""
    is_local: Callable[[int], bool] = lambda _: True
    """Says of a st_dev whether no server is waited for; see ``Source``."""
    is_ninep: bool = False
    """Whether the source is a 9p share."""
    closes_late: bool = False
    """Whether the source may report write errors only at close(2)."""
    override: Override | None = None
    numbers: Numbers = SHARE_NUMBERS
    is_exclusive: bool = False
    """Whether the source is on a disk of the guest's, and nothing but this mount changes it."""


class Mount:
    """Builds and holds the parts. Used on one thread only, with no await in between."""

    def __init__(self, options: MountOptions, around: Surroundings) -> None:
        root = os.fstat(around.root_fd)
        self.options = options
        self.policy = options.policy
        self.can_chown = around.can_chown
        self.closes_late = around.closes_late
        self.is_exclusive = around.is_exclusive
        self.share_owner = root.st_uid
        """The uid that owns the source's root."""
        self.guard = guard = RuleSet(options.rules)
        self.nodes = NodeTable(root, around.numbers)
        self.nodes.root.fd = around.root_fd
        self.handles = HandleTable(around.numbers.offset + 1)
        limit, is_local = around.descriptor_limit, around.is_local
        noatime = "noatime" in options.kernel
        self.descriptors: DescriptorCache
        self.source: Source
        if around.is_ninep:
            self.descriptors = NinepDescriptors(limit, around.root_fd)
            self.source = NinepSource(self.descriptors, is_local, noatime, self.handles.opens)
        elif around.is_exclusive:
            self.descriptors = DescriptorCache(limit, around.root_fd)
            self.source = OwnDisk(self.descriptors, noatime, around.root_fd)
        else:
            self.descriptors = DescriptorCache(limit, around.root_fd)
            self.source = Source(self.descriptors, is_local, noatime)
        self.attributes = AttributeMapper(
            around.idmap, options, around.override, self.link_text if guard.contains_links else None
        )
        self.new_owner = lru_cache(CACHED_OWNERS)(partial(self.policy.new_owner, around.idmap))
        """Returns the owner of a new object in share ids, by the caller's ids; cached."""
        self.access = Access(guard, self.nodes, self.descriptors, self.source, options.read_only)
        kind = NinepResolver if around.is_ninep else Resolver
        self.resolver = kind(
            self.nodes, self.descriptors, self.source, self.access, self.attributes
        )
        self.symlinks: SymlinkResolver | None = None
        if options.symlinks is not None:
            self.symlinks = self.resolver.symlinks = SymlinkResolver(
                options, self.access, self.nodes, self.source, self.attributes,
                self.resolver.find_or_add,
            )  # fmt: skip
        self.placing = Placing(
            guard.contains_links, self.access, self.descriptors, self.source, self.nodes.root
        )
        self.new_names = NewNameCheck(guard, self.access, self.source)
        self.renames = RenameCheck(
            self.access, self.new_names, self.placing, self.source, self.policy, self.symlinks
        )
        shows_all = not guard.hides and around.idmap.shows_all
        opens_devices = options.overrides.block_devices_as_files
        self.can_list_names_only = shows_all and self.symlinks is None and not opens_devices
        """Whether listings can report names and types without a stat of each object."""
        self.content_types = (S_IFREG, S_IFBLK) if opens_devices else (S_IFREG,)
        """Types of objects that can be opened."""

    def link_text(self, node: Node) -> bytes:
        """Return the text of a symlink as the view shows it. Raises OSError."""
        stored = self.source.readlink(self.descriptors.of(node))
        return links.shown(stored) if self.guard.contains_links else stored

    def close(self) -> None:
        """Close all descriptors except the root's."""
        self.handles.close_all()
        self.descriptors.close_all()
