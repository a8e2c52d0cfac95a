"""Rows that note the tables of a view, for the next daemon if this one is killed (``fs.saved``).

A row says where a node or a virtual file is, or that it is gone. Of several rows the last holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import UNKNOWN_SIZE, Node, is_local
from gitguardfs.fs.saved import LOST, Saved
from gitguardfs.fs.tree import Tree
from gitguardfs.view.git_files import GitFiles

NODE, GIT_FILE, NUMBERS = range(3)
"""Kinds of rows."""
STEP = 1 << 32
"""Numbers that one daemon gives at most, of each kind. The next one goes on behind them."""

Note = Callable[[Saved], None]
"""Takes one row."""


def note_changes(note: Note, trees: list[Tree], git_files: GitFiles | None) -> None:
    """Have each change of the tables noted from now on."""
    for tree in trees:
        tree.nodes.note = partial(_note, tree.nodes, note)
    if git_files is not None:
        git_files.note = lambda row: note((GIT_FILE, *row))


def _note(nodes: NodeTable, note: Note, node: Node) -> None:
    is_there = nodes.by_id.get(node.id) is node
    note(_row_of(node) if is_there else (NODE, node.id))


def _row_of(node: Node) -> Saved:
    """Return the row of a node, which is to be true until the next one is noted."""
    parent = node.parent
    return (
        NODE, node.id, parent.id if parent is not None and node.is_hashed else LOST, node.name,
        node.dev, node.ino, node.file_type, node.variant, node.btime_ns, node.has_other_names,
    )  # fmt: skip


def _restorable(row: Saved) -> Saved:
    """Return a node's row as ``fs.saved.row_of`` would.

    Lookups and mappings are not noted: the kernel counts as knowing the node, and as having it
    mapped. The size is taken when the file is opened again. An open file without a name is lost.
    """
    _, *place, btime_ns, is_linked = row
    return (*place, 1, btime_ns, UNKNOWN_SIZE, is_linked, True, place[1] != LOST)


def rows_of(trees: list[Tree], git_files: GitFiles | None) -> Iterator[Saved]:
    """Yield a row of the next numbers, and the rows of all nodes and virtual files."""
    numbers = tuple((tree.nodes.next_own_id(), tree.handles.next_id()) for tree in trees)
    yield NUMBERS, numbers, None if git_files is None else git_files.next_id()
    for tree in trees:
        for node in tree.nodes:
            if node is not tree.nodes.root:
                yield _row_of(node)
    if git_files is not None:
        for row in git_files.rows():
            yield GIT_FILE, *row


class FormerTables:
    """The tables of a view whose daemon was killed, by its rows."""

    def __init__(self) -> None:
        self._nodes: dict[int, Saved] = {}
        self._git_files: dict[int, int | bytes] = {}
        self._numbers: Saved = ()

    def add(self, row: Saved) -> None:
        """Add a row, the oldest first."""
        kind, number, *more = row
        if kind == NUMBERS:
            self._numbers = row[1:]
        elif not more or more == [None]:
            (self._nodes if kind == NODE else self._git_files).pop(number, None)
        elif kind == NODE:
            self._nodes[number] = _restorable(row)
        else:
            self._git_files[number] = more[0]

    def restorable(self, files: list[tuple[int, int, int, int]]) -> Saved:
        """Return the tables as ``View.restore`` takes them; ``files`` is as in ``fs.saved``."""
        numbers, git_number = self._numbers
        trees: list[Saved] = []
        for index, (own, handle) in enumerate(numbers):
            nodes = [row for row in self._nodes.values() if is_local(row[0]) == bool(index)]
            opened = [file for file in files if is_local(file[0]) == bool(index)]
            trees.append((own + STEP, handle + STEP, tuple(nodes), tuple(opened), ()))
        shown, texts = [], []
        for number, value in self._git_files.items():
            if isinstance(value, bytes):
                texts.append((number, value))
            else:
                shown.append((number, value, 1))
        git_files = () if git_number is None else (git_number + STEP, tuple(shown), tuple(texts))
        return trees[0], trees[1] if len(trees) > 1 else (), git_files
