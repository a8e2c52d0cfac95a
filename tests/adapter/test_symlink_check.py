"""Symlinks through which git on the host would write where it must not."""

from __future__ import annotations

import errno
import os
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from gitguardfs.fs import walk
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.symlink_check import TOO_LONG
from gitguardfs.guard.rules import GitMode, GuardRules
from gitguardfs.protocol import RENAME_EXCHANGE
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import FAILED, World, count_calls, refused

RULES = GuardRules(protect=(".github",), deny=("secrets",), hide=(".idea",))


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A repository, a bare one, directories that are protected, and links of the host's."""
    world = make_world(rules=RULES)
    source = world.source
    for name in (".git/hooks", ".github/workflows", "secrets", ".idea", "a/b/deep", "src", "q"):
        (source / name).mkdir(parents=True)
    for name in ("store.git/refs", "store.git/hooks", "nested/.git"):
        (source / name).mkdir(parents=True)
    (source / "store.git/HEAD").write_text("ref: refs/heads/main\n")
    (source / ".github/AGENTS.md").write_text("")
    (source / "a/b/file").write_text("")
    for name, target in {
        "meta": ".git",
        "up": "..",
        "store": "store.git",
        "absolute": "/host/projects/store.git",
        "loop": "loop",
        "ci": ".github",
    }.items():
        (source / name).symlink_to(target)
    return world


REFUSED = [
    ".git",
    ".git/hooks",
    "nowhere/.GIT/hooks",
    "/elsewhere/on/the/host/git~1",
    "store.git",
    "store.git/hooks",
    "store.git/hooks/new",
    "store.git/HEAD",
    "src/../store.git",
    "./meta",
    "meta/hooks",
    "a/b/../../meta",
    "store/hooks",
    "absolute/hooks",
    "/host/projects/store.git/hooks",
    "/host/projects/meta",
    "../../projects/store.git/hooks",
    "up/store.git",
    ".github",
    ".github/workflows",
    ".github/nothing-yet",
    "ci/workflows",
    "/host/projects/.github",
    "secrets",
    "secrets/x",
    ".idea/x",
    "nested/../store.git",
]

FREE = [
    "src",
    "a/b/file",
    "../a",
    "../../elsewhere/package",
    "nothing/there",
    "/usr/bin/python3",
    "/",
    ".",
    "loop/x",
    ".github/AGENTS.md",
    ".github/../src",
    "a/b/file/x",
    "user@host.1234:567",
    ".gitignore",
    "/host/projects/src",
    "x" * 300,
    ".githubx",
]


@pytest.mark.parametrize("text", REFUSED)
async def test_a_symlink_into_a_repository_or_a_protected_directory(
    world: World, text: str
) -> None:
    await refused(world.ops.symlink(ROOT_ID, b"link", text.encode(), world.ctx))
    assert not (world.source / "link").is_symlink()


@pytest.mark.parametrize("text", FREE)
async def test_ordinary_symlinks_stay_free(world: World, text: str) -> None:
    await world.ops.symlink(ROOT_ID, b"link", text.encode(), world.ctx)
    assert os.readlink(world.source / "link") == text


async def test_it_is_walked_from_where_it_stands(world: World) -> None:
    deep = await world.id("a/b/deep")
    await world.ops.symlink(deep, b"link", b"../meta", world.ctx)
    await refused(world.ops.symlink(deep, b"other", b"../../../meta", world.ctx))
    await refused(world.rename("a/b/deep/link", "q/link"))
    assert (world.source / "a/b/deep/link").is_symlink()
    await world.rename("a/b/deep/link", "a/b/link")


@pytest.mark.parametrize(("text", "is_free"), [
    ("/proc/self/cwd/r.git/hooks", False),
    ("/proc/123/cwd/deep/../r.git", False),
    ("/proc/self/task/5/cwd/b/r.git", False),
    ("/proc/self/cwd/store.git/hooks", False),
    ("../../../../../proc/self/cwd/r.git/hooks", False),
    ("/dev/fd/7/r.git/hooks", False),
    ("by-process/r.git/hooks", False),
    ("/host/r.git/hooks", True),
    ("/proc/self/fd/1", True),
    ("/proc/self/cwd/file", True),
    ("/dev/null", True),
])  # fmt: skip
async def test_a_path_by_a_process_starts_at_any_directory_above(
    world: World, text: str, is_free: bool
) -> None:
    """git runs at the top of a work tree, which need not be that of the source."""
    (world.source / "a/b/r.git/refs").mkdir(parents=True)
    (world.source / "a/b/r.git/HEAD").touch()
    (world.source / "a/b/deep/by-process").symlink_to("/proc/self/cwd")
    deep = await world.id("a/b/deep")
    if is_free:
        await world.ops.symlink(deep, b"link", text.encode(), world.ctx)
    else:
        await refused(world.ops.symlink(deep, b"link", text.encode(), world.ctx))


