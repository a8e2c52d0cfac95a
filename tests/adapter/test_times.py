"""Times are set as they are given; "now" on a share is what the share's clock says."""

import os
import time
from pathlib import Path

import pytest

from gitguardfs.base import protocol
from gitguardfs.base.protocol import Caller, SetAttr
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.parts import SourceTraits
from gitguardfs.fs.tree import Tree
from gitguardfs.linux import syscalls
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mount_options import MountOptions

CALLER = Caller(0, 0)
OLD = 1_000_000_000_000_000_000


def _set(path: Path, changes: SetAttr, is_local: bool) -> os.stat_result:
    root = os.open(path.parent, os.O_PATH)
    try:
        traits = SourceTraits(root, IdMap(), 16, can_chown=False, is_local=lambda _: is_local)
        tree = Tree(MountOptions(str(path.parent), ""), traits)
        found = tree.lookup(CALLER, ROOT_ID, os.fsencode(path.name))
        tree.setattr(CALLER, found.node, changes, None)
        tree.close()
    finally:
        os.close(root)
    return path.stat()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("content")
    os.utime(path, ns=(OLD, OLD))
    return path


@pytest.mark.parametrize("mtime", [0, 1, -1, OLD, syscalls.UTIME_NOW, syscalls.UTIME_OMIT])
@pytest.mark.parametrize("is_local", [True, False])
def test_a_time_is_set_as_it_is_given(file: Path, mtime: int, is_local: bool) -> None:
    assert _set(file, SetAttr(atime_ns=7, mtime_ns=mtime), is_local).st_mtime_ns == mtime
    assert file.stat().st_atime_ns == 7


def test_now_is_asked_of_the_share(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int | None, int | None]] = []
    monkeypatch.setattr(
        syscalls, "utimens", lambda path, atime, mtime: asked.append((atime, mtime))
    )
    now = time.time_ns()
    _set(file, SetAttr(atime_ns=now, mtime_ns=now), is_local=False)
    _set(file, SetAttr(mtime_ns=time.time_ns()), is_local=False)
    assert asked == [(protocol.NOW, protocol.NOW), (None, protocol.NOW)]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_truncation_leaves_the_time_to_the_source(file: Path, is_local: bool) -> None:
    before = time.time_ns()
    assert _set(file, SetAttr(size=1, mtime_ns=OLD), is_local).st_mtime_ns > before - 10**9
