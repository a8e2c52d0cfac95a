"""Names that were removed through the view, and that git on the host may restore."""

from __future__ import annotations

import os

import pytest

from gitguardfs.fs import moved_trees, removed_names, tree_walk
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.guard.rules import GuardRules
from gitguardfs.protocol import RENAME_EXCHANGE
from tests.adapter.conftest import MakeWorld
from tests.adapter.test_forming import mkdir, remove, touch
from tests.adapter.test_host_git import symlink
from tests.adapter.world import World, refused


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """The host tracks ``lib/HEAD`` and ``lib/objects``."""
    world = make_world()
    put(world)
    return world


def put(world: World, path: str = "lib") -> None:
    (world.source / path / "objects").mkdir(parents=True)
    (world.source / path / "HEAD").write_text("ref: refs/heads/main\n")


async def rmdir(world: World, path: str) -> None:
    parent, _, name = path.rpartition("/")
    await world.ops.rmdir(await world.id(parent), name.encode(), world.ctx)


async def test_removed_names_count_as_present(world: World) -> None:
    await remove(world, "lib/HEAD")
    await refused(mkdir(world, "lib/refs"))
    await refused(touch(world, "lib/config"))
    await touch(world, "lib/main.c")
    await rmdir(world, "lib/objects")


async def test_by_path_also_in_a_new_directory(world: World) -> None:
    await remove(world, "lib/HEAD")
    await rmdir(world, "lib/objects")
    await rmdir(world, "lib")
    await mkdir(world, "lib")
    await refused(mkdir(world, "lib/refs"))
    await mkdir(world, "lib2")
    await mkdir(world, "lib2/refs")
    await refused(world.rename("lib2/refs", "lib/refs"))


@pytest.mark.parametrize(("name", "spelling"), [
    ("lib", "Lib"),
    ("lib", "lib."),
    ("lib", "lib. ."),
    ("lib", "lib::$INDEX_ALLOCATION"),
    ("lib", "l\u00adib"),
    ("lib", "\uff4cib"),
    ("libr\u00e9", "libre\u0301"),
    ("stra\u00dfe", "STRASSE"),
])  # fmt: skip
async def test_in_any_spelling(make_world: MakeWorld, name: str, spelling: str) -> None:
    """Servers of Windows and macOS take these for one name."""
    world = make_world()
    put(world, name)
    await remove(world, f"{name}/HEAD")
    await world.rename(name, spelling)
    await refused(mkdir(world, f"{spelling}/Refs"))
    await mkdir(world, "library")
    await mkdir(world, "library/refs")


async def test_moved_names_too(world: World) -> None:
    await world.rename("lib/HEAD", "text")
    await refused(mkdir(world, "lib/refs"))
    await refused(world.rename("lib/objects", "lib/refs"))


@pytest.mark.parametrize("flags", [0, RENAME_EXCHANGE])
async def test_what_took_their_place_changes_nothing(world: World, flags: int) -> None:
    await touch(world, "own")
    await world.rename("own", "lib/HEAD", flags)
    await remove(world, "lib/HEAD")
    await refused(mkdir(world, "lib/refs"))


async def test_a_directory_in_the_place_of_a_file_changes_nothing(world: World) -> None:
    await world.rename("lib/HEAD", "text")
    await mkdir(world, "lib/HEAD")
    await refused(mkdir(world, "lib/refs"))


@pytest.mark.parametrize("top", ["lib", "deep/er/lib"])
async def test_with_the_directories_above_them(world: World, top: str) -> None:
    if top != "lib":
        put(world, top)
    await world.rename(top.partition("/")[0], "moved")
    for path in {"deep": ("deep", "deep/er", top), "lib": ("lib",)}[top.partition("/")[0]]:
        await mkdir(world, path)
    await refused(mkdir(world, f"{top}/refs"))


