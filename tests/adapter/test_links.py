"""Symlinks that are resolved: what is shown in their place, and what never is."""

import os
from collections.abc import Awaitable, Callable
from stat import S_IFLNK, S_IFMT, S_IFREG, S_IMODE

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names.rules import GitMode, GuardRules
from gitguardfs.options.change_policy import Deletion, SymlinkPolicy
from gitguardfs.options.idmap import IdMap
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, read, refused


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A project with ordinary things, guarded things, and things outside of it."""
    world = make_world(symlinks=SymlinkPolicy())
    fill(world)
    return world


def fill(world: World) -> None:
    top = world.source
    (top.parent / "outside").mkdir(exist_ok=True)
    (top.parent / "outside/file").write_text("outside")
    (top / "dir/sub").mkdir(parents=True)
    (top / "dir/sub/file").write_text("content")
    (top / "dir/file").write_text("near")
    (top / ".git").mkdir()
    (top / ".git/config").write_text("secret")
    (top / "bare/refs").mkdir(parents=True)
    (top / "bare/HEAD").write_text("ref: refs/heads/x")
    (top / "bare/config").write_text("secret")


def link(world: World, name: str, target: str) -> None:
    (world.source / name).symlink_to(target)


FORBIDDEN = [
    "../outside/file", "../outside", "..", "dir/../../outside/file", "/etc/passwd", "/",
    "{source}/../outside/file", "{source}x", ".git", ".git/config", ".GIT/config", "git~1",
    "dir/../.git/config", "way/config", "bare", "bare/config", "{source}/.git/config",
    "dir/sub/../../.git", "secret.pem", ".git/nowhere",
]  # fmt: skip


@pytest.mark.parametrize("target", FORBIDDEN)
async def test_what_leads_out_or_to_something_guarded_is_denied(
    make_world: MakeWorld, target: str
) -> None:
    world = make_world(symlinks=SymlinkPolicy(), rules=GuardRules(deny=("*.pem",)))
    fill(world)
    (world.source / "secret.pem").write_text("secret")
    link(world, "way", ".git")
    link(world, "link", target.format(source=world.source))
    before = sorted(os.listdir(world.source / ".git"))
    for entry in (await world.entry("link"), (await world.list(""))[b"link"]):
        assert (entry.st_mode, entry.st_uid, entry.st_gid) == (S_IFLNK, 0, 0)
    node = entry.st_ino
    await refused(world.ops.readlink(node, world.ctx))
    await refused(world.ops.open(node, os.O_RDONLY, world.ctx))
    await refused(world.ops.lookup(node, b"config", world.ctx))
    await refused(world.ops.opendir(node, world.ctx))
    await refused(world.setattr(node, mode=0o777))
    await refused(world.ops.link(node, ROOT_ID, b"copy", world.ctx))
    assert sorted(os.listdir(world.source / ".git")) == before


async def test_a_link_that_comes_to_lead_to_something_guarded_is_denied(world: World) -> None:
    link(world, "link", "dir/file")
    assert await read(world, await world.id("link")) == b"near"
    (world.source / "link").unlink()
    link(world, "link", ".git/config")
    assert (await world.entry("link")).st_mode == S_IFLNK


async def test_what_lies_behind_is_closed_when_a_directory_on_the_way_becomes_git(
    world: World,
) -> None:
    (world.source / "other").mkdir()
    os.rename(world.source / "dir", world.source / "other/dir")
    link(world, "link", "other/dir/file")
    node = (await world.entry("link")).st_ino
    os.rename(world.source / "other/dir", world.source / "other/.git")
    await world.list("other")
    await refused(world.ops.open(node, os.O_RDONLY, world.ctx))


@pytest.mark.parametrize("target", [".git/config", "../outside/file"])
async def test_nothing_is_moved_over_what_must_not_be_reached(world: World, target: str) -> None:
    link(world, "link", target)
    (world.source / "newer").write_text("newer")
    await refused(world.rename("newer", "link"))
    assert (world.source / ".git/config").read_text() == "secret"
    assert (world.source.parent / "outside/file").read_text() == "outside"
    assert (world.source / "newer").exists() and (world.source / "link").is_symlink()


@pytest.mark.parametrize("deletion", [Deletion.SYMLINK_FIRST, Deletion.TARGET_FIRST])
@pytest.mark.parametrize("target", [".git/config", "bare/config"])
async def test_what_may_only_be_read_is_not_removed_by_a_link(
    make_world: MakeWorld, deletion: Deletion, target: str
) -> None:
    world = make_world(symlinks=SymlinkPolicy(deletion), rules=GuardRules(GitMode.READONLY))
    fill(world)
    link(world, "link", target)
    assert await read(world, await world.id("link")) == b"secret"
    await refused(world.ops.unlink(ROOT_ID, b"link", world.ctx))
    assert (world.source / "link").read_text() == "secret"


async def _unlinked(world: World) -> None:
    await world.ops.unlink(await world.id("mine"), b"l", world.ctx)


async def _renamed_over(world: World) -> None:
    await world.rename("mine/new", "mine/l")


async def _exchanged(world: World) -> None:
    await world.rename("mine/new", "mine/l", RENAME_EXCHANGE)


@pytest.mark.parametrize("deletion", [Deletion.SYMLINK_FIRST, Deletion.TARGET_FIRST])
@pytest.mark.parametrize("change", [_unlinked, _renamed_over, _exchanged])
@pytest.mark.parametrize(
    ("mode", "owner", "group", "is_theirs"),
    [
        (0o755, 0, 0, False),
        (0o775, 0, 1000, True),
        (0o757, 0, 0, False),
        (0o777, 0, 0, True),
        (0o1777, 0, 0, False),
        (0o1777, 1000, 0, True),
        (0o722, 0, 0, False),
        (0o755, 1000, 0, True),
        (0o077, 1000, 1000, False),
    ],
)
async def test_a_link_gives_no_right_to_its_target_s_directory(
    make_world: MakeWorld,
    deletion: Deletion,
    change: Callable[[World], Awaitable[None]],
    mode: int,
    owner: int,
    group: int,
    is_theirs: bool,
) -> None:
    """The kernel looks at the rights in the directory where the link stands."""
    world = make_world(symlinks=SymlinkPolicy(deletion))
    for path in ("etc", "mine"):
        (world.source / path).mkdir()
    (world.source / "etc/passwd").write_text("root's")
    (world.source / "mine/new").write_text("the agent's")
    link(world, "mine/l", "../etc/passwd")
    os.chmod(world.source / "etc", mode)
    os.chown(world.source / "etc", owner, group)
    world.ctx.uid = world.ctx.gid = 1000
    if is_theirs:
        await change(world)
        assert not (world.source / "etc/passwd").exists() or (
            (world.source / "etc/passwd").read_text() == "the agent's"
        )
        return
    await refused(change(world))
    assert (world.source / "etc/passwd").read_text() == "root's"
    assert (world.source / "mine/l").is_symlink()
    assert (world.source / "mine/new").read_text() == "the agent's"


@pytest.mark.parametrize("deletion", [Deletion.SYMLINK_FIRST, Deletion.TARGET_FIRST])
@pytest.mark.parametrize("change", [_unlinked, _renamed_over, _exchanged])
@pytest.mark.parametrize("payload", ["config", "hooks/post-update", "hooks/lib/run"])
async def test_a_link_is_no_way_to_the_payload_of_half_a_repository(
    make_world: MakeWorld,
    deletion: Deletion,
    change: Callable[[World], Awaitable[None]],
    payload: str,
) -> None:
    world = make_world(symlinks=SymlinkPolicy(deletion))
    target = world.source / "half" / payload
    for path in (target.parent, world.source / "half/refs", world.source / "half/objects"):
        path.mkdir(parents=True, exist_ok=True)
    (world.source / "mine").mkdir()
    target.write_text("human's")
    (world.source / "mine/new").write_text("the agent's")
    link(world, "mine/l", f"../half/{payload}")
    await refused(change(world))
    assert target.read_text() == "human's"
    assert (world.source / "mine/l").is_symlink()
    assert (world.source / "mine/new").read_text() == "the agent's"


async def test_by_what_the_view_shows(make_world: MakeWorld) -> None:
    """The share's user 501 is the guest's 1000."""
    idmap = IdMap([(501, 1000)])
    world = make_world(symlinks=SymlinkPolicy(Deletion.TARGET_FIRST), idmap=idmap)
    (world.source / "dir").mkdir()
    (world.source / "dir/file").touch()
    link(world, "l", "dir/file")
    os.chown(world.source / "dir", 501, 0)
    world.ctx.uid = world.ctx.gid = 1000
    await world.ops.unlink(ROOT_ID, b"l", world.ctx)
    assert os.listdir(world.source / "dir") == []


async def test_a_directory_lives_on_when_only_a_link_to_it_was_removed(world: World) -> None:
    """The kernel believes that the node behind the link is removed."""
    link(world, "way", "dir")
    real, behind = await world.id("dir"), await world.id("way")
    await world.ops.rmdir(ROOT_ID, b"way", world.ctx)
    assert await world.id("dir") == real
    assert set(await world.list("dir")) == {b"sub", b"file"}
    link(world, "way", "dir")
    assert await world.id("way") not in (real, behind)


async def test_all_ways_to_a_directory_are_closed_when_it_becomes_git(world: World) -> None:
    (world.source / "other").mkdir()
    os.rename(world.source / "dir", world.source / "other/dir")
    for name in ("one", "two"):
        link(world, name, "other/dir")
    tops = [await world.id(name) for name in ("one", "two", "other/dir")]
    inner = [await world.id(f"{name}/sub") for name in ("one", "two", "other/dir")]
    os.rename(world.source / "other/dir", world.source / "other/.git")
    await world.list("other")
    for node in (*tops, *inner):
        await refused(world.ops.opendir(node, world.ctx))
        await refused(world.ops.lookup(node, b"file", world.ctx))


async def test_directories_on_ways_leave_nothing_behind(world: World) -> None:
    """Users may make and remove a directory on the path of the host's link many times."""
    link(world, "link", "made/file")
    for _ in range(3):
        entry = await world.ops.mkdir(ROOT_ID, b"made", 0o755, world.ctx)
        handle, _ = await world.create(entry.st_ino, b"file")
        await world.ops.release(handle)
        listed = await world.list("")
        assert S_IFMT(listed[b"link"].st_mode) == S_IFREG
        await world.ops.unlink(entry.st_ino, b"file", world.ctx)
        await world.ops.rmdir(ROOT_ID, b"made", world.ctx)
        told = {node.id: node.lookup_count for node in world.tree.nodes if node.id != ROOT_ID}
        assert not any(node.is_pinned for node in world.tree.nodes)
        await world.ops.forget([(number, times) for number, times in told.items() if times])
        assert len(world.tree.nodes) == 1


