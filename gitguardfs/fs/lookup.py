"""The requests LOOKUP and FORGET, which raise and lower the lookup counts of nodes."""

from __future__ import annotations

import errno
import os
from stat import S_IFDIR

from gitguardfs.base.protocol import Caller, EntryReply, NodeId, RequestError
from gitguardfs.fs.boundary import Boundary, GuardedBy, guarded_by
from gitguardfs.fs.letter_case import LetterCase
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.readdirplus import ReaddirplusAdvice


class Lookup:
    """The requests that look names up and undo lookups."""

    def __init__(self, mount: Mount, boundary: Boundary, advice: ReaddirplusAdvice) -> None:
        self.boundary = boundary
        self._access = mount.access
        self._descriptors = mount.descriptors
        self._resolver = mount.resolver
        self._source = mount.source
        self._advice = advice
        self._case = LetterCase(mount.source)
        timeout = mount.options.cache_timeout
        self._absent = EntryReply(NodeId(0), None, timeout, 0.0) if timeout else None

    @guarded_by(GuardedBy.NAME)
    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes) -> EntryReply:
        """Find an entry and count a lookup of its node. A guarded name can be looked up.

        Raises RequestError: EACCES below a guarded directory, ENOENT, ESTALE, or the source's
        error. If the kernel may remember that nothing has the name, returns a negative reply
        instead of ENOENT.
        """
        ref = self._access.name(parent_id, name)
        held = -1
        try:
            if self._descriptors.is_replaced(ref.parent, name):
                held = self._source.open_node(ref.fd, name)
            st = self._source.stat_at(ref.fd, name) if held < 0 else self._source.stat(held)
        except FileNotFoundError:
            found = None
        else:
            found = self._resolver.entry(ref, st, caller.uid)
            if held >= 0 and found is not None and found[0].matches(st):
                self._descriptors.keep(found[0], held)
                held = -1
        finally:
            if held >= 0:
                os.close(held)
        if found is None:
            if self._absent is None or not self._case.matters(ref.parent, ref.fd):
                raise RequestError(errno.ENOENT)
            return self._absent
        node, reply = found
        if node.file_type != S_IFDIR and caller.pid in self._advice.lookups:
            self._advice.lookups[caller.pid] += 1
        return reply

    @guarded_by(GuardedBy.NOTHING)
    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node. Raises RequestError."""
        self._resolver.forget(node_id, times)