async def test_what_a_link_means_is_judged_whenever_it_gets_a_name(world: World) -> None:
    """A moved symlink is not checked at its new place, but none moves while git holds its lock."""
    await world.ops.symlink(ROOT_ID, b"link", b"later/store.git/hooks", world.ctx)
    await world.ops.symlink(ROOT_ID, b"later", b".", world.ctx)
    await refused(world.rename("link", "moved"))
    link = await world.id("link")
    await refused(world.ops.link(link, ROOT_ID, b"linked", world.ctx))
    await refused(world.ops.symlink(ROOT_ID, b"new", b"later/store.git/hooks", world.ctx))


async def test_neither_by_a_hard_link_nor_by_an_exchange(world: World) -> None:
    (world.source / "a/b/deep/link").symlink_to("../meta")
    (world.source / "q/other").symlink_to("nowhere")
    node = await world.id("a/b/deep/link")
    q = await world.id("q")
    await refused(world.ops.link(node, q, b"linked", world.ctx))
    await refused(world.rename("a/b/deep/link", "q/other", RENAME_EXCHANGE))
    await refused(world.rename("q/other", "a/b/deep/link", RENAME_EXCHANGE))
    assert os.listdir(world.source / "q") == ["other"]


async def test_a_link_of_the_host_s_can_be_removed(world: World) -> None:
    await refused(world.rename("meta", "renamed"))
    await world.ops.unlink(ROOT_ID, b"meta", world.ctx)


async def test_a_symlink_and_a_directory_are_not_exchanged(world: World) -> None:
    (world.source / "link").symlink_to("nowhere")
    (world.source / "file").touch()
    await refused(world.rename("link", "src", RENAME_EXCHANGE))
    await refused(world.rename("src", "link", RENAME_EXCHANGE))
    await world.rename("src", "q", RENAME_EXCHANGE)
    await world.rename("link", "file", RENAME_EXCHANGE)


async def test_a_way_without_end_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_STEPS", 20)
    await refused(world.ops.symlink(ROOT_ID, b"link", b"src/../" * 11, world.ctx))


CHAINS = {"of itself": ("/c" * 1400, 1), "of others": ("./a/../" * 500 + "c", 39)}


@pytest.mark.parametrize("chain", CHAINS)
async def test_components_of_links_count_before_they_are_walked(world: World, chain: str) -> None:
    """The rest of a path never becomes long, however many links add to it."""
    text, length = CHAINS[chain]
    for number in range(length):
        (world.source / f"c{number or ''}").symlink_to(text + (f"{number + 1}" if number else ""))
    tracemalloc.start()
    try:
        answer = world.state.host._symlink_check.why_refused(world.state.nodes.root, b"/x/c" * 500)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer == TOO_LONG
    assert used < 1_000_000


async def test_climbing_out_of_a_deep_directory_opens_only_where_it_ends(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(descriptor_limit=16)
    depth = 200
    (world.source / Path(*["d"] * depth)).mkdir(parents=True)
    deep = world.state.nodes.get(await world.id("d/" * depth))
    calls = count_calls(monkeypatch, world.state.descriptors, "open")
    assert world.state.host._symlink_check.why_refused(deep, b"../" * (depth - 1)) == ""
    assert len(calls) < 3 * depth


async def test_an_error_on_the_way_is_no_permission(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_at = world.state.source.find_at

    def failing(dir_fd: int, name: bytes) -> os.stat_result | None:
        if name == b"store":
            raise OSError(errno.EIO, "")
        return find_at(dir_fd, name)

    monkeypatch.setattr(world.state.source, "find_at", failing)
    await refused(world.ops.symlink(ROOT_ID, b"link", b"store/hooks", world.ctx), errno.EIO)
    assert not (world.source / "link").is_symlink()


async def test_without_the_guard_all_are_free(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(git=GitMode.OFF))
    (world.source / ".git").mkdir()
    await world.ops.symlink(ROOT_ID, b"link", b".git/hooks", world.ctx)
    await world.rename("link", ".git", RENAME_EXCHANGE)


async def test_no_descriptor_is_left(world: World) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for number, text in enumerate([*REFUSED, *FREE] * 2):
        with suppress(*FAILED):
            await world.ops.symlink(ROOT_ID, b"l%d" % number, text.encode(), world.ctx)
    known = len(world.state.nodes)
    assert len(os.listdir("/proc/self/fd")) - len(before) <= known


async def test_a_look_along_a_long_way_takes_no_descriptor_away(make_world: MakeWorld) -> None:
    """More of the directories above are opened than descriptors are kept."""
    world = make_world(descriptor_limit=0)
    deep = "/".join(f"d{number}" for number in range(30))
    for number in range(31):
        (world.source / "/".join(deep.split("/")[:number]) / "x").mkdir(parents=True)
    (world.source / deep / "link").symlink_to("../x/.." + "/../x/.." * 29)
    (world.source / deep / "file").write_text("text")
    await world.rename(f"{deep}/link", f"{deep}/file")
    assert os.listdir(world.source / deep / "x") == []
    assert (world.source / deep / "file").is_symlink()
