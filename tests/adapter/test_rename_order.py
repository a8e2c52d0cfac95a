"""A rename with several obstacles fails with the errno of the first one in this table."""

from __future__ import annotations

import errno
import os
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT
from gitguardfs.names.rules import GuardRules
from gitguardfs.options.change_policy import ChangePolicy
from tests.adapter.conftest import MakeWorld
from tests.adapter.view.test_table import snapshot
from tests.adapter.world import World, refused

UNKNOWN = "unknown"
"""A directory that was never looked up."""


class Obstacle(NamedTuple):
    """A reason for a rename to fail: its changes to the arguments of one that succeeds."""

    what: str
    changes: dict[str, Any]
    number: int
    rule: str = ""


BASE: dict[str, Any] = {
    "old_parent": "from", "old_name": b"f", "new_parent": "to", "new_name": b"free", "flags": 0,
}  # fmt: skip

ORDER = [
    Obstacle("old name is none", {"old_name": b"a/b"}, errno.EINVAL),
    Obstacle("old directory is unknown", {"old_parent": UNKNOWN}, errno.ESTALE),
    Obstacle("old directory is guarded", {"old_parent": "away"}, errno.EACCES, "--deny away"),
    Obstacle("read-only", {"read_only": True}, errno.EROFS),
    Obstacle("old name is .git", {"old_name": b".git"}, errno.EACCES, "git"),
    Obstacle("new name is none", {"new_name": b".."}, errno.EINVAL),
    Obstacle("new directory is unknown", {"new_parent": UNKNOWN}, errno.ESTALE),
    Obstacle("new directory is guarded", {"new_parent": "shut"}, errno.EACCES, "--deny shut"),
    Obstacle("new name is guarded", {"new_name": b"kept"}, errno.EACCES, "--deny kept"),
    Obstacle("flags are unknown", {"flags": RENAME_WHITEOUT}, errno.EINVAL),
    Obstacle("no renames", {"policy": ChangePolicy(rename_deny=True)}, errno.EPERM),
    Obstacle("old is .git's other name", {"old_name": b"alias"}, errno.EACCES, "git alias"),
    Obstacle("old is a root", {"old_name": b"root"}, errno.EACCES, "repository root"),
    Obstacle("old holds one", {"old_name": b"holder"}, errno.EACCES, "holds a repository"),
    Obstacle("new is a repository", {"new_name": b"repo"}, errno.EACCES, "repository"),
    Obstacle(
        "new is a root, exchanged",
        {"new_name": b"root", "flags": RENAME_EXCHANGE},
        errno.EACCES,
        "repository root",
    ),
    Obstacle("old is not there", {"old_name": b"none"}, errno.ENOENT),
    Obstacle(
        "new is not there, exchanged",
        {"new_name": b"none", "flags": RENAME_EXCHANGE},
        errno.ENOENT,
    ),
    Obstacle(
        "new completes a repository",
        {"new_parent": "headless", "new_name": b"HEAD"},
        errno.EACCES,
        "fake repository",
    ),
    Obstacle(
        "old completes a repository, exchanged",
        {"old_parent": "config", "old_name": b"HEAD", "new_name": b"g", "flags": RENAME_EXCHANGE},
        errno.EACCES,
        "fake repository",
    ),
    Obstacle(
        "a FIFO that git opens",
        {"old_name": b"fifo", "new_name": b".gitignore"},
        errno.EACCES,
        "special file that git opens",
    ),
    Obstacle("a symlink leads out", {"old_name": b"link"}, errno.EXDEV),
    Obstacle("new is there", {"new_name": b"g", "flags": RENAME_NOREPLACE}, errno.EEXIST),
]
"""In the order in which they are checked; the source itself checks the last one."""


def both(first: Obstacle, second: Obstacle) -> dict[str, Any] | None:
    """Return the changes that make a rename meet both obstacles; None if they conflict."""
    shared = first.changes.keys() & second.changes.keys()
    if any(first.changes[key] != second.changes[key] for key in shared):
        return None
    return first.changes | second.changes


PAIRS = [pair for pair in combinations(ORDER, 2) if both(*pair) is not None]


def populate(directory: Path) -> None:
    """Make everything that a name in the table may stand for."""
    directory.mkdir()
    for name in ("f", "g", ".git"):
        (directory / name).touch()
    os.link(directory / ".git", directory / "alias")
    for path in ("root/.git", "dir", "repo/refs", "holder/inside/refs"):
        (directory / path).mkdir(parents=True)
    for path in ("repo/HEAD", "holder/inside/HEAD"):
        (directory / path).touch()
    os.mkfifo(directory / "fifo")
    os.symlink("/outside", directory / "link")


async def check(make_world: MakeWorld, changes: dict[str, Any], expected: Obstacle) -> None:
    request = BASE | changes
    policy = request.pop("policy", None)
    world = make_world(
        rules=GuardRules(deny=("away", "shut", "kept")),
        policy=policy,
        read_only=request.pop("read_only", False),
    )
    for name in ("from", "to", "away", "shut", "headless", "config"):
        populate(world.source / name)
    (world.source / "headless/refs").mkdir()
    (world.source / "config/config").touch()
    (world.source / "config/HEAD").touch()
    before = everything(world)
    old_parent, new_parent = [
        2**40 if request[key] == UNKNOWN else await world.id(request[key])
        for key in ("old_parent", "new_parent")
    ]
    await refused(
        world.ops.rename(
            old_parent, request["old_name"], new_parent, request["new_name"], request["flags"],
            world.ctx,
        ),
        expected.number,
    )  # fmt: skip
    assert dict(world.audit.refused) == ({expected.rule: 1} if expected.rule else {})
    assert everything(world) == before


def everything(world: World) -> list[object]:
    return [snapshot(os.fsencode(path)) for path in sorted(world.source.iterdir())]


async def test_without_an_obstacle_it_is_done(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(deny=("away", "shut", "kept")))
    for name in ("from", "to"):
        populate(world.source / name)
    await world.rename("from/f", "to/free")
    assert (world.source / "to/free").exists()


@pytest.mark.parametrize("obstacle", ORDER, ids=lambda it: it.what)
async def test_each_obstacle_by_itself(make_world: MakeWorld, obstacle: Obstacle) -> None:
    await check(make_world, obstacle.changes, obstacle)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda it: it.what)
async def test_of_two_obstacles_the_first_is_answered(
    make_world: MakeWorld, first: Obstacle, second: Obstacle
) -> None:
    changes = both(first, second)
    assert changes is not None
    await check(make_world, changes, first)
