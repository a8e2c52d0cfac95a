"""The requests of one mount, a method each.

The methods are synchronous and must be called from one thread only: each runs from its first check
to its last change of the tables without interruption. A method returns a reply, or a ``Blocking``
with a call that may wait for a disk or a server. It raises RequestError. ``boundary.GUARDED_BY``
lists all methods by name.
"""

from __future__ import annotations

from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.blocking import LatencyTracker
from gitguardfs.fs.boundary import Boundary
from gitguardfs.fs.directories import Directories
from gitguardfs.fs.entries import Entries
from gitguardfs.fs.files import Files
from gitguardfs.fs.lookup import Lookup
from gitguardfs.fs.metadata import Metadata
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.new_entries import NewEntries
from gitguardfs.fs.readdirplus import ReaddirplusAdvice
from gitguardfs.fs.xattrs import Xattrs
from gitguardfs.view.private_git import PrivateGit, Repositories


class Operations:
    """All requests of one mount; ``sessions.base.Requests`` is their interface."""

    def __init__(
        self,
        mount: Mount,
        audit: AuditLog,
        reports_names_only: bool = False,
        repositories: Repositories | None = None,
    ) -> None:
        """Serve ``mount``, and report refusals to ``audit``.

        ``reports_names_only`` says that the session can report entries without attributes.
        ``repositories`` are the agent's own, which ``--git=private`` shows.
        """
        self.boundary = boundary = Boundary(audit, mount.descriptors)
        advice, syncing = ReaddirplusAdvice(), LatencyTracker()

        lookup = Lookup(mount, boundary, advice)
        self.lookup, self.forget = lookup.lookup, lookup.forget

        metadata = Metadata(mount, boundary)
        self.getattr, self.setattr = metadata.getattr, metadata.setattr
        self.readlink, self.access = metadata.readlink, metadata.access
        self.statfs = metadata.statfs

        new_entries = NewEntries(mount, boundary)
        self.mknod, self.mkdir = new_entries.mknod, new_entries.mkdir
        self.symlink, self.link = new_entries.symlink, new_entries.link

        entries = Entries(mount, boundary)
        self.unlink, self.rmdir, self.rename = entries.unlink, entries.rmdir, entries.rename

        files = Files(mount, boundary, new_entries, syncing)
        self.open, self.create, self.release = files.open, files.create, files.release
        self.read, self.write = files.read, files.write
        self.flush, self.fsync = files.flush, files.fsync

        names_only = reports_names_only and mount.can_list_names_only
        directories = Directories(mount, boundary, advice, syncing, names_only)
        self.overlays = directories.overlays
        self.opendir, self.readdir = directories.opendir, directories.readdir
        self.fsyncdir, self.releasedir = directories.fsyncdir, directories.releasedir

        xattrs = Xattrs(mount, boundary, metadata)
        self.getxattr, self.listxattr = xattrs.getxattr, xattrs.listxattr
        self.setxattr, self.removexattr = xattrs.setxattr, xattrs.removexattr

        self.parts: tuple[object, ...] = (
            lookup, metadata, new_entries, entries, files, directories, xattrs,
        )  # fmt: skip
        if repositories is not None:
            private = PrivateGit(mount, repositories)
            private.serve_before(self)
            self.overlays.append(private.overlay)
            self.parts += (private,)