async def test_a_link_with_a_name_that_is_too_long_stays_a_symlink(world: World) -> None:
    link(world, "link", "x" * 300)
    assert S_IFMT((await world.entry("link")).st_mode) == S_IFLNK
    await world.ops.unlink(ROOT_ID, b"link", world.ctx)


async def test_a_deep_way_needs_no_more_descriptors_than_there_are(make_world: MakeWorld) -> None:
    world = make_world(symlinks=SymlinkPolicy(), descriptor_limit=1)
    deep = "/".join(f"d{i}" for i in range(60))
    (world.source / deep).mkdir(parents=True)
    (world.source / deep / "file").write_text("deep")
    for i in range(30):
        link(world, f"link{i}", f"{deep}/file")
    found = await world.list("")
    assert all(S_IFMT(found[b"link%d" % i].st_mode) == S_IFREG for i in range(30))
    assert await read(world, await world.id("link7")) == b"deep"
    (world.source / "newer").write_text("newer")
    await world.rename("newer", "link3")
    await world.ops.unlink(ROOT_ID, b"link4", world.ctx)
    assert (world.source / deep / "file").read_text() == "newer"
    assert not os.path.lexists(world.source / "link4")


async def test_a_link_that_leads_nowhere_is_replaced_where_descriptors_hold_paths(
    make_world: MakeWorld,
) -> None:
    """Resolving the link takes a new descriptor of the directory that it is in."""
    world = make_world(symlinks=SymlinkPolicy(), is_ninep=True)
    fill(world)
    link(world, "dir/l", "../dir/nowhere")
    await world.rename("dir/file", "dir/l")
    assert (world.source / "dir/l").read_text() == "near"


