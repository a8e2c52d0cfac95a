"""The parts of one tree: its tables, and the objects that work on them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from stat import S_IFBLK, S_IFREG

from gitguardfs.base.protocol import NodeId
from gitguardfs.fs.access import Access
from gitguardfs.fs.attributes import CACHED_OWNERS, AttributeMapper, Override
from gitguardfs.fs.blocking import LatencyTracker
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.handles import HandleTable, ReaddirplusAdvice
from gitguardfs.fs.letter_case import LetterCase
from gitguardfs.fs.link_check import LinkCheck
from gitguardfs.fs.locks import Locks
from gitguardfs.fs.new_name_check import NewNameCheck
from gitguardfs.fs.ninep import NinepDescriptors, NinepResolver, NinepSource
from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import SHARE_NUMBERS, Directory, Node, Numbers
from gitguardfs.fs.resolver import Resolver
from gitguardfs.fs.source import OwnDisk, Source
from gitguardfs.fs.symlinks import SymlinkResolver
from gitguardfs.names import links
from gitguardfs.names.rules import RuleSet
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.options.rate_limit import RateLimit

log = logging.getLogger(__name__)

_SEEN_BY_THE_DAEMON = {"noatime", "sync"}
"""Options of the kernel that have an effect only if reads and writes come to the daemon."""
Overlay = Callable[[Directory, int, list[bytes]], dict[bytes, tuple[int, int] | None]]
"""Returns the entries that a listing shows and the source does not have: type and inode number by
name. None takes a name away. The arguments are a directory, its descriptor, and its names."""


@dataclass(frozen=True)
class SourceTraits:
    """Facts about the source of a tree and about this process, found when the mount begins."""

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


class Parts:
    """Builds and holds the parts. Used on one thread only, with no await in between."""

    def __init__(
        self, options: MountOptions, traits: SourceTraits, reports_names_only: bool = False
    ) -> None:
        """Build the parts of a tree over the directory of ``traits.root_fd``.

        ``reports_names_only`` says that the session can report entries without attributes.
        """
        root = os.fstat(traits.root_fd)
        self.policy = options.policy
        self.can_chown = traits.can_chown
        self.closes_late = traits.closes_late
        self.is_exclusive = traits.is_exclusive
        self.share_owner = root.st_uid
        """The uid that owns the source's root."""
        self.guard = guard = RuleSet(options.rules)
        self.nodes = NodeTable(root, traits.numbers)
        self.nodes.root.fd = traits.root_fd
        self.handles = HandleTable(traits.numbers.offset + 1)
        limit, is_local = traits.descriptor_limit, traits.is_local
        noatime = "noatime" in options.kernel
        kind = NinepDescriptors if traits.is_ninep else DescriptorCache
        self.descriptors = kind(limit, traits.root_fd)
        self.source: Source
        if traits.is_ninep:
            self.source = NinepSource(self.descriptors, is_local, noatime, self.handles.opens)
        elif traits.is_exclusive:
            self.source = OwnDisk(self.descriptors, noatime, traits.root_fd)
        else:
            self.source = Source(self.descriptors, is_local, noatime)
        self.nodes.close_descriptor = self.descriptors.close
        self.attributes = AttributeMapper(
            traits.idmap, options, traits.override, self.link_text if guard.contains_links else None
        )
        self.new_owner = lru_cache(CACHED_OWNERS)(partial(self.policy.new_owner, traits.idmap))
        """Returns the owner of a new object in share ids, by the caller's ids; cached."""
        self.check = Access(guard, self.nodes, self.descriptors, self.source, options.read_only)
        self.resolver = (NinepResolver if traits.is_ninep else Resolver)(
            self.nodes, self.descriptors, self.source, self.check, self.attributes
        )
        self.symlinks: SymlinkResolver | None = None
        if options.symlinks is not None:
            self.symlinks = self.resolver.symlinks = SymlinkResolver(
                options, self.check, self.nodes, self.source, self.attributes,
                self.resolver.find_or_add,
            )  # fmt: skip
        self.link_check = LinkCheck(
            guard.contains_links, self.check, self.descriptors, self.source, self.nodes.root
        )
        self.new_names = NewNameCheck(guard, self.check, self.source)
        opens_devices = options.overrides.block_devices_as_files
        self.content_types = (S_IFREG, S_IFBLK) if opens_devices else (S_IFREG,)
        """Types of objects that can be opened."""
        shows_all = not guard.hides and traits.idmap.shows_all
        self.can_list_names_only = (
            reports_names_only and shows_all and self.symlinks is None and not opens_devices
        )
        """Whether listings can report names and types without a stat of each object."""
        self.case = LetterCase(self.source)
        self.least_timeout = self.cache_timeout = options.cache_timeout
        """Seconds for which the kernel may keep what a rule is about, and all the rest."""
        self.note_absent: Callable[[NodeId, bytes], bool] | None = None
        """Notes an absent name that the kernel caches for long, and returns whether it may; None
        unless all changes of the source are told."""
        self.direct_io = options.direct_io
        limits = options.read_rate, options.write_rate
        self.lends_files = (
            self.descriptors.holds_objects
            and not self.direct_io
            and limits == (None, None)
            and _SEEN_BY_THE_DAEMON.isdisjoint(options.kernel)
        )
        """Whether the kernel may read and write the source's files by itself."""
        self.locks = Locks(self.source) if options.lock_forwarding else None
        """None if the guest's kernel keeps locks to itself."""
        self.overlays: list[Overlay] = []
        self.advice = ReaddirplusAdvice()
        self.reads = None if options.read_rate is None else RateLimit(options.read_rate)
        self.writes = None if options.write_rate is None else RateLimit(options.write_rate)
        self.reading, self.writing, self.closing, self.syncing = (LatencyTracker() for _ in "1234")

    def keep(self, seconds: float, note_absent: Callable[[NodeId, bytes], bool] | None) -> None:
        """Have the kernel cache for so long, since all changes of the source are told, or as ever.

        ``note_absent`` notes an absent name that the kernel caches, and returns whether it may.
        """
        self.cache_timeout, self.note_absent = seconds, note_absent
        self.check.kernel_keeps = note_absent is not None
        self.attributes.keep(seconds)

    def missing_timeout(self, parent_id: NodeId, name: bytes) -> float:
        """Return for how many seconds the kernel may keep that nothing has a plain name."""
        may_keep = self.note_absent is not None and self.note_absent(parent_id, name)
        return self.cache_timeout if may_keep else self.least_timeout

    def link_text(self, node: Node) -> bytes:
        """Return the text of a symlink as the view shows it. Raises OSError."""
        stored = self.source.readlink(self.descriptors.of(node))
        return links.shown(stored) if self.guard.contains_links else stored

    def undo_or_log(self, undo: Callable[[], None], parent: Node, name: bytes) -> None:
        """Call ``undo``, and once more if it fails; log the second error.

        It undoes a change of ``name`` after a later check of that failed. Raises no OSError.
        """
        with suppress(OSError):
            undo()
            return
        try:
            undo()
        except OSError as error:
            log.error(
                "a change of %r could not be undone: %s; check it on the host",
                os.fsdecode(self.check.path(parent, name)),
                error.strerror,
            )

    def close(self) -> None:
        """Close all descriptors except the root's."""
        self.handles.close_all()
        self.descriptors.close_all()
