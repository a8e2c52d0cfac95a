"""Calls that take no blocks which a disk reserves for root."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gitguardfs.linux.reserved_blocks import AMPLE, RootsBlocks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the blocks of root")


def rights() -> dict[str, str]:
    """Return users and capabilities of this thread."""
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return dict(line.split(":\t") for line in lines if line.startswith(("Uid", "CapEff")))


def test_a_disk_is_looked_at_before_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent fills it in one step, by fallocate(2), outside of the view."""
    disk = SimpleNamespace(f_bavail=AMPLE, f_bfree=AMPLE + 9, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk)
    blocks = RootsBlocks(-1)
    before = rights()
    assert blocks.left_alone(rights) == before
    disk.f_bavail = 0
    assert blocks.left_alone(rights)["Uid"].split()[3] == "65534"
    disk.f_bavail = disk.f_bfree  # it reserves none
    assert blocks.left_alone(rights) == before


def test_a_call_that_fails_leaves_the_thread_its_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(f_bavail=0, f_bfree=9, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk)

    def fail(*_: Any) -> None:
        raise OSError

    before = rights()
    with pytest.raises(OSError):
        RootsBlocks(-1).left_alone(fail)
    assert rights() == before
