"""One tree: the requests on one source, a method each.

The methods are synchronous and must be called from one thread only: each runs from its first check
to its last change of the tables without interruption. A method returns a reply, or a ``Blocking``
with a call that may wait for a disk or a server. It raises Refused or OSError, which ``View.serve``
turns into the errno of the answer.
"""

from __future__ import annotations

import os

from gitguardfs.base.protocol import Caller
from gitguardfs.fs.directories import Directories
from gitguardfs.fs.files import Files
from gitguardfs.fs.lookup import Lookup
from gitguardfs.fs.metadata import Metadata
from gitguardfs.fs.removals import Removals
from gitguardfs.fs.renaming import Renames


class Tree(Lookup, Removals, Renames, Files, Directories, Metadata):
    """All requests on one source. ``Files`` has those that add names."""

    def statfs(self, caller: Caller) -> os.statvfs_result:
        """Return size and free space of the source (statvfs(3)). Raises OSError."""
        return self.source.statvfs(self.nodes.root.fd)