async def test_an_absolute_link_starts_at_the_root(world: World) -> None:
    (world.source / "top").write_text("at the root")
    (world.source / "dir/top").write_text("beside the link")
    link(world, "dir/l", f"{world.source}/top")
    assert await read(world, await world.id("dir/l")) == b"at the root"


async def test_no_way_leads_through_what_is_denied(world: World) -> None:
    """Not even if it ends elsewhere: that would show what the denied directory holds."""
    (world.source / "bare/hooks").mkdir()
    link(world, "l", "bare/hooks/../../dir/file")
    entry = await world.entry("l")
    assert (S_IFMT(entry.st_mode), S_IMODE(entry.st_mode)) == (S_IFLNK, 0)


async def test_what_lies_behind_a_link_is_closed_with_the_way_to_it(world: World) -> None:
    """That holds if the kernel has forgotten the directories on the path, too."""
    (world.source / "outer/inner").mkdir(parents=True)
    link(world, "l", "outer/inner")
    inner = await world.id("l")
    outer = await world.id("outer")
    await world.ops.forget([(outer, 1)])
    (world.source / ".git").rename(world.source / "git.old")
    (world.source / "outer").rename(world.source / ".git")
    await world.id(".git")
    await refused(world.create(inner, b"new"))
    assert os.listdir(world.source / ".git/inner") == []
