"""Listings of directories that the kernel opens by itself, once the host tells of its changes.

OPENDIR is answered ENOSYS then. From then on, even if the host falls silent, the kernel opens and
closes directories without a request. It keeps a listing as long as the directory's mtime stays, and
its pages are not dropped. READDIRPLUS has the node alone; the upper half of an offset says which
listing it goes on with.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from gitguardfs.base.protocol import Caller, RequestError, make
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import Opcode
from gitguardfs.sessions.kernel_session.replies import Answer, Listing, Packer
from gitguardfs.sessions.kernel_session.requests import Arguments, Form, Sent
from gitguardfs.view.view import View

MOST = 256
"""Handles that are open at a time. One pushed out is opened anew, and read from the same index."""
HALF = 32
"""Bits of an offset's lower half, the index in a listing; the upper is the listing's number."""
NUMBERS = 1 << 31
"""Offsets are positive numbers of 64 bits."""


class Listings:
    """The listings that are being read."""

    def __init__(self, view: View, drop: Callable[[int], None]) -> None:
        """``drop`` makes the kernel drop the listing of a directory, given its number."""
        self._view = view
        self._drop = drop
        self._handles: OrderedDict[int, int] = OrderedDict()
        """The view's handles, by number."""
        self._numbers = count(1)
        self.are_kept = False
        """Whether the kernel is to open directories by itself."""

    def forms(self, forms: dict[int, Form]) -> dict[int, Form]:
        """Return forms in which READDIRPLUS and FSYNCDIR need no handle."""
        ways = {
            Opcode.OPENDIR: self._begin,
            Opcode.READDIRPLUS: self._read,
            Opcode.FSYNCDIR: self._sync,
        }
        return forms | {
            opcode: forms[opcode]._replace(read=partial(read, forms[opcode]))
            for opcode, read in ways.items()
        }

    def _begin(self, form: Form, node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
        if self.are_kept:
            self._view.drop_listings(self._drop)
            raise RequestError(errno.ENOSYS)
        return form.read(node, sent, end)

    def _read(self, form: Form, node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
        handle, offset, size, *_ = abi.READ_IN.unpack_from(sent, abi.BODY)
        if handle:
            return form.read(node, sent, end)
        self._view.drop_listings(self._drop)  # a former daemon has answered ENOSYS
        number, index = offset >> HALF, offset & ((1 << HALF) - 1)
        if not index or number not in self._handles:
            number = self._open(node, sent)
        listing = Listing(min(size, abi.MAX_WRITE), number << HALF)
        return partial(self._packed, listing, number), (self._handles[number], index, listing.add)

    def _sync(self, form: Form, node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
        pack, (handle, *more) = form.read(node, sent, end)
        if handle:
            return pack, (handle, *more)
        number = self._open(node, sent)

        def packed(unique: int, reply: Any) -> Answer:
            self._close(number)
            return pack(unique, reply)

        return packed, (self._handles[number], *more)

    def _open(self, node: int, sent: Sent) -> int:
        caller = make(Caller, abi.IN.unpack_from(sent)[4:])
        number = next(self._numbers) % NUMBERS
        self._handles[number] = self._view.serve("opendir", caller, node).handle
        if len(self._handles) > MOST:
            self._close(next(iter(self._handles)))
        return number

    def _close(self, number: int) -> None:
        self._view.serve("releasedir", None, self._handles.pop(number))

    def _packed(self, listing: Listing, number: int, unique: int, reply: Any) -> bytes:
        if listing.is_empty:  # the end
            self._close(number)
        return listing.packed(unique, reply)
