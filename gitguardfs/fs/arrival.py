"""A directory that is about to arrive at a name, with all that lies below it.

Names that git may restore there count as present (``removed_names``). Together with these, the
names that the directory brings must not complete a repository, as if each were added there.
"""

from __future__ import annotations

from stat import S_ISDIR

from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.nodes import path_of
from gitguardfs.fs.removed_names import RemovedNames, add_parts
from gitguardfs.fs.tree_walk import Directory
from gitguardfs.guard import repository


class Arrival:
    """The arrival of one directory."""

    def __init__(self, removed: RemovedNames, old: NodeRef, new: NodeRef) -> None:
        self._removed = removed
        self._old = path_of(old.parent, old.name)
        self._new = path_of(new.parent, new.name)

    def concerns(self, path: tuple[bytes, ...]) -> bool:
        """Return whether git may restore a name in or below ``path``, as seen from the directory.

        Raises OSError if the source fails.
        """
        return self._removed.may_restore_below((*self._new, *path), (*self._old, *path))

    def completes(self, directory: Directory) -> bool:
        """Return whether git could complete a repository of a directory of the arriving tree.

        git adds nothing that the directory holds already, so a tree may come back to its old
        place. Raises OSError if the source fails.
        """
        held: dict[bytes, int] = {}
        for name, file_type in directory.file_types.items():
            add_parts(held, dict.fromkeys(repository.parts(name), file_type))
        if not held:
            return False
        together = dict(held)
        add_parts(together, self._removed.at_path((*self._new, *directory.path)))
        if all(
            part in held and S_ISDIR(held[part]) == S_ISDIR(mode) for part, mode in together.items()
        ):
            return False
        return any(
            repository.would_complete(part, S_ISDIR(mode), together.get)
            for part, mode in held.items()
        )
