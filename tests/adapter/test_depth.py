"""Requests far down in a tree: what they cost, and that nothing above them is overlooked."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.nodes import ROOT_ID, Node
from gitguardfs.fs.revalidation import LONGEST_AGO, NEAREST
from tests.adapter.conftest import MakeWorld
from tests.adapter.test_revalidation import make_repository
from tests.adapter.world import Later, World, refused

DEPTH = 60
NAMES = [f"d{level}" for level in range(DEPTH)]


async def deep(world: World) -> int:
    """Make the tree; return the node at its end."""
    path = world.source.joinpath(*NAMES)
    path.mkdir(parents=True)
    (path / "f").write_text("f")
    (world.source / "r/.git").mkdir(parents=True)
    await world.ops.lookup(ROOT_ID, b"none", world.ctx)  # the first one also asks about letters
    return await world.id("/".join(NAMES))


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that gets the names of directories that are classified again."""
    found = DescriptorCache.found
    names: list[bytes] = []

    def call(self: DescriptorCache, node: Node) -> int:
        names.append(node.name)
        return found(self, node)

    monkeypatch.setattr(DescriptorCache, "found", call)
    return names


def counted(patch: pytest.MonkeyPatch, name: str) -> list[object]:
    """Return a list that gets an item at each call of a function of ``os``."""
    original = getattr(os, name)
    calls: list[object] = []

    def call(*args: object, **options: object) -> object:
        calls.append(args)
        return original(*args, **options)

    patch.setattr(os, name, call)
    return calls


