"""Applies the rule for symlinks (G6): when one is made, linked or moved, and when a directory above
it is moved.

``names/links`` has the rule. This module finds the root that the rule needs, and what a text leads
to now.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from stat import S_IFDIR, S_ISDIR, S_ISLNK

from gitguardfs.base.constants import MAX_SYMLINKS
from gitguardfs.base.errors import os_error
from gitguardfs.fs.access import Access, NodeRef, Renaming
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.nodes import Directory, ancestors, stale
from gitguardfs.fs.source import Source
from gitguardfs.names import links
from gitguardfs.names.rules import ALLOW

MAX_DIRECTORIES = 4096
"""Most directories that are searched for symlinks when one is moved up; takes 50 ms locally."""

MAX_ENTRIES = 65_536
"""Most names that are read in that search; takes 100 ms locally."""

MAX_STEPS = 256
"""Most steps, down or up, in following the text of one symlink; takes 10 ms locally."""

MAX_DEPTH = 256
"""Levels of directories that the search goes down, with one open directory for each."""


class LinkCheck:
    """Decides where symlinks may stand. Every method raises OSError if the source fails."""

    def __init__(
        self,
        is_on: bool,
        access: Access,
        descriptors: DescriptorCache,
        source: Source,
        root: Directory,
    ) -> None:
        """Take the parts of a tree; unless ``is_on``, every symlink may stand everywhere."""
        self._is_on = is_on
        self._access = access
        self._descriptors = descriptors
        self._source = source
        self._root = root

    def text_to_store(self, ref: NodeRef, text: bytes) -> bytes:
        """Return what is stored for a symlink with ``text`` that is made at ``ref``."""
        if not self._is_on or self._is_contained(ref.parent, text):
            return text
        return links.neutral(text)

    def check_fits(self, ref: NodeRef, stored: bytes) -> None:
        """Check that a symlink that is stored as ``stored`` may stand at ``ref``.

        Raises OSError(EXDEV): programs then make the symlink anew, stored for its directory.
        """
        if (
            self._is_on
            and not links.is_neutral(stored)
            and not self._is_contained(ref.parent, stored)
        ):
            raise os_error(errno.EXDEV)

    def check_rename(self, renaming: Renaming) -> None:
        """Check the symlinks that a rename moves, before it or after it.

        Raises OSError(EXDEV), after which programs copy.
        """
        if not self._is_on:
            return
        for old, new, st in renaming.moves():
            if S_ISLNK(st.st_mode):
                ref = self._found(renaming, st)
                self.check_fits(new, self._source.readlink(ref.fd, ref.name))
            elif S_ISDIR(st.st_mode) and self._may_lead_out(old.parent, new.parent):
                self._check_tree(renaming, st, new.parent)

    def _found(self, renaming: Renaming, st: os.stat_result) -> NodeRef:
        """Return the present name of a moved entry: after the rename the new one."""
        for ref in (renaming.old, renaming.new):
            if self._source.is_at(ref.fd, ref.name, st):
                return ref
        raise stale()

    # Where a text leads

    def _is_contained(self, directory: Directory, text: bytes) -> bool:
        """Return whether a symlink with ``text`` leads strictly below its directory's work tree."""
        steps = links.steps_of(text)
        return steps is not None and self._stays_below(directory, steps)

    def _stays_below(self, directory: Directory, steps: links.Steps) -> bool:
        """Return whether ``steps`` from a directory lead strictly below its work tree.

        If something is there now, it must not be guarded, and must hold no ``.git``.
        """
        if not all(map(self._access.allows, steps.down)):
            return False
        with closing(_Walk(self, directory)) as walk:
            return walk.stays_below(steps)

    # Directories that are moved

    def _may_lead_out(self, old: Directory, new: Directory) -> bool:
        """Return whether contained texts may lead out after a move from ``old`` to ``new``.

        They do not within one directory, nor after a move down or sideways under the same root.
        """
        if old is new:
            return False
        for directory in (old, new):
            self._access.check_now(directory)
        from_old, from_new = [*ancestors(old)], [*ancestors(new)]
        while from_old and from_new and from_old[-1] is from_new[-1]:
            from_old.pop()
            from_new.pop()
        return len(from_old) > len(from_new) or any(map(self._holds_dotgit, (*from_old, *from_new)))

    def _holds_dotgit(self, node: Directory) -> bool:
        return self._access.dotgit(self._descriptors.of(node)) is not None

    def _check_tree(self, renaming: Renaming, st: os.stat_result, to: Directory) -> None:
        """Check that all symlinks in a directory that is moved to ``to`` are contained there."""
        ref = self._found(renaming, st)
        search = _Search(self._source, partial(self._fits_below, to))
        fd = self._source.open_node(ref.fd, ref.name)
        try:
            fits = search.all_fit(fd)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            fits = False  # each level takes a descriptor
        finally:
            os.close(fd)
        if not fits:
            raise os_error(errno.EXDEV)

    def _fits_below(self, to: Directory, stored: bytes, depth: int) -> bool:
        """Return whether a symlink ``depth`` levels below a directory in ``to`` is contained."""
        steps = links.steps_of(stored)
        if steps is None:
            return False
        climbed = steps.up - depth - 1  # from ``to``; it is reached by one step from the directory
        return climbed < 0 or self._stays_below(to, links.Steps(climbed, steps.down))


