"""A directory that a process stays in is classified again after VERDICT_TTL."""

import errno
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pyfuse3 import EntryAttributes

from gitguardfs.fs import revalidation
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.names.rules import GitMode, GuardRules
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Fields, Later, Token, World, open_descriptors, refused


def make_repository(path: Path) -> None:
    """Make the parts of a repository that ``git init --bare`` makes."""
    (path / "refs").mkdir()
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text("[core]\n")


USES: dict[str, Callable[[World, int, int], Awaitable[Any]]] = {
    "look something up": lambda w, d, f: w.ops.lookup(d, b"config", w.ctx),
    "make a file": lambda w, d, f: w.create(d, b"new"),
    "make a directory": lambda w, d, f: w.ops.mkdir(d, b"hooks", 0o755, w.ctx),
    "make a symlink": lambda w, d, f: w.ops.symlink(d, b"s", b"f", w.ctx),
    "make a device": lambda w, d, f: w.ops.mknod(d, b"p", 0o10644, 0, w.ctx),
    "link": lambda w, d, f: w.ops.link(f, ROOT_ID, b"l", w.ctx),
    "remove": lambda w, d, f: w.ops.unlink(d, b"f", w.ctx),
    "remove a directory": lambda w, d, f: w.ops.rmdir(d, b"sub", w.ctx),
    "move out": lambda w, d, f: w.ops.rename(d, b"f", ROOT_ID, b"g", 0, w.ctx),
    "move in": lambda w, d, f: w.ops.rename(ROOT_ID, b"top", d, b"config", 0, w.ctx),
    "list": lambda w, d, f: w.ops.opendir(d, w.ctx),
    "open": lambda w, d, f: w.ops.open(f, os.O_RDONLY, w.ctx),
    "truncate": lambda w, d, f: w.setattr(f, size=0),
    "change the mode": lambda w, d, f: w.setattr(f, mode=0o100755),
    "check access": lambda w, d, f: w.ops.access(f, os.R_OK, w.ctx),
    "read an attribute": lambda w, d, f: w.ops.getxattr(f, b"user.x", w.ctx),
    "set an attribute": lambda w, d, f: w.ops.setxattr(f, b"user.x", b"1", w.ctx),
}


def planted(world: World) -> Path:
    (world.source / "d/sub/deep").mkdir(parents=True)
    (world.source / "d/f").write_text("f")
    (world.source / "d/sub/deep/f").write_text("f")
    (world.source / "top").write_text("top")
    return world.source / "d"


@pytest.mark.parametrize("use", USES)
async def test_a_repository_made_around_somebody_is_closed_to_him(
    world: World, later: Later, use: str
) -> None:
    path = planted(world)
    d, f = await world.id("d"), await world.id("d/f")
    make_repository(path)
    before = sorted(os.listdir(path)), (path / "config").read_text(), os.stat(path / "f").st_mode
    later()
    await refused(USES[use](world, d, f))
    after = sorted(os.listdir(path)), (path / "config").read_text(), os.stat(path / "f").st_mode
    assert after == before


async def test_so_is_what_lies_below_it(world: World, later: Later) -> None:
    path = planted(world)
    deep, f = await world.id("d/sub/deep"), await world.id("d/sub/deep/f")
    make_repository(path)
    later()
    await refused(world.create(deep, b"new"))
    await refused(world.ops.open(f, os.O_RDONLY, world.ctx))


