"""Decides which names in a directory of the share lead to the guest's own directories."""

from __future__ import annotations

import os
from enum import Enum
from stat import S_ISDIR

from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.mount import Mount
from gitguardfs.names.local_names import LocalNames
from gitguardfs.names.rules import ALLOW
from gitguardfs.view.mirror import OWN, Mirror


class Where(Enum):
    """What a name in a directory of the share leads to."""

    SHARE = "to the share, if to anything"
    OWN = "to a directory of the guest's own"
    NOWHERE = "to nothing, but a directory of that name would be the guest's own"


class Border:
    """Asks the share and the guest's tree what is at a name. Every method raises OSError."""

    def __init__(self, share: Mount, mirror: Mirror, names: LocalNames) -> None:
        """Decide for the directories of ``share`` by ``names``, and by what ``mirror`` has."""
        self._access, self._source = share.access, share.source
        self._mirror = mirror
        self._marker = names.marker

    def where(self, ref: NodeRef) -> tuple[Where, list[bytes]]:
        """Return where a name in a directory of the share leads, and the directory's place.

        What is no directory on the share is shown as it is there. Raises OSError.
        """
        if self.is_marked(ref):
            there = self._source.mode_at(ref.fd, ref.name)
            if there is None or S_ISDIR(there):
                return self.where_directory(ref, there is not None)
        return Where.SHARE, []

    def is_marked(self, ref: NodeRef) -> bool:
        """Return whether a directory of that name may be the guest's; rules for names come first.

        Below a guarded directory none is.
        """
        is_guarded = ref.parent.verdict is not ALLOW or not self._access.allows(ref.name)
        return not is_guarded and self._marker(ref.name) is not None

    def where_directory(self, ref: NodeRef, is_there: bool) -> tuple[Where, list[bytes]]:
        """Return where the name of a directory leads; ``is_there``: the share has that directory.

        A marker decides when a directory is made: the guest's own stay when the marker goes.
        """
        marker = self._marker(ref.name)
        assert marker is not None
        place = self._access.place(ref.parent)
        standing = self._mirror.find(place)
        if standing is not None and self._mirror.mode_at(standing, OWN + ref.name) is not None:
            return Where.OWN, place
        is_marked = marker.is_met(
            place[-1] if place else b"",
            is_there,
            is_beside=lambda at: self._source.find_at(ref.fd, at) is not None,
            is_inside=lambda at: self._holds(ref, at),
        )
        return Where.NOWHERE if is_marked else Where.SHARE, place

    def _holds(self, ref: NodeRef, name: bytes) -> bool:
        fd = self._source.open_node(ref.fd, ref.name)
        try:
            return self._source.find_at(fd, name) is not None
        finally:
            os.close(fd)