class _Search:
    """Searches one tree for symlinks that do not fit."""

    def __init__(self, source: Source, fits: Callable[[bytes, int], bool]) -> None:
        """Take ``fits``, which judges a stored text by its depth below the top of the tree."""
        self._source = source
        self._fits = fits
        self._directories = self._entries = 0

    def all_fit(self, fd: int, depth: int = 0) -> bool:
        """Return whether all symlinks fit, of a directory ``depth`` levels down and below it.

        False as well if the tree is larger or deeper than the limits.
        """
        self._directories += 1
        if self._directories > MAX_DIRECTORIES or depth == MAX_DEPTH:
            return False
        listed = self._source.typed_names(fd)
        self._entries += len(listed)
        if self._entries > MAX_ENTRIES:
            return False
        for name, (file_type, _) in listed.items():
            try:
                if file_type == S_IFDIR:
                    fits = self._directory_fits(fd, name, depth + 1)
                elif S_ISLNK(file_type):
                    stored = self._source.readlink(fd, name)
                    fits = links.is_neutral(stored) or self._fits(stored, depth)
                else:
                    continue
            except FileNotFoundError:  # the host has removed it since
                continue
            if not fits:
                return False
        return True

    def _directory_fits(self, dir_fd: int, name: bytes, depth: int) -> bool:
        fd = self._source.open_node(dir_fd, name)
        try:
            mode = self._source.stat(fd).st_mode
            if S_ISDIR(mode):
                return self.all_fit(fd, depth)
            return not S_ISLNK(mode)  # it was no symlink when it was listed
        finally:
            os.close(fd)


class _Walk:
    """Follows the text of a symlink, and of symlinks on its way, as the host would."""

    def __init__(self, rule: LinkCheck, directory: Directory) -> None:
        self._rule = rule
        self._access = rule._access
        self._source = rule._source
        self._base = directory
        self._below: list[int] = []
        """Descriptors of the directories that were entered below ``_base``."""

    @property
    def _fd(self) -> int:
        return self._below[-1] if self._below else self._rule._descriptors.of(self._base)

    def close(self) -> None:
        """Close the descriptors of the walk."""
        while self._below:
            os.close(self._below.pop())

    def stays_below(self, steps: links.Steps) -> bool:
        """Return whether the walk stays below each root that it passes."""
        followed = steps_taken = 0
        rest: list[bytes] = []
        while True:
            steps_taken += steps.up
            for _ in range(steps.up):
                if steps_taken > MAX_STEPS or not self._go_up():
                    return False
            rest += reversed(steps.down)
            while rest:
                name = rest.pop()
                st = self._source.find_of_any_length(self._fd, name)
                if st is None:
                    return True  # nothing is there now
                steps_taken += 1
                if steps_taken > MAX_STEPS:
                    return False
                ref = NodeRef(self._base, self._fd, name)
                if self._access.verdict_of(ref, st)[0] is not ALLOW:
                    return False
                if S_ISLNK(st.st_mode):
                    break
                if not S_ISDIR(st.st_mode):
                    return True
                self._below.append(self._source.open_node(self._fd, name))
            else:
                return not self._is_at_root()
            stored = self._source.readlink(self._fd, name)
            followed += 1
            if links.is_neutral(stored) or followed > MAX_SYMLINKS:
                return True  # it leads nowhere on the host
            next_steps = links.steps_of(stored)
            if next_steps is None:
                return False
            steps = next_steps

    def _go_up(self) -> bool:
        """Go to the directory above; return False if that leads out of the work tree."""
        if self._is_at_root():
            return False
        if self._below:
            os.close(self._below.pop())
            return True
        self._access.check_now(self._base, 0)  # the host may have moved it
        if self._base.parent is None:
            raise stale()
        self._base = self._base.parent
        return True

    def _is_at_root(self) -> bool:
        if not self._below and self._base is self._rule._root:
            return True
        return self._access.dotgit(self._fd) is not None
