"""Refuses names that would make a directory a repository, or that the source folds to ``.git``.

A name is checked before it is added, and again afterwards: another guard over the same source may
have added the missing part of a repository meanwhile, and only the source knows how it folds names.
"""

from __future__ import annotations

from stat import S_IFDIR, S_IFREG, S_ISDIR

from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.source import DOTGIT, Source
from gitguardfs.names import dotgit as names
from gitguardfs.names import repository, work_tree
from gitguardfs.names.rules import RuleSet


class NewNameCheck:
    """Checks new names. Every method raises Refused, and OSError if the source fails."""

    def __init__(self, guard: RuleSet, access: Access, source: Source) -> None:
        self._guard = guard
        self._access = access
        self._source = source

    def check_type(self, ref: NodeRef, file_type: int) -> None:
        """Refuse a special file at a name that git opens (S_IFMT). Raises Refused."""
        if self._guard.guards_git and work_tree.stops_git(ref.name, file_type):
            raise self._access.refused("special file that git opens", ref)

    def matters(self, name: bytes) -> bool:
        """Return whether ``name`` is a repository's part or might be folded to ``.git``."""
        return self._guard.guards_git and (
            not names.is_portable(name)
            or (self._guard.checks_fake_repositories and bool(repository.parts(name)))
        )

    def check_completes_no_repository(
        self, ref: NodeRef, is_directory: bool, leaving: bytes = b""
    ) -> None:
        """Refuse to add a name that would make its directory a repository, or most of one.

        ``leaving`` is a name that the same operation removes.
        """
        if not (self._guard.checks_fake_repositories and repository.parts(ref.name)):
            return
        present = self._parts_in(ref, leaving)
        if repository.would_complete(ref.name, is_directory, present.get):
            raise self._access.refused("fake repository", ref)

    def check_added(self, ref: NodeRef, is_directory: bool) -> None:
        """Check a name again after it was added.

        Another guard over the same source, in another kernel, may have added the missing part of a
        repository meanwhile; and the source may have folded the name. Raises Refused or OSError;
        after either, the caller removes the name again.
        """
        if not self.matters(ref.name):
            return
        self.check_completes_no_repository(ref, is_directory)
        if names.is_portable(ref.name):
            return
        if self._is_folded_to(DOTGIT, ref):
            raise self._access.refused("git alias", ref)
        if self._guard.checks_fake_repositories:
            self._check_part_it_was_folded_to(ref, is_directory)

    def _parts_in(self, ref: NodeRef, leaving: bytes) -> dict[bytes, int]:
        """Return the parts of a repository beside ``ref``, and their modes.

        If several entries could resolve to one part, an entry that is no directory decides.
        """
        found: dict[bytes, int] = {}
        listed = self._source.names(ref.fd)
        looked_up: frozenset[bytes] = frozenset()
        if not all(map(names.is_portable, listed)):  # the source may fold one of them to a part
            looked_up = repository.PARTS.difference(*map(repository.parts, listed))
        for entry in (*listed, *looked_up):
            if entry in (ref.name, leaving):
                continue
            for part in repository.parts(entry):
                mode = self._source.mode_at(ref.fd, entry)
                if mode is None and entry not in looked_up:
                    mode = S_IFREG  # listed: it exists, even if a kernel caches that it does not
                if mode is not None and S_ISDIR(found.get(part, S_IFDIR)):
                    found[part] = mode
        return found

    def _check_part_it_was_folded_to(self, ref: NodeRef, is_directory: bool) -> None:
        """Check a new name by the part of a repository that the source has folded it to, if any."""
        if not any(self._source.find_at(ref.fd, part) for part in repository.NEEDED):
            return
        for part in repository.PARTS:
            if self._is_folded_to(part, ref):
                self.check_completes_no_repository(ref._replace(name=part), is_directory)

    def _is_folded_to(self, other: bytes, ref: NodeRef) -> bool:
        """Return whether ``other`` leads to the entry at ``ref``."""

        def means_other(entry: bytes) -> bool:
            return (
                entry == other or self._guard.is_dotgit(entry) or other in repository.parts(entry)
            )

        return self._source.is_folded(ref.fd, ref.name, other, means_other)