@pytest.fixture
def large(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of a host's repository in a tree that is too large to be searched."""
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    path = "deep/er/in/repo.git"
    put(world, path)
    (world.source / path / "refs").mkdir()
    return path


async def make_above(world: World, path: str) -> None:
    parts = path.split("/")
    for path in ("/".join(parts[:count]) for count in range(1, len(parts) + 1)):
        if not (world.source / path).exists():
            await mkdir(world, path)


async def test_what_a_large_directory_holds_counts_where_it_was(world: World, large: str) -> None:
    """The agent can make it so large that it is not searched when it moves."""
    await world.rename("deep", "moved")
    await make_above(world, large)
    for name in ("config", "HEAD"):
        await refused(touch(world, f"{large}/{name}"))
    await refused(mkdir(world, f"{large}/hooks"))
    await mkdir(world, "deep/er/other")
    await touch(world, "deep/er/other/config")
    await touch(world, f"{large}/main.c")


@pytest.mark.parametrize("moves", [
    [("deep", "a"), ("a", "b"), ("b", "c")],
    [("deep", "a"), ("a", "deep"), ("deep", "b")],
    [("deep", "a"), ("a/er", "b")],
    [("deep", "a"), ("new", "deep"), ("deep", "b")],
])  # fmt: skip
async def test_wherever_it_was_moved_to(
    world: World, large: str, moves: list[tuple[str, str]]
) -> None:
    (world.source / "new/er/in/empty").mkdir(parents=True)
    for old, new in moves:
        await world.rename(old, new)
    await make_above(world, large)
    await refused(touch(world, f"{large}/config"))


async def test_also_what_was_removed_from_it_there(world: World) -> None:
    (world.source / "deep/er").mkdir(parents=True)
    (world.source / "deep/er/HEAD").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
        await world.rename("deep", "moved")
    await remove(world, "moved/er/HEAD")
    await make_above(world, "deep/er")
    await refused(mkdir(world, "deep/er/refs"))


async def test_what_was_made_here_does_not_count_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_above(world, "own/er")
    await touch(world, "own/er/HEAD")
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    await world.rename("own", "moved")
    await make_above(world, "own/er")
    await mkdir(world, "own/er/refs")


async def test_after_too_many_moves_all_may_have_been_there(
    world: World, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_names, "MAX_PLACES", 3)
    for old, new in ("deep", "a"), ("a", "b"), ("b", "c"):
        await world.rename(old, new)
    await make_above(world, "deep/er/ordinary")
    await refused(touch(world, "deep/er/ordinary/config"))
    await touch(world, "deep/er/ordinary/main.c")


async def test_so_many_large_directories_and_no_more(
    world: World, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_names, "MAX_REMOVED", 1)
    await world.rename("deep", "a")
    await refused(world.rename("a", "b"))


async def prepare(world: World, path: str) -> None:
    """Make a directory of which a repository lacks HEAD."""
    await make_above(world, f"{path}/refs")
    await touch(world, f"{path}/config")


@pytest.mark.parametrize("names", [
    ["refs/"], ["config"], ["hooks/"], ["commondir/"], ["refs/", "config"],
])  # fmt: skip
async def test_what_a_directory_brings_counts_where_it_arrives(
    world: World, names: list[str]
) -> None:
    await world.rename("lib", "old")
    await mkdir(world, "d")
    for name in names:
        make = mkdir(world, f"d/{name[:-1]}") if name[-1] == "/" else touch(world, f"d/{name}")
        await make
    await refused(world.rename("d", "lib"))
    assert not (world.source / "lib").exists()
    await world.rename("d", "elsewhere")
    await world.rename("old", "lib")


@pytest.mark.parametrize(("old", "new"), [("d/er", "deep/er"), ("d", "deep")])
@pytest.mark.parametrize("limit", [0, 256])
async def test_so_does_what_is_below_it(
    world: World, monkeypatch: pytest.MonkeyPatch, old: str, new: str, limit: int
) -> None:
    """Where the moved tree is too large to be searched, the place where it is now counts."""
    put(world, "deep/er/lib")
    await prepare(world, "d/er/lib")
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", limit)
    await world.rename(new, "old")
    await refused(world.rename(old, new))


@pytest.mark.parametrize("empty", ["lib", "d"])
async def test_in_an_exchange_each_arrives_where_the_other_was(world: World, empty: str) -> None:
    await prepare(world, "d")
    await refused(world.rename(*(("d", "lib") if empty == "d" else ("lib", "d")), RENAME_EXCHANGE))
    assert (world.source / "lib/HEAD").exists()


async def test_a_directory_with_nothing_of_a_repository_may_come(world: World) -> None:
    await world.rename("lib", "old")
    await mkdir(world, "d")
    await touch(world, "d/main.c")
    await world.rename("d", "lib")
    await refused(mkdir(world, "lib/refs"))


@pytest.mark.parametrize("limit", [0, 256])
async def test_a_tree_may_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Also one with the repositories of a test suite in it, and again and again."""
    put(world, "deep/er/repo.git")
    (world.source / "deep/er/repo.git/refs").mkdir()
    (world.source / "deep/er/repo.git/config").touch()
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", limit)
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 0 if limit == 0 else 2)
    for _ in range(2):
        await world.rename("deep", "a")
        await world.rename("a", "b")
        await world.rename("b", "deep")


async def test_a_large_tree_is_searched_only_where_something_may_be_restored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world, "deep/er/lib")
    await remove(world, "deep/er/lib/HEAD")
    await prepare(world, "d/er/lib")
    for number in range(5):
        await make_above(world, f"d/{number}/{number}")
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 2)
    await world.rename("d", "e")
    await world.rename("deep", "old")
    (world.source / "old").rename(world.source / "elsewhere")
    await refused(world.rename("e", "deep"))
    await world.rename("e/er/lib", "lib2")
    await world.rename("e", "deep")


async def test_one_that_is_too_large_for_that_does_not_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the kind is known in it; it may take the place of one that is gone."""
    await make_above(world, "out/a/b")
    await make_above(world, "new/a/b")
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    await world.rename("out", "old")
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 1)
    await refused(world.rename("new", "out"))
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 2)
    await world.rename("new", "out")
    await world.rename("out", "new")
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 1)
    for path in ("old/a/b", "old/a", "old"):
        await rmdir(world, path)
    await world.rename("new", "out")