async def test_over_a_share_a_request_costs_the_same_at_each_depth(
    make_world: MakeWorld, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(is_local=False)
    end = await deep(world)
    middle = await world.id("/".join(NAMES[:20]))
    later()
    costs = []
    for node in (middle, end):
        with monkeypatch.context() as patch:
            names = looked_at(patch)
            stats, opens = counted(patch, "stat"), counted(patch, "open")
            await world.ops.lookup(node, b"f", world.ctx)
        assert len(names) <= NEAREST + LONGEST_AGO
        costs.append((len(names), len(stats), len(opens)))
    assert costs[0][1] - costs[1][1] in (0, -1), "the file is at the end only"
    assert costs[1][1] <= 3 * (NEAREST + LONGEST_AGO) and costs[1][2] == 0


async def test_within_the_second_the_next_requests_look_at_the_rest_once(
    make_world: MakeWorld, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(is_local=False)
    end = await deep(world)
    later()
    names = looked_at(monkeypatch)
    requests = -(-(DEPTH + 1) // (NEAREST + LONGEST_AGO))
    for _ in range(requests):
        await world.ops.lookup(end, b"f", world.ctx)
    assert sorted(map(os.fsdecode, names)) == sorted([*NAMES, ""])
    await world.ops.lookup(end, b"f", world.ctx)
    assert len(names) == DEPTH + 1


async def test_over_a_share_each_directory_above_has_its_turn(
    make_world: MakeWorld, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(is_local=False)
    end = await deep(world)
    names = looked_at(monkeypatch)
    requests = -(-(DEPTH + 1 - NEAREST) // LONGEST_AGO)
    for _ in range(requests):
        later()
        await world.ops.lookup(end, b"f", world.ctx)
    assert {os.fsdecode(name) for name in names} == {*NAMES, ""}
    nearest = [names.count(os.fsencode(name)) for name in NAMES[-NEAREST:]]
    assert nearest == [requests] * NEAREST


async def test_two_that_are_far_down_share_the_turns(
    make_world: MakeWorld, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes when the verdicts of the other are old, and looks at what it left out."""
    world = make_world(is_local=False)
    end = await deep(world)
    (world.source.joinpath(*NAMES[:-1]) / "other").mkdir()
    other = await world.id("/".join((*NAMES[:-1], "other")))
    names = looked_at(monkeypatch)
    for number in range(2 * -(-(DEPTH + 1) // LONGEST_AGO)):
        later()
        await world.ops.lookup((end, other)[number % 2], b"f", world.ctx)
    assert {os.fsdecode(name) for name in names} == {*NAMES, "other", ""}


def _into_git(world: World, levels: int) -> None:
    path = world.source.joinpath(*NAMES[: DEPTH - levels])
    path.rename(world.source / "r/.git/moved")


def _into_a_repository(world: World, levels: int) -> None:
    make_repository(world.source.joinpath(*NAMES[: DEPTH - levels]))


def _to_git(world: World, levels: int) -> None:
    path = world.source.joinpath(*NAMES[: DEPTH - levels])
    path.rename(path.parent / ".git")


def _and_put_another_in_its_place(world: World, levels: int) -> None:
    _into_git(world, levels)
    world.source.joinpath(*NAMES).mkdir(parents=True)


HOW = [_into_git, _into_a_repository, _to_git, _and_put_another_in_its_place]


def all_files(top: Path) -> list[str]:
    return sorted(str(path) for path in top.rglob("*"))


async def moved_above(
    world: World, later: Later, how: Callable[[World, int], None], levels: int
) -> tuple[int, object]:
    """Let the host change a directory above a node; return the node, and all files."""
    end = await deep(world)
    later()
    assert (await world.ops.lookup(end, b"f", world.ctx)).st_ino
    how(world, levels)
    before = all_files(world.source)
    later()
    return end, before


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("levels", [0, 1, 2, 3])
@pytest.mark.parametrize("is_local", [True, False], ids=["local", "share"])
async def test_what_the_host_moves_into_git_near_by_is_closed_at_once(
    make_world: MakeWorld, later: Later, how: Callable[[World, int], None], levels: int,
    is_local: bool,
) -> None:  # fmt: skip
    world = make_world(is_local=is_local)
    end, before = await moved_above(world, later, how, levels)
    await refused(world.create(end, b"new"), errno.EACCES, *([] if is_local else [errno.ESTALE]))
    await refused(world.ops.opendir(end, world.ctx), errno.EACCES, errno.ESTALE)
    assert all_files(world.source) == before


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("levels", [4, 9, 30, 58, 59])
async def test_on_a_local_source_that_is_so_at_any_depth(
    world: World, later: Later, how: Callable[[World, int], None], levels: int
) -> None:
    end, before = await moved_above(world, later, how, levels)
    await refused(world.create(end, b"new"))
    assert all_files(world.source) == before


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("levels", [4, 9, 30, 58, 59])
async def test_over_a_share_it_is_closed_when_it_has_its_turn(
    make_world: MakeWorld, later: Later, how: Callable[[World, int], None], levels: int
) -> None:
    world = make_world(is_local=False)
    end = await deep(world)
    later()
    assert (await world.ops.lookup(end, b"f", world.ctx)).st_ino
    how(world, levels)
    later()
    refusals = 0
    for _ in range(-(-(DEPTH + 1 - NEAREST) // LONGEST_AGO)):
        try:
            await world.ops.lookup(end, b"f", world.ctx)
        except Exception as error:
            assert getattr(error, "errno", None) in (errno.EACCES, errno.ESTALE)
            refusals += 1
            break
        later()
    assert refusals
    await refused(world.create(end, b"new"), errno.EACCES, errno.ESTALE)


async def test_a_rule_that_needs_a_sure_answer_looks_at_all_above(
    make_world: MakeWorld, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that moves is counted from its work tree's root: none may be out of place."""
    world = make_world(is_local=False)
    end = await deep(world)
    (world.source.joinpath(*NAMES) / "sub").mkdir()
    to = await world.id(NAMES[0])
    names = looked_at(monkeypatch)
    await world.ops.rename(end, b"sub", to, b"sub", 0, world.ctx)
    assert {*map(os.fsencode, NAMES)} <= set(names)
