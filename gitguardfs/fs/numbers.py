"""Which numbers nodes and handles get: those of two trees in one view never meet."""

from __future__ import annotations

from typing import NamedTuple

FIRST_OWN_ID = 1 << 62
"""The first node number of our own; file systems do not use such large inode numbers."""


class Numbers(NamedTuple):
    """Which numbers the nodes of one tree get."""

    offset: int
    """What is added to an inode number."""
    own: int
    """The first number of our own, for a node that cannot have its inode number."""


SHARE_NUMBERS = Numbers(0, FIRST_OWN_ID)
LOCAL_BITS = 52
LOCAL_NUMBERS = Numbers(1 << LOCAL_BITS, (1 << LOCAL_BITS + 1) - (1 << LOCAL_BITS - 8))
"""Of the guest's own directories (``serving.trees``): from 2**52 to below 2**53, up to which
JavaScript tells numbers apart. Programs compare inode numbers to find hard links."""


def is_local(number: int) -> bool:
    """Return whether a number, of a node or of a handle, belongs to the guest's own directories."""
    return number >> LOCAL_BITS == 1