async def test_directories_with_removed_names_in_them_are_limited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_names, "MAX_ABOVE", 3)
    put(world, "a/b/c/d")
    await remove(world, "lib/HEAD")
    await refused(remove(world, "a/b/c/d/HEAD"))
    await rmdir(world, "lib/objects")


async def test_what_was_made_here_may_go(world: World) -> None:
    await mkdir(world, "own")
    for _ in range(3):
        await touch(world, "own/HEAD")
        await remove(world, "own/HEAD")
        await mkdir(world, "own/refs")
        await rmdir(world, "own/refs")
        await touch(world, "own/config")
        await world.rename("own/config", "own/config.worktree")
        await remove(world, "own/config.worktree")
    await touch(world, "own/HEAD")
    await world.rename("own", "other")
    await remove(world, "other/HEAD")
    await mkdir(world, "other/refs")


@pytest.mark.parametrize("is_moved", [False, True])
async def test_what_the_host_brings_back_was_not_made_here(world: World, is_moved: bool) -> None:
    """Not even if it is the same object: a share may give its number to another one, too."""
    await mkdir(world, "own")
    await touch(world, "own/HEAD")
    os.link(world.source / "own/HEAD", world.source / "kept")
    if is_moved:
        await world.rename("own/HEAD", "own/text")
    else:
        await remove(world, "own/HEAD")
    (world.source / "kept").rename(world.source / "own/HEAD")
    await remove(world, "own/HEAD")
    await refused(mkdir(world, "own/refs"))


def commit(world: World, path: str = "") -> None:
    """Let the host's git write an index, as it does when it adds a file."""
    (world.source / path / ".git").mkdir(parents=True, exist_ok=True)
    (world.source / path / ".git/new").write_text("index")
    (world.source / path / ".git/new").rename(world.source / path / ".git/index")


