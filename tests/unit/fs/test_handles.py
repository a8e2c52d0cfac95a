"""Snapshots of directories: their total is bounded, and reading goes on without one."""

import os
from pathlib import Path

import pytest

from gitguardfs.fs import handles
from gitguardfs.fs.handles import DirectoryHandle, HandleTable
from gitguardfs.fs.nodes import Node
from gitguardfs.names.rules import Verdict


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(1, os.stat(tmp_path), Verdict.ALLOW, "")


def test_the_snapshots_taken_first_are_let_go(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_NAMES", 100)
    table = HandleTable()
    opened = [DirectoryHandle(node, 0) for _ in range(10)]
    for handle in opened:
        table.add_directory(handle)
        table.keep_snapshot(handle, [b"name"] * 30)
    assert [handle.snapshot is not None for handle in opened] == [False] * 7 + [True] * 3


def test_one_large_directory_is_kept_whole(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_NAMES", 100)
    table = HandleTable()
    small, large = DirectoryHandle(node, 0), DirectoryHandle(node, 0)
    table.keep_snapshot(small, [b"a"] * 10)
    table.keep_snapshot(large, [b"a"] * 1000)
    assert small.snapshot is None
    assert large.snapshot is not None and len(large.snapshot) == 1000


def test_closing_makes_room(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_NAMES", 100)
    table = HandleTable()
    first, second = DirectoryHandle(node, 0), DirectoryHandle(node, 0)
    number = table.add_directory(first)
    table.keep_snapshot(first, [b"a"] * 90)
    table.release_directory(number)
    table.keep_snapshot(second, [b"a"] * 90)
    assert second.snapshot is not None
