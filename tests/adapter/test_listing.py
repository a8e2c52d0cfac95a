"""Listings with names only: which processes get them, and what is in them."""

import os
from stat import S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG

import pytest
from pyfuse3 import EntryAttributes

from gitguardfs.fs.handles import ENOUGH, REMEMBERED, ReaddirplusAdvice
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names.rules import GitMode, GuardRules
from gitguardfs.options.change_policy import SymlinkPolicy
from gitguardfs.options.idmap import IdMap
from gitguardfs.sessions.pyfuse3_session import internals
from gitguardfs.sessions.pyfuse3_session.internals import NamesOnlyEntry
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Context, Token, World

FINDER, LISTER = Context(pid=100), Context(pid=200)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    world = make_world(rules=GuardRules(GitMode.LIST), reports_names_only=True)
    fill(world)
    return world


@pytest.mark.parametrize("names_only", [True, False])
@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
async def test_git_is_found_by_its_name_and_not_listed(
    make_world: MakeWorld, kind: str, names_only: bool
) -> None:
    world = make_world(rules=GuardRules(deny=("secret",)), reports_names_only=names_only)
    for name in (".git", "GIT~1", ".git. .", ".gitignore", "secret"):
        path = world.source / name
        if kind == "symlink":
            path.symlink_to("x")
        else:
            (path.touch if kind == "file" else path.mkdir)()
    for _ in range(2):
        assert set(await world.list("")) == {b".gitignore", b"secret"}
    known = {node.name for node in world.tree.nodes} - {b""}
    assert known <= {b".gitignore", b"secret"}, "the kernel is told of no other"
    assert (await world.entry(".git")).st_mode == S_IFMT((world.source / ".git").lstat().st_mode)


def fill(world: World) -> None:
    for name in ("one", "two", "three", ".git", "git~1"):
        (world.source / name).touch()
    (world.source / "dir").mkdir()
    (world.source / ".GIT").mkdir()
    (world.source / "link").symlink_to("one")
    os.mkfifo(world.source / "fifo")


async def read(world: World, ctx: Context) -> dict[bytes, EntryAttributes]:
    handle = await world.ops.opendir(ROOT_ID, ctx)
    token = Token()
    await world.ops.readdir(handle, 0, token)
    await world.ops.releasedir(handle)
    return {name: entry for name, entry, _ in token.entries}


async def test_files_and_symlinks_come_without_a_node_and_directories_with_one(
    world: World,
) -> None:
    world.attributes.presented.clear()
    found = await read(world, FINDER)
    assert set(found) == {b".", b"..", *map(os.fsencode, os.listdir(world.source))}
    for name, kind in ((b"one", S_IFREG), (b"link", S_IFLNK), (b".", S_IFDIR)):
        assert (found[name].st_ino, found[name].st_mode) == (0, kind), name
    assert found[b"dir"].st_ino == os.stat(world.source / "dir").st_ino
    assert found[b".GIT"].st_mode == S_IFDIR
    assert found[b"fifo"].st_mode == S_IFIFO | 0o644
    assert len(world.attributes.presented) == 5
    looked_at = {b"", b"dir", b".GIT", b"fifo", b".git", b"git~1"}
    assert {node.name for node in world.tree.nodes} == looked_at


async def test_who_looks_at_what_is_listed_gets_attributes_from_then_on(world: World) -> None:
    await read(world, LISTER)
    await read(world, FINDER)
    await world.ops.lookup(ROOT_ID, b"dir", LISTER)
    for name in (b"one", b"two")[:ENOUGH]:
        assert (await read(world, LISTER))[b"one"].st_ino == 0
        await world.ops.lookup(ROOT_ID, name, LISTER)
    assert (await read(world, LISTER))[b"one"].st_ino == os.stat(world.source / "one").st_ino
    assert (await read(world, FINDER))[b"one"].st_ino == 0


async def test_attributes_can_begin_within_a_directory(world: World) -> None:
    handle = await world.ops.opendir(ROOT_ID, LISTER)
    token = Token(room=4)
    await world.ops.readdir(handle, 0, token)
    for name in (b"one", b"two"):
        await world.ops.lookup(ROOT_ID, name, LISTER)
    rest = Token()
    await world.ops.readdir(handle, token.entries[-1][2], rest)
    await world.ops.releasedir(handle)
    assert all(entry.st_ino for _, entry, _ in rest.entries)
    names = [name for name, _, _ in (*token.entries, *rest.entries)]
    assert sorted(names) == sorted({b".", b"..", *map(os.fsencode, os.listdir(world.source))})


@pytest.mark.parametrize(
    "options",
    [
        {"rules": GuardRules(git=GitMode.HIDE)}, {"rules": GuardRules(hide=("x",))},
        {"symlinks": SymlinkPolicy()}, {"idmap": IdMap(gid_offset=1)},
    ],
)  # fmt: skip
async def test_what_each_entry_has_to_be_looked_at_for(
    make_world: MakeWorld, options: dict[str, object]
) -> None:
    assert not make_world(**options).tree.can_list_names_only


def test_the_number_of_a_node_lies_where_it_is_taken_to_lie() -> None:
    assert NamesOnlyEntry().works


def test_elsewhere_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_FIELDS", internals._FIELDS + 8)
    assert not NamesOnlyEntry().works


def test_processes_are_forgotten() -> None:
    advice = ReaddirplusAdvice()
    advice.wants_names_only(1)
    advice.lookups[1] += ENOUGH
    assert not advice.wants_names_only(1)
    for pid in range(2, 2 + REMEMBERED):
        advice.wants_names_only(pid)
    assert advice.wants_names_only(1)
    assert advice.wants_names_only(10**6)