@pytest.mark.parametrize("top", ["", "own"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("is_moved", [False, True])
async def test_what_the_host_has_committed_counts(
    world: World, top: str, before: bool, is_moved: bool
) -> None:
    await make_above(world, "own/er")
    if before:
        commit(world, top)
    await touch(world, "own/er/HEAD")
    commit(world, top)
    if is_moved:
        await world.rename("own/er/HEAD", "own/er/text")
    else:
        await remove(world, "own/er/HEAD")
    await refused(mkdir(world, "own/er/refs"))
    await mkdir(world, "own/refs")


async def test_so_does_what_it_is_adding(world: World) -> None:
    await mkdir(world, "own")
    commit(world)
    await touch(world, "own/HEAD")
    (world.source / ".git/index.lock").touch()
    await remove(world, "own/HEAD")
    (world.source / ".git/index.lock").unlink()
    await refused(mkdir(world, "own/refs"))


async def test_so_does_what_is_in_a_worktree_whose_index_is_elsewhere(world: World) -> None:
    (world.source / "own").mkdir()
    (world.source / "own/.git").write_text("gitdir: ../main/.git/worktrees/own\n")
    await mkdir(world, "own/er")
    await touch(world, "own/er/HEAD")
    await remove(world, "own/er/HEAD")
    await refused(mkdir(world, "own/er/refs"))


async def test_other_commits_change_nothing(world: World) -> None:
    (world.source / "other").mkdir()
    await mkdir(world, "own")
    commit(world)
    await touch(world, "own/HEAD")
    commit(world, "other")
    await remove(world, "own/HEAD")
    await mkdir(world, "own/refs")


async def test_so_many_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(removed_names, "MAX_REMOVED", 2)
    await remove(world, "lib/HEAD")
    put(world, "a")
    await remove(world, "a/HEAD")
    put(world, "b")
    await refused(remove(world, "b/HEAD"))
    await refused(world.rename("b/HEAD", "b/x"))
    await refused(world.rename("b", "c"))
    assert caplog.text.count("git may restore") == 1
    (world.source / "lib/HEAD").touch()
    await remove(world, "lib/HEAD")  # known already
    await touch(world, "b/main.c")
    await remove(world, "b/main.c")
    await mkdir(world, "own")
    await touch(world, "own/HEAD")
    await remove(world, "own/HEAD")


async def test_allow_bare_lifts_it(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(allow_bare=True))
    put(world)
    await remove(world, "lib/HEAD")
    await mkdir(world, "lib/refs")
    await touch(world, "lib/config")
    assert sorted(os.listdir(world.source / "lib")) == ["config", "objects", "refs"]
    await world.ops.mkdir(ROOT_ID, b"refs", 0o755, world.ctx)


# A repository that git uses by its path

REPOSITORY = "deep/er/in/repo.git"


@pytest.fixture(params=["small", "large"])
def moved_with_repository(
    world: World, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> World:
    """A host's repository is in ``deep``, which may be too large to be searched."""
    if request.param == "large":
        monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    put(world, REPOSITORY)
    (world.source / REPOSITORY / "refs").mkdir()
    return world


async def test_no_symlink_takes_its_place(moved_with_repository: World) -> None:
    world = moved_with_repository
    await world.rename("deep", "moved")
    await refused(symlink(world, "deep"))
    await refused(symlink(world, "DEEP"))
    await make_above(world, "deep/er")
    await refused(symlink(world, "deep/er/in"))
    await mkdir(world, "deep/er/in")
    await refused(symlink(world, f"{REPOSITORY}"))
    await symlink(world, "deep/er/in/other")
    await symlink(world, "deep/other")


async def test_nor_that_of_a_directory_above(moved_with_repository: World) -> None:
    world = moved_with_repository
    (world.source / "top").mkdir()
    (world.source / "deep").rename(world.source / "top/deep")
    await world.rename("top/deep", "moved")
    await world.rename("top", "moved too")
    await refused(symlink(world, "top"))
    await symlink(world, "top2")


async def test_wherever_it_moved_on_to(moved_with_repository: World) -> None:
    world = moved_with_repository
    await world.rename("deep", "moved")
    await world.rename("moved", "further")
    for name in ("deep", "moved"):
        await refused(symlink(world, name))


async def test_wherever_it_moved_on_to_alone(moved_with_repository: World) -> None:
    """The directory that was moved first no longer holds the repository."""
    world = moved_with_repository
    await world.rename("deep", "moved")
    await world.rename("moved", "moved again")
    await world.rename("moved again/er", "alone")
    await refused(symlink(world, "deep"))
    await refused(symlink(world, "moved"))
    await symlink(world, "other")


async def test_no_directory_brings_such_a_symlink(moved_with_repository: World) -> None:
    world = moved_with_repository
    await make_above(world, "new/er")
    await symlink(world, "new/er/in")
    await world.rename("deep", "moved")
    await refused(world.rename("new", "deep"))
    await remove(world, "new/er/in")
    await symlink(world, "new/er/other")
    await world.rename("new", "deep")


async def test_no_symlink_moves_there(moved_with_repository: World) -> None:
    world = moved_with_repository
    await symlink(world, "link")
    await world.rename("deep", "moved")
    await refused(world.rename("link", "deep"))


async def test_it_is_not_exchanged(moved_with_repository: World) -> None:
    world = moved_with_repository
    await mkdir(world, "new")
    await refused(world.rename("new", "deep", flags=RENAME_EXCHANGE))
    await refused(world.rename("deep", "new", flags=RENAME_EXCHANGE))


async def test_a_symlink_may_take_the_place_of_other_directories(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ``.git`` that the agent could prepare elsewhere there is none."""
    (world.source / "deep/er/.git/refs").mkdir(parents=True)
    (world.source / "deep/er/.git/HEAD").touch()
    (world.source / "deep/er/config").mkdir()
    await world.rename("deep", "small")
    await symlink(world, "deep")
    await remove(world, "deep")
    await world.rename("small", "deep")
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    await world.rename("deep", "large")
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 2)
    await refused(symlink(world, "deep"))
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 10)
    await symlink(world, "deep")


async def test_a_symlink_and_moves_without_end(
    moved_with_repository: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = moved_with_repository
    for old, new in ("deep", "a"), ("a", "b"), ("b", "deep"):
        await world.rename(old, new)
    (world.source / "deep").rename(world.source / "elsewhere")
    monkeypatch.setattr(removed_names, "MAX_PLACES", 1)
    await refused(symlink(world, "deep"))
    monkeypatch.setattr(removed_names, "MAX_PLACES", 9)
    await symlink(world, "deep")


async def test_all_former_places_are_searched_within_one_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    for new in "ab":
        (world.source / "tree/x").mkdir(parents=True)
        await world.rename("tree", new)
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 1)
    await refused(symlink(world, "tree"))
    monkeypatch.setattr(moved_trees, "MAX_ARRIVING", 2)
    await symlink(world, "tree")


async def test_directories_that_are_gone_are_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package manager's directory is moved away and removed, again and again."""
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    monkeypatch.setattr(removed_names, "MAX_PLACES", 3)
    for number in range(5):
        await make_above(world, "modules/er")
        await world.rename("modules", f"old{number}")
        for path in (f"old{number}/er", f"old{number}"):
            await rmdir(world, path)
    await make_above(world, "modules/hooks")
    await symlink(world, "modules/er")


@pytest.mark.parametrize("way", ["it moves on", "what is above it moves on", "a part is removed"])
async def test_but_not_if_they_left_a_trace(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 0)
    put(world, "deep/er")
    await make_above(world, "top")
    await world.rename("deep", "top/old")
    if way == "it moves on":
        await world.rename("top/old", "further")
    elif way == "what is above it moves on":
        await world.rename("top", "further")
    else:
        await remove(world, "top/old/er/HEAD")
        for path in ("top/old/er/objects", "top/old/er", "top/old"):
            await rmdir(world, path)
    await make_above(world, "deep/more")
    await world.rename("deep", "other")
    await make_above(world, "deep/er")
    await refused(mkdir(world, "deep/er/refs"))