async def test_looks_below_do_not_put_off_a_look_at_what_is_above(
    world: World, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new directory is younger than a second, the directory above is not."""
    path = planted(world)
    sub = await world.id("d/sub")
    made = 0.0
    monkeypatch.setattr(revalidation, "clock", lambda: time.monotonic() + made)
    make_repository(path)
    made = 0.7 * revalidation.VERDICT_TTL
    deep = int((await world.ops.lookup(sub, b"deep", world.ctx)).st_ino)
    made = 1.4 * revalidation.VERDICT_TTL
    await refused(world.create(deep, b"new"))


async def test_a_listing_that_was_begun_ends(world: World, later: Later) -> None:
    path = planted(world)
    handle = await world.ops.opendir(await world.id("d"), world.ctx)
    make_repository(path)
    later()
    await refused(world.ops.readdir(handle, 0, Token()))
    await world.ops.releasedir(handle)


async def test_read_only_repositories_can_be_read(make_world: MakeWorld, later: Later) -> None:
    world = make_world(rules=GuardRules(git=GitMode.READONLY))
    path = planted(world)
    d = await world.id("d")
    make_repository(path)
    later()
    assert (await world.ops.lookup(d, b"config", world.ctx)).st_ino
    await refused(world.create(d, b"new"))


async def test_what_the_host_moved_can_still_be_used(world: World, later: Later) -> None:
    planted(world)
    deep = await world.id("d/sub/deep")
    assert (await world.ops.lookup(deep, b"f", world.ctx)).st_ino
    (world.source / "d").rename(world.source / "elsewhere")
    later()
    assert (await world.ops.lookup(deep, b"f", world.ctx)).st_ino


async def test_places_that_form_a_ring_are_no_way_without_end(world: World, later: Later) -> None:
    """Renames by the host can leave places like that."""
    planted(world)
    d, deep = await world.id("d"), await world.id("d/sub/deep")
    world.tree.nodes.get(d).parent = world.tree.nodes.get(deep)
    later()
    assert (await world.ops.lookup(deep, b"f", world.ctx)).st_ino


async def test_a_long_way_takes_no_descriptor_away(make_world: MakeWorld, later: Later) -> None:
    """Classifying the directories above one end takes more descriptors than are kept."""
    world = make_world(descriptor_limit=1)
    way = "/".join(f"d{level}" for level in range(40))
    (world.source / way).mkdir(parents=True)
    (world.source / "a").mkdir()
    (world.source / "a/f").write_text("moved")
    (world.source / "a/k").write_text("linked")
    a, k, end = await world.id("a"), await world.id("a/k"), await world.id(way)
    later()
    await world.ops.rename(a, b"f", end, b"g", 0, world.ctx)
    assert (world.source / way / "g").read_text() == "moved"
    later()
    await world.ops.link(k, end, b"h", world.ctx)
    assert (world.source / way / "h").read_text() == "linked"


async def test_what_is_judged_is_what_was_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host exchanges a directory between the look at it and its opening."""
    for path in ("d", "other"):
        (world.source / path).mkdir()
    opens = Source.open_node

    def exchanged(self: Source, dir_fd: int, name: bytes) -> int:
        (world.source / "d").rename(world.source / "away")
        (world.source / "other").rename(world.source / "d")
        return opens(self, dir_fd, name)

    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(Source, "open_node", exchanged)
        await refused(world.ops.lookup(ROOT_ID, b"d", world.ctx), errno.ESTALE)
    assert open_descriptors() == before


# ------------------------------------------------------------------ What the host has moved


def _into_git(source: Path) -> Path:
    (source / "r/.git").mkdir(parents=True)
    return source / "r/.git/A"


def _into_a_bare_one(source: Path) -> Path:
    make_repository(source / "bare")
    return source / "bare/A"


def _to_git(source: Path) -> Path:
    return source / ".git"


def _to_a_spelling_of_git(source: Path) -> Path:
    return source / ".GIT"


def _and_makes_it_one(source: Path) -> Path:
    return source / "B"


MOVES = [_into_git, _into_a_bare_one, _to_git, _to_a_spelling_of_git, _and_makes_it_one]


def _settled(world: World) -> Path:
    (world.source / "A/b/hooks").mkdir(parents=True)
    (world.source / "A/b/hooks/f").write_text("f")
    (world.source / "bare").mkdir()
    return world.source / "A"


def _move(world: World, move: Callable[[Path], Path]) -> Path:
    target = move(world.source)
    (world.source / "A").rename(target)
    if move is _and_makes_it_one:
        make_repository(target)
    return target


@pytest.mark.parametrize("evicted", [False, True], ids=["kept", "evicted"])
@pytest.mark.parametrize("is_local", [False, True], ids=["share", "local"])
@pytest.mark.parametrize("move", MOVES)
async def test_what_the_host_moves_into_git_is_closed(
    make_world: MakeWorld, later: Later, move: Callable[[Path], Path], is_local: bool, evicted: bool
) -> None:
    """The descriptor of a directory above may have been closed, since their number is limited."""
    world = make_world(is_local=is_local)
    _settled(world)
    hooks, f = await world.id("A/b/hooks"), await world.id("A/b/hooks/f")
    await world.ops.setattr(f, *_no_change(), None, world.ctx)
    later()
    assert (await world.ops.lookup(hooks, b"f", world.ctx)).st_ino
    if evicted:
        for path in ("A", "A/b"):
            node = world.tree.nodes.get(os.stat(world.source / path).st_ino)
            world.tree.descriptors.close(node)
            assert node.fd < 0
    target = _move(world, move)
    before = sorted(os.listdir(target / "b/hooks"))
    later()
    wanted = {errno.EACCES} if is_local else {errno.EACCES, errno.ESTALE}
    for _ in range(2):
        await refused(world.create(hooks, b"post-update"), *wanted)
        await refused(world.ops.opendir(hooks, world.ctx), *wanted)
        await refused(world.ops.open(f, os.O_RDWR, world.ctx), *wanted)
        await refused(world.ops.lookup(hooks, b"f", world.ctx), *wanted)
    assert sorted(os.listdir(target / "b/hooks")) == before


def _no_change() -> tuple[Any, Any]:
    return EntryAttributes(), Fields()


async def test_rules_of_names_hold_where_it_is_now(make_world: MakeWorld, later: Later) -> None:
    world = make_world(rules=GuardRules(deny=("secret*",)))
    _settled(world)
    hooks = await world.id("A/b/hooks")
    (world.source / "A").rename(world.source / "secrets")
    later()
    await refused(world.create(hooks, b"new"))


@pytest.mark.parametrize("is_local", [False, True], ids=["share", "local"])
async def test_what_was_evicted_is_opened_again(
    make_world: MakeWorld, later: Later, is_local: bool
) -> None:
    world = make_world(is_local=is_local)
    _settled(world)
    hooks = await world.id("A/b/hooks")
    for path in ("A", "A/b"):
        world.tree.descriptors.close(world.tree.nodes.get(await world.id(path)))
    later()
    handle, _ = await world.create(hooks, b"new")
    await world.ops.release(handle)


async def test_out_of_the_source_is_out_of_reach(world: World, later: Later) -> None:
    _settled(world)
    hooks = await world.id("A/b/hooks")
    (world.source / "A").rename(world.source.parent / "outside")
    later()
    await refused(world.create(hooks, b"new"), errno.ESTALE)


async def test_what_the_host_removes_is_no_error_of_ours(world: World, later: Later) -> None:
    (world.source / "d").mkdir()
    d = await world.id("d")
    await world.ops.setattr(d, *_no_change(), None, world.ctx)
    (world.source / "d").rmdir()
    later()
    await world.ops.releasedir(await world.ops.opendir(d, world.ctx))
    await refused(world.create(d, b"new"), errno.ENOENT)


async def test_time_counts_from_when_it_was_judged(
    world: World, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Using its verdict for something below it does not make the verdict younger."""
    (world.source / "d/e/f").mkdir(parents=True)
    d, e = await world.id("d"), await world.id("d/e")
    start = time.monotonic()
    passed = 0.0
    monkeypatch.setattr(revalidation, "clock", lambda: start + passed)
    passed = 2 * revalidation.VERDICT_TTL
    await world.ops.lookup(d, b"x", world.ctx)
    passed += 0.7 * revalidation.VERDICT_TTL
    make_repository(world.source / "d")
    await world.ops.lookup(e, b"x", world.ctx)  # what is above is still as it was classified
    passed += 0.7 * revalidation.VERDICT_TTL
    await refused(world.create(e, b"new"))


@pytest.mark.parametrize("git", [GitMode.DENY, GitMode.READONLY, GitMode.HIDE])
async def test_the_root_may_become_a_repository_and_be_none_again(
    make_world: MakeWorld, later: Later, git: GitMode
) -> None:
    world = make_world(rules=GuardRules(git=git))
    (world.source / "d").mkdir()
    (world.source / "f").touch()
    d, f = await world.id("d"), await world.id("f")
    make_repository(world.source)
    later()
    await refused(world.create(d, b"new"))
    await refused(world.ops.open(f, os.O_RDWR, world.ctx))
    await refused(world.create(ROOT_ID, b"new"))
    assert (await world.ops.getattr(ROOT_ID, world.ctx)).st_mode & 0o222 == 0
    (world.source / "HEAD").unlink()
    later()
    assert (await world.ops.getattr(ROOT_ID, world.ctx)).st_mode & 0o200
    handle, _ = await world.create(ROOT_ID, b"new")
    await world.ops.release(handle)
    handle, _ = await world.create(await world.id("d"), b"new")
    await world.ops.release(handle)


async def test_numbers_that_are_used_again_cost_no_descriptors(world: World, later: Later) -> None:
    """The kernel has forgotten the directories, but they are still the known places of files."""
    names = [f"{number}" for number in range(20)]
    (world.source / "store").mkdir()
    for name in names:
        (world.source / "store" / name).touch()
        (world.source / f"d{name}").mkdir()
        os.link(world.source / "store" / name, world.source / f"d{name}/f")
    start = open_descriptors()
    handles = {name: await world.open(f"store/{name}") for name in names}
    nodes = world.tree.nodes
    for _ in range(3):
        for name in names:
            await world.id(f"d{name}/f")
        for name in names:  # under memory pressure: the kernel still has the file, by the store
            d = os.stat(world.source / f"d{name}").st_ino
            await world.ops.forget([(d, nodes.get(d).lookup_count)])
        later()
        for name in names:
            number = os.stat(world.source / "store" / name).st_ino
            await world.setattr(number, handles[name], mtime_ns=1)
        for name in names:
            await world.id(f"d{name}")
    for handle in handles.values():
        await world.ops.release(handle)
    known = [(node.id, node.lookup_count) for node in nodes if node.id != ROOT_ID]
    await world.ops.forget(known)
    left = [os.readlink(f"/proc/self/fd/{n}") for n in open_descriptors() if n not in start]
    assert left == [], (len(nodes), known)


# ------------------------------------------------------------------ Sources that go by paths


async def test_another_directory_in_its_place_is_not_taken_for_it(
    make_world: MakeWorld, later: Later
) -> None:
    world = make_world(is_ninep=True)
    path = planted(world)
    d, deep = await world.id("d"), await world.id("d/sub/deep")
    path.rename(world.source / "elsewhere")
    (path / "sub/deep").mkdir(parents=True)
    later()
    await refused(world.create(d, b"new"), errno.ESTALE)
    await refused(world.create(deep, b"new"), errno.ESTALE)
    assert sorted(os.listdir(path)) == ["sub"]
    handle, _ = await world.create(await world.id("d/sub/deep"), b"new")
    await world.ops.release(handle)


async def test_another_file_in_its_place_is_not_changed(make_world: MakeWorld) -> None:
    world = make_world(is_ninep=True)
    path = planted(world)
    f = await world.id("d/f")
    await world.setattr(f, mode=0o100600)  # takes a descriptor
    (path / "f").rename(path / "g")
    (path / "f").write_text("another")
    (path / "f").chmod(0o640)
    await refused(world.setattr(f, mode=0o100777), errno.ESTALE)
    await refused(world.setattr(f, size=0), errno.ESTALE)
    assert (path / "f").read_text() == "another"
    assert os.stat(path / "f").st_mode & 0o777 == 0o640
