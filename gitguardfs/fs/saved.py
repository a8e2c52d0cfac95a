"""The tables of a tree, as one daemon leaves them to the next, which serves the same mount.

The kernel goes on with the numbers of nodes and handles that it was given. So each node comes back
with its number, at its last place, but without a verdict: it is looked up anew when it is first
used (``Resolver.judge``). Of objects without a place only open files come back, by their
descriptors. Requests on all others get ESTALE. While the kernel knows their numbers, no new object
gets these: it would be taken for the old one. Files that are open to be written are handed over as
well: a share's server may not open them again (a new file of mode 0444).
"""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_IFDIR
from typing import Any, NamedTuple

from gitguardfs.fs.handles import DirectoryHandle
from gitguardfs.fs.nodes import ROOT_ID, UNJUDGED, Directory, Node
from gitguardfs.fs.tree import Tree
from gitguardfs.names.rules import ALLOW, HIDE, Refused

Saved = tuple[Any, ...]
"""Numbers, bytes, None and tuples of them."""
NOWHERE, LOST = 0, -1
"""Stand for the directory: of an open file without a name, and of other objects without a place."""
MOST_FILES = 150
"""Open files that are handed over at most, first those without a name."""


class _Object(NamedTuple):
    """The attributes by which a node knows its object."""

    st_dev: int
    st_ino: int
    st_mode: int


def saved(tree: Tree, descriptors: dict[str, int]) -> Saved:
    """Return the tables of a tree that serves no request.

    Adds to ``descriptors``, by names, what the next daemon cannot open. The caller closes these.
    """
    opened = sorted(tree.handles.files.items(), key=lambda each: each[1].node.parent is not None)
    for number, handle in opened:
        is_needed = handle.writable or _is_open_nameless(handle.node)
        if is_needed and len(descriptors) < MOST_FILES:
            descriptors[_name(number)] = os.dup(handle.fd)
    nodes = [row_of(node, _place(tree, node)) for node in _needed(tree)]
    files = [
        (number, handle.node.id, handle.flags, handle.changed_ns)
        for number, handle in tree.handles.files.items()
    ]
    directories = [
        (
            number, handle.node.id, handle.uid, handle.pid,
            None if handle.snapshot is None else tuple(handle.snapshot),
            tuple(handle.overlaid.items()),
        )
        for number, handle in tree.handles.directories.items()
    ]  # fmt: skip
    return (
        tree.nodes.next_own_id(), tree.handles.next_id(),
        tuple(nodes), tuple(files), tuple(directories),
    )  # fmt: skip


def row_of(node: Node, place: int) -> Saved:
    """Return the row of a node; ``place`` is its directory's number, or NOWHERE, or LOST."""
    return (
        node.id, place, node.name, node.dev, node.ino, node.file_type, node.variant,
        node.lookup_count, node.btime_ns, node.size, node.has_other_names, node.was_mappable,
        place > NOWHERE or (place == NOWHERE and node.is_hashed),
    )  # fmt: skip


def _needed(tree: Tree) -> list[Node]:
    """Return the nodes that the kernel knows, and the directories that lead to them."""
    found = {node.id: node for node in tree.nodes if node.is_known}
    for node in list(found.values()):
        step = node.parent
        while step is not None and step.id not in found:
            found[step.id] = step
            step = step.parent
    del found[ROOT_ID]
    return list(found.values())


def _place(tree: Tree, node: Node) -> int:
    """Return the number of the directory where a node is looked up again, or NOWHERE, or LOST."""
    is_forgotten = tree.nodes.by_id.get(node.id) is not node
    if node.parent is not None and (node.is_hashed or is_forgotten):
        return node.parent.id
    return NOWHERE if _is_open_nameless(node) else LOST


def _is_open_nameless(node: Node) -> bool:
    """Return whether a node stands for an open file that has lost its name, unguarded as it was."""
    return node.parent is None and bool(node.open_fds) and node.verdict is ALLOW


def _name(number: int) -> str:
    return f"file-{number}"


def restore(tree: Tree, former: Saved, descriptors: dict[str, int]) -> None:
    """Fill the tables of a new tree.

    Takes from ``descriptors`` what ``saved`` has added.
    """
    own_id, handle_id, nodes, files, directories = former
    tree.nodes.continue_at(own_id)
    tree.handles.continue_at(handle_id)
    for row in nodes:
        tree.nodes.restore(_node(row))
    by_id = tree.nodes.by_id
    for number, parent_id, name, *_ in nodes:
        node, parent = by_id[number], by_id.get(parent_id)
        if isinstance(parent, Directory):
            node.parent, node.name = parent, name
        elif parent_id == NOWHERE:
            node.restrictions, node.verdict, node.rule = tree.nodes.restrictions, ALLOW, ""
    for number, node_id, flags, changed_ns in files:
        fd = descriptors.pop(_name(number), -1)
        with suppress(OSError, Refused):
            tree.handles.restore_file(number, tree.open_again(node_id, flags, changed_ns, fd))
        tree.descriptors.request += 1  # the leases end
    for number, node_id, uid, pid, names, overlaid in directories:
        directory = by_id.get(node_id)
        if isinstance(directory, Directory):
            handle = DirectoryHandle(directory, uid, pid)
            tree.handles.directories[number] = handle
            if names is not None:
                tree.handles.keep_snapshot(handle, list(names))
                handle.overlaid = dict(overlaid)


def _node(row: Saved) -> Node:
    number, _, _, dev, ino, file_type, variant, lookups, btime_ns, size, *flags = row
    st: Any = _Object(dev, ino, file_type)
    kind = Directory if file_type == S_IFDIR else Node
    # No request is served by this verdict: it is the strictest, should any look at it.
    node = kind(number, st, HIDE, "not looked up since the daemon was replaced")
    node.variant, node.restrictions = variant, UNJUDGED
    node.lookup_count, node.btime_ns, node.size = lookups, btime_ns, size
    node.has_other_names, node.was_mappable, node.is_hashed = flags
    return node
