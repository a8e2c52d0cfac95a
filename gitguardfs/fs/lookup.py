"""The requests LOOKUP and FORGET, which raise and lower the lookup counts of nodes."""

from __future__ import annotations

import errno
import os
from stat import S_IFDIR

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, EntryReply, NodeId
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.parts import Parts


class Lookup(Parts):
    """The requests that look names up and undo lookups."""

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
            return EntryReply(NodeId(0), None, self.cache_timeout, 0.0)
        node, reply = found
        if node.file_type != S_IFDIR and caller.pid in self.advice.lookups:
            self.advice.lookups[caller.pid] += 1
        return reply

    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node."""
        self.resolver.forget(node_id, times)
