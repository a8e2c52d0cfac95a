"""Entries of directory listings that carry no attributes.

pyfuse3 serves only the listing that carries attributes (FUSE_READDIRPLUS), which costs a stat
and a node for each entry. The kernel also takes an entry without: one whose node number is 0
(``fuse_direntplus_link`` in fs/fuse/readdir.c). A program that only walks the names, such as
find, is spared the rest.
"""

from __future__ import annotations

import ctypes

from pyfuse3 import EntryAttributes

from gitguardfs.protocol import DirEntry

_FIELDS = object.__basicsize__
"""Where the fields of an extension type begin; the first is a struct fuse_entry_param."""
_PROBE = 0x0123456789ABCDEF


class NamesOnlyEntry:
    """An entry that tells the kernel name, type and inode number, and no node.

    EntryAttributes has one property for both numbers of an entry, its node's and its inode's.
    What sets them apart is written to where the node's lies.
    """

    def __init__(self) -> None:
        self._entry = EntryAttributes()
        node = ctypes.c_uint64.from_address(id(self._entry) + _FIELDS)
        self._entry.st_ino = _PROBE
        self.works = node.value == _PROBE
        """Whether the node's number lies where it is taken to lie; if not, only ``.`` and ``..``,
        of which the kernel takes no node, can be told like this."""
        self._node = node if self.works else None

    def of(self, entry: DirEntry) -> EntryAttributes:
        """What to tell of ``entry``; valid until the next one."""
        self._entry.st_ino = entry.inode
        if self._node is None and entry.name not in (b".", b".."):
            self._entry.st_ino = 0
        self._entry.st_mode = entry.file_type
        if self._node is not None:
            self._node.value = 0
        return self._entry
