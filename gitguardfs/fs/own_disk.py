"""The system calls on a disk of the guest's own, which only the daemon's calls change."""

from __future__ import annotations

from functools import partial

from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.source import Source
from gitguardfs.linux.reserved_blocks import RootsBlocks


class OwnDisk(Source):
    """System calls that leave the blocks alone which the disk reserves for root.

    What they make may belong to nobody until the caller gives it away.
    """

    _TAKING = ("write", "create", "mkdir", "mknod", "symlink", "link", "rename", "setxattr")
    """The calls that may take blocks: for content, for names, for values."""

    def __init__(self, descriptors: DescriptorCache, noatime: bool, root_fd: int) -> None:
        super().__init__(descriptors, lambda _: True, noatime)
        blocks = RootsBlocks(root_fd)
        for name in self._TAKING:
            setattr(self, name, partial(blocks.left_alone, getattr(self, name)))
