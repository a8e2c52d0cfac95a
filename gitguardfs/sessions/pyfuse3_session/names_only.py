"""Entries of directory listings that carry no attributes.

pyfuse3 serves only listings with attributes (FUSE_READDIRPLUS), which cost a stat and a node for
each entry. The kernel also takes an entry without attributes, whose node id is 0
(``fuse_direntplus_link`` in fs/fuse/readdir.c). That is enough for a program that only walks the
names, such as find.
"""

from __future__ import annotations

import ctypes

from pyfuse3 import EntryAttributes

from gitguardfs.base.protocol import DirEntry

_FIELDS = object.__basicsize__
"""Where the fields of an extension type begin; the first is a struct fuse_entry_param."""
_PROBE = 0x0123456789ABCDEF


class NamesOnlyEntry:
    """An entry with name, type and inode number, but without a node.

    EntryAttributes has one property for both the node id and the inode number of an entry. So 0
    is written directly to the memory of the node id.
    """

    def __init__(self) -> None:
        self._entry = EntryAttributes()
        node = ctypes.c_uint64.from_address(id(self._entry) + _FIELDS)
        self._entry.st_ino = _PROBE
        self.works = node.value == _PROBE
        """Whether the node id was found where it is expected in memory. If not, only ``.`` and
        ``..`` can be reported without a node, since the kernel takes none for them."""
        self._node = node if self.works else None

    def of(self, entry: DirEntry) -> EntryAttributes:
        """Return the attributes to report for ``entry``; valid until the next call."""
        self._entry.st_ino = entry.inode
        if self._node is None and entry.name not in (b".", b".."):
            self._entry.st_ino = 0
        self._entry.st_mode = entry.file_type
        if self._node is not None:
            self._node.value = 0
        return self._entry
