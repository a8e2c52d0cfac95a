"""The requests of one mount, a method each.

The methods are synchronous and must be called from one thread only: each runs from its first check
to its last change of the tables without interruption. A method returns a reply, or a ``Blocking``
with a call that may wait for a disk or a server. It raises RequestError, or Later if the session
must make the same call again. ``boundary.GUARDED_BY`` lists all methods by name.
"""

from __future__ import annotations

from gitguardfs.fs.mount_state import MountState
from gitguardfs.serving.audit_log import AuditLog
from gitguardfs.serving.blocking import LatencyTracker
from gitguardfs.serving.boundary import Boundary
from gitguardfs.serving.directories import Directories
from gitguardfs.serving.entries import Entries
from gitguardfs.serving.files import Files
from gitguardfs.serving.lookup import Lookup
from gitguardfs.serving.metadata import Metadata
from gitguardfs.serving.new_entries import NewEntries
from gitguardfs.serving.readdirplus import ReaddirplusAdvice
from gitguardfs.serving.replies import Timeouts
from gitguardfs.serving.xattrs import Xattrs


class Operations:
    """All requests of one mount. Each part is given only the objects that it needs."""

    def __init__(
        self,
        state: MountState,
        audit: AuditLog,
        *,
        cache_timeout: float,
        same_for_all: bool = True,
        direct_io: bool = False,
        closes_late: bool = False,
        reports_names_only: bool = False,
        read_rate: float | None = None,
        write_rate: float | None = None,
    ) -> None:
        """Serve the mount of ``state``, and report refusals to ``audit``.

        ``cache_timeout`` is in seconds. The kernel caches attributes only if they are the
        ``same_for_all`` users. With ``direct_io`` it caches no pages. ``closes_late`` says that
        the source may report write errors only at close(2). ``reports_names_only`` says that the
        session can report entries without attributes. Rates are limits in bytes a second.
        """
        self.boundary = boundary = Boundary(audit)
        timeouts = Timeouts(cache_timeout, cache_timeout if same_for_all else 0.0)
        advice, syncing = ReaddirplusAdvice(), LatencyTracker()
        access, resolver, nodes = state.access, state.resolver, state.nodes
        descriptors, source, attributes = state.descriptors, state.source, state.attributes
        handles, host, policy, symlinks = state.handles, state.host, state.policy, state.symlinks
        is_local = state.is_local

        lookup = Lookup(boundary, access, resolver, source, advice, timeouts)
        self.lookup, self.forget = lookup.lookup, lookup.forget

        metadata = Metadata(
            boundary, access, nodes, descriptors, source, attributes, handles, host, policy,
            is_local, timeouts,
        )  # fmt: skip
        self.getattr, self.setattr = metadata.getattr, metadata.setattr
        self.readlink, self.access = metadata.readlink, metadata.access
        self.statfs = metadata.statfs

        new_entries = NewEntries(
            boundary, access, state.new_names, resolver, descriptors, source, attributes, host,
            policy, timeouts, can_chown=state.can_chown, share_owner=state.share_owner,
            resolves_symlinks=symlinks is not None,
        )  # fmt: skip
        self.mknod, self.mkdir = new_entries.mknod, new_entries.mkdir
        self.symlink, self.link = new_entries.symlink, new_entries.link

        entries = Entries(boundary, access, resolver, source, host, state.renames, policy, symlinks)
        self.unlink, self.rmdir, self.rename = entries.unlink, entries.rmdir, entries.rename

        files = Files(
            boundary, access, descriptors, source, attributes, handles, new_entries, policy,
            syncing, timeouts, is_local=is_local, path_based=state.path_based,
            content_types=state.content_types, direct_io=direct_io, closes_late=closes_late,
            read_rate=read_rate, write_rate=write_rate,
        )  # fmt: skip
        self.open, self.create, self.release = files.open, files.create, files.release
        self.read, self.write = files.read, files.write
        self.flush, self.fsync = files.flush, files.fsync

        directories = Directories(
            boundary, access, resolver, nodes, descriptors, source, handles, advice, syncing,
            timeouts, is_local=is_local,
            can_list_names_only=reports_names_only and state.can_list_names_only,
        )  # fmt: skip
        self.opendir, self.readdir = directories.opendir, directories.readdir
        self.fsyncdir, self.releasedir = directories.fsyncdir, directories.releasedir

        xattrs = Xattrs(boundary, access, descriptors, source, host, policy)
        self.getxattr, self.listxattr = xattrs.getxattr, xattrs.listxattr
        self.setxattr, self.removexattr = xattrs.setxattr, xattrs.removexattr

        self.parts = (lookup, metadata, new_entries, entries, files, directories, xattrs)
