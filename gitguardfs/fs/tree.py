"""One tree: the requests on one source, a method each.

The methods are synchronous and must be called from one thread only: each runs from its first check
to its last change of the tables without interruption. A method returns a reply, or a ``Blocking``
with a call that may wait for a disk or a server.

Every method raises Refused, by the guard, or OSError, which ``View.serve`` turns into the errno of
the answer: EBADF for an unknown handle, EPERM by the change policy, EROFS for a read-only mount or
object, ESTALE if a node's object is gone or replaced, and that of the source.
"""

from __future__ import annotations

import errno
import os
from stat import S_IFDIR

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, EntryReply, NodeId
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.directories import Directories
from gitguardfs.fs.file_flags import FileFlags
from gitguardfs.fs.ranges import Ranges
from gitguardfs.fs.removals import Removals
from gitguardfs.fs.renaming import Renames


class Tree(Removals, Renames, Ranges, Directories, FileFlags):
    """All requests on one source. ``Files`` has those that add names."""

    def lookup(
        self, caller: Caller, parent_id: NodeId, name: bytes, ref: NodeRef | None = None
    ) -> EntryReply:
        """Find an entry and count a lookup of its node. A guarded name can be looked up.

        ``ref`` is the name's, if it was checked before. If the kernel may remember that nothing has
        the name, returns a negative reply instead of ENOENT. Raises Refused below a guarded
        directory; OSError: ENOENT, ESTALE, or the source's.
        """
        if ref is None:
            ref = self.check.name(parent_id, name)
        held = -1
        try:
            if (parent_id, name) in self.descriptors.replaced:
                held = self.source.open_node(ref.fd, name)
            st = self.source.stat_at(ref.fd, name) if held < 0 else self.source.stat(held)
        except FileNotFoundError:
            found = None
        else:
            found = self.resolver.entry(ref, st, caller.uid)
            if held >= 0 and found is not None and found[0].matches(st):
                self.descriptors.keep(found[0], held)
                held = -1
        finally:
            if held >= 0:
                os.close(held)
        if found is None:
            knows_case = self.is_exclusive or self.case.matters(ref.parent, ref.fd)
            if not self.cache_timeout or not knows_case:
                raise os_error(errno.ENOENT)
            # A .git that appears is shown soon, whoever tells of it.
            timeout = self.least_timeout
            if ref.is_plain:
                timeout = self.missing_timeout(parent_id, name)
            return EntryReply(NodeId(0), None, timeout, 0.0)
        node, reply = found
        if node.file_type != S_IFDIR and caller.pid in self.advice.lookups:
            self.advice.lookups[caller.pid] += 1
        return reply

    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node."""
        self.resolver.forget(node_id, times)

    def statfs(self, caller: Caller) -> os.statvfs_result:
        """Return size and free space of the source (statvfs(3)). Raises OSError."""
        return self.source.statvfs(self.nodes.root.fd)
