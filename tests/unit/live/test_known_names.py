"""Names that the kernel knows: they follow the node table."""

import os
from pathlib import Path

import pytest

from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import Directory, Node
from gitguardfs.live.known_names import KnownNames
from gitguardfs.names.rules import ALLOW


class Table(NodeTable):
    """A node table of a directory, whose names are looked up as the kernel does."""

    def look_up(self, parent: Directory, path: Path) -> Node:
        node = self.get_or_add(
            parent, os.fsencode(path.name), path.lstat(), ALLOW, "", is_same=lambda *_: True
        )
        node.lookup_count += 1
        return node


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "sub/deep").mkdir(parents=True)
    (tmp_path / "sub/deep/file").touch()
    (tmp_path / "file").touch()
    return Table(tmp_path.stat())


def test_names_follow_the_table(table: Table, tmp_path: Path) -> None:
    table.look_up(table.root, tmp_path / "file")
    names = KnownNames(table, lambda _: None, lambda _: None)
    assert names.at(table.root, b"file") is not None, "known from before"
    sub = table.look_up(table.root, tmp_path / "sub")
    assert isinstance(sub, Directory)
    deep = table.look_up(sub, tmp_path / "sub/deep")
    assert isinstance(deep, Directory)
    file = table.look_up(deep, tmp_path / "sub/deep/file")
    assert names.directory((b"sub", b"deep")) is deep
    assert names.directory((b"file",)) is names.directory((b"sub", b"none")) is None
    assert set(names.below(sub)) == {deep, file}
    assert len(list(names.below(table.root))) == 4

    table.move(deep, table.root, b"moved")
    assert names.directory((b"sub", b"deep")) is None
    assert names.directory((b"moved",)) is deep
    assert list(names.below(sub)) == []

    table.forget(file.id, 1)
    assert names.at(deep, b"file") is None
    names.lost(deep)
    assert names.directory((b"moved",)) is None
    assert names.places() == [(1, b"file"), (1, b"sub")]


def test_a_name_that_another_object_has_taken_is_not_lost_with_the_first(
    table: Table, tmp_path: Path
) -> None:
    names = KnownNames(table, lambda _: None, lambda _: None)
    first = table.look_up(table.root, tmp_path / "file")
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "file")
    second = table.look_up(table.root, tmp_path / "file")
    assert names.at(table.root, b"file") is second
    names.lost(first)
    table.forget(first.id, 1)
    assert names.at(table.root, b"file") is second


def test_the_table_s_own_note_is_called_too_and_put_back(table: Table, tmp_path: Path) -> None:
    noted: list[Node] = []
    note = table.note = noted.append
    names = KnownNames(table, lambda _: None, lambda _: None)
    file = table.look_up(table.root, tmp_path / "file")
    assert noted and set(noted) == {file}
    names.close()
    assert table.note is note


def test_what_the_kernel_may_have_wrong(table: Table, tmp_path: Path) -> None:
    came: list[Directory] = []
    doubtful: list[tuple[int, bytes]] = []
    names = KnownNames(table, came.append, doubtful.append)
    file = table.look_up(table.root, tmp_path / "file")
    sub = table.look_up(table.root, tmp_path / "sub")
    assert isinstance(sub, Directory)
    assert not came and not doubtful, "found for the first time"

    table.move(file, sub, b"moved")
    assert doubtful == [(1, b"file"), (sub.id, b"moved")]
    table.unhash(file)
    assert doubtful[2:] == [(sub.id, b"moved")]
    doubtful.clear()
    table.forget(file.id, 1)
    assert not doubtful, "the kernel has forgotten it"

    table.move(sub, table.root, b"moved")
    assert came == [sub]
    names.lost(sub)
    table.move(sub, table.root, b"moved")
    assert came == [sub, sub], "lines on what is below were lost meanwhile"
