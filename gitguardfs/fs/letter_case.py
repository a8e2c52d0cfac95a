"""Finds out which directories have names that differ in case only.

Where ``a`` and ``A`` are one name, an object that is made as ``A`` is there as ``a``, too. So the
kernel must not remember that there is no ``a``.
"""

from __future__ import annotations

import os

from gitguardfs.fs.nodes import Directory
from gitguardfs.fs.source import Source

TRIED = 64
"""Names of a directory that are tried at most; nearly all names have letters."""


class LetterCase:
    """Answers for one source.

    On a local file system each directory may differ (ext4, NTFS). A share is taken to be like the
    first directory that was asked about: to ask for each would cost several round trips.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._shares: dict[int, bool] = {}
        """By st_dev of a share."""

    def matters(self, directory: Directory, fd: int) -> bool:
        """Return whether the names in a directory are known to be told apart by their case.

        ``fd`` is a descriptor of the directory. While it has no name with a letter, nothing is
        known; then the names are looked at by the calls 1, 2, 4, 8 and so on.
        """
        if directory.case_matters is None:
            directory.case_matters = self._ask(directory, fd)
        return bool(directory.case_matters)

    def _ask(self, directory: Directory, fd: int) -> bool | None:
        is_local = self._source.is_local(directory.dev)
        answer = None if is_local else self._shares.get(directory.dev)
        if answer is None:
            directory.case_asked += 1
            if directory.case_asked.bit_count() > 1:
                return None
            answer = self._probe(fd)
            if answer is not None and not is_local:
                self._shares[directory.dev] = answer
        return answer

    def _probe(self, fd: int) -> bool | None:
        """Look some entry up with its letters in the other case."""
        try:
            for name in self._source.some_names(fd, TRIED):
                other = name.swapcase()
                if other == name:
                    continue
                found = self._source.find_at(fd, other)
                st = self._source.find_at(fd, name)  # last: if it was removed, it proves nothing
                if st is not None and found is None:
                    return True
                if st is not None and found is not None and os.path.samestat(st, found):
                    return False
        except OSError:
            return None
        return None
