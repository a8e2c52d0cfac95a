"""The state of one mount: its tables, and the parts that work on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from stat import S_IFBLK, S_IFREG

from gitguardfs.bindfs.change_policy import ChangePolicy, SymlinkPolicy
from gitguardfs.fs.access import Access
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.handles import HandleTable
from gitguardfs.fs.host_rules import HostRules
from gitguardfs.fs.new_name_check import NewNameCheck
from gitguardfs.fs.nodes import NodeTable
from gitguardfs.fs.removed_names import RemovedNames
from gitguardfs.fs.rename_check import RenameCheck
from gitguardfs.fs.resolver import Resolver
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import SymlinkResolver
from gitguardfs.guard.rules import RuleSet

DEFAULT_POLICY = ChangePolicy()


class MountState:
    """Builds and holds the parts. Used on one thread only, with no await in between."""

    def __init__(
        self,
        root_fd: int,
        guard: RuleSet,
        attributes: AttributeMapper,
        *,
        descriptor_limit: int,
        can_chown: bool,
        is_local: Callable[[int], bool] = lambda _: True,
        path_based: bool = False,
        asks_server: bool = False,
        read_only: bool = False,
        policy: ChangePolicy = DEFAULT_POLICY,
        symlinks: SymlinkPolicy | None = None,
        source_path: bytes = b"",
        opens_devices: bool = False,
    ) -> None:
        """Build the parts for the directory behind ``root_fd``; the caller closes ``root_fd``.

        ``can_chown``: the daemon may give files away (it is root).
        ``is_local`` returns whether this machine's clock stamps the files of a st_dev, and no
        server is waited for.
        ``path_based``: descriptors of the source hold paths, not objects.
        ``asks_server``: each stat(2) of a name asks the source's server for it.
        ``symlinks``: symlinks are resolved; ``source_path`` is then the source's path.
        ``opens_devices``: block devices are opened as files.
        """
        root = os.fstat(root_fd)
        self.nodes = NodeTable(root)
        self.nodes.root.fd = root_fd
        self.handles = HandleTable()
        self.path_based = path_based
        self.is_local = is_local
        self.can_chown = can_chown
        self.share_owner = root.st_uid
        self.policy = policy
        self.attributes = attributes
        self.descriptors = DescriptorCache(descriptor_limit, path_based)
        self.source = Source(self.descriptors, path_based)
        forming = Forming(
            self.source, is_local, lambda device: asks_server and device == root.st_dev
        )
        removed = RemovedNames(self.source, root_fd)
        if guard.checks_fake_repositories:
            forming.accept(root_fd)
        self.access = Access(
            guard, self.nodes, self.descriptors, self.source, read_only, forming,
            path_based, is_local,
        )  # fmt: skip
        self.host = HostRules(
            guard, self.access, self.descriptors, self.source, self.nodes.root, forming, removed
        )
        self.resolver = Resolver(
            self.nodes,
            self.descriptors,
            self.source,
            self.access,
            attributes,
            self.host,
            path_based,
            is_local,
            self.handles.opens,
        )
        self.symlinks: SymlinkResolver | None = None
        if symlinks is not None:
            self.symlinks = self.resolver.symlinks = SymlinkResolver(
                symlinks, source_path, self.access, self.nodes, self.source, attributes,
                self.resolver.find_or_add,
            )  # fmt: skip
        self.new_names = NewNameCheck(guard, self.access, self.source, removed)
        self.renames = RenameCheck(
            self.access, self.new_names, self.source, self.host, policy, self.symlinks,
            self.handles.opens,
        )  # fmt: skip
        shows_all = not guard.hides and attributes.idmap.shows_all
        self.can_list_names_only = shows_all and symlinks is None and not opens_devices
        """Whether listings can report names and types without a stat of each object."""
        self.content_types = (S_IFREG, S_IFBLK) if opens_devices else (S_IFREG,)
        """Types of objects that can be opened."""

    def close(self) -> None:
        """Close all descriptors except the root's."""
        self.handles.close_all()
        self.descriptors.close_all()
