"""The requests LOOKUP and FORGET, which raise and lower the lookup counts of nodes."""

from __future__ import annotations

import errno
from stat import S_IFDIR

from gitguardfs.fs.access import Access
from gitguardfs.fs.resolver import Resolver
from gitguardfs.fs.source import Source
from gitguardfs.protocol import Caller, EntryReply, NodeId, RequestError
from gitguardfs.serving.boundary import Boundary, GuardedBy, guarded_by
from gitguardfs.serving.readdirplus import ReaddirplusAdvice
from gitguardfs.serving.replies import Timeouts


class Lookup:
    """The requests that look names up and undo lookups."""

    def __init__(
        self,
        boundary: Boundary,
        access: Access,
        resolver: Resolver,
        source: Source,
        advice: ReaddirplusAdvice,
        timeouts: Timeouts,
    ) -> None:
        self.boundary = boundary
        self._access = access
        self._resolver = resolver
        self._source = source
        self._advice = advice
        self._timeouts = timeouts
        self._absent = EntryReply(NodeId(0), None, timeouts.entry, 0.0)

    @guarded_by(GuardedBy.NAME)
    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes) -> EntryReply:
        """Find an entry and count a lookup of its node. A guarded name can be looked up.

        Raises RequestError: EACCES below a guarded directory, ENOENT (with an entry timeout, a
        negative reply is returned), ESTALE, or the source's error.
        """
        ref = self._access.name(parent_id, name)
        try:
            st = self._source.stat_at(ref.fd, name)
        except FileNotFoundError:
            found = None
        else:
            found = self._resolver.entry(ref, st, caller.uid)
        if found is None:
            if not self._timeouts.entry:
                raise RequestError(errno.ENOENT)
            return self._absent
        node, attributes = found
        if node.file_type != S_IFDIR:
            self._advice.note_lookup(caller.pid)
        return self._timeouts.reply(node.id, attributes)

    @guarded_by(GuardedBy.NOTHING)
    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node. Raises RequestError."""
        self._resolver.forget(node_id, times)
