"""The tables of one daemon in the next: every node is looked up again before it is relied on."""

import errno
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gitguardfs.base.protocol import NodeId, RequestError
from gitguardfs.fs.files import Files
from gitguardfs.fs.nodes import FIRST_OWN_ID, ROOT_ID, UNJUDGED
from gitguardfs.names.rules import GitMode, GuardRules, Verdict
from gitguardfs.options.change_policy import SymlinkPolicy
from gitguardfs.sessions.kernel_session.abi import Opcode
from gitguardfs.sessions.kernel_session.notes import Notes, Opened, read_notes
from tests.adapter.conftest import MakeWorld
from tests.adapter.test_numbers import every_source
from tests.adapter.world import Later, World, read, refused

Successor = Callable[..., World]


@pytest.fixture(params=["end", "kill"])
def successor(make_world: MakeWorld, request: pytest.FixtureRequest) -> Successor:
    """Return a function that makes the next daemon's world, after a step of the host."""

    def make(world: World, meanwhile: Callable[[], None] = lambda: None, **kind: object) -> World:
        kept: dict[str, int] = {}
        if request.param == "end":
            former = world.view.saved(kept)
        else:
            handles = world.tree.handles.files.items()
            files = {n: Opened(h.node.id, h.flags, 0, 0, h.changed_ns) for n, h in handles}
            notes = Notes(world.view, lambda _: None, files, {})
            former = read_notes(notes.fd)[0]
            notes.close()
        world.tree.close()  # no descriptor is left
        meanwhile()
        following = make_world(**kind)
        following.view.restore(former, kept)
        assert not kept
        return following

    return make


at_an_end = pytest.mark.parametrize("successor", ["end"], indirect=True)
"""Marks a test of what is not noted in case of a kill: descriptors, snapshots, forgotten places."""


@every_source
async def test_a_node_is_what_it_was(
    make_world: MakeWorld, successor: Successor, kind: dict[str, bool]
) -> None:
    world = make_world(**kind)
    (world.source / "d/e").mkdir(parents=True)
    (world.source / "d/e/file").write_text("text")
    number, directory = await world.id("d/e/file"), await world.id("d/e")
    following = successor(world, **kind)
    assert await read(following, number) == b"text"
    assert int((await following.ops.lookup(directory, b"file", following.ctx)).st_ino) == number
    (world.source / "d/e/new").write_text("new")
    assert await following.ops.lookup(directory, b"new", following.ctx)
    node = following.tree.nodes.by_id[number]
    assert node.lookup_count == 2
    following.tree.forget(node.id, 2)
    assert number not in following.tree.nodes.by_id


@every_source
async def test_another_object_at_its_place_is_stale(
    make_world: MakeWorld, successor: Successor, kind: dict[str, bool]
) -> None:
    world = make_world(**kind)
    (world.source / "d").mkdir()
    (world.source / "d/file").write_text("text")
    file, directory = await world.id("d/file"), await world.id("d")
    following = successor(world, **kind)
    (world.source / "d").rename(world.source / "away")
    shutil.copytree(world.source / "away", world.source / "d")
    for number in (file, directory):
        await refused(following.ops.getattr(number, following.ctx), errno.ESTALE)
    await refused(following.ops.lookup(directory, b"file", following.ctx), errno.ESTALE)
    assert await read(following, await following.id("d/file")) == b"text"


@every_source
async def test_what_was_guarded_meanwhile_is_closed(
    make_world: MakeWorld, successor: Successor, kind: dict[str, bool]
) -> None:
    """A process stays in the directory, so the kernel never looks it up."""
    world = make_world(**kind)
    (world.source / "d/e").mkdir(parents=True)
    (world.source / "d/e/file").write_text("text")
    file, directory = await world.id("d/e/file"), await world.id("d/e")
    handle = await world.open("d/e/file", os.O_WRONLY)

    def make_repository() -> None:
        for name in ("objects", "refs"):
            (world.source / "d" / name).mkdir()
        (world.source / "d/HEAD").write_text("ref: refs/heads/main\n")

    following = successor(world, make_repository, **kind)
    closed = errno.EACCES, errno.ESTALE
    await refused(following.ops.open(file, os.O_RDONLY, following.ctx), *closed)
    await refused(following.ops.lookup(directory, b"file", following.ctx), *closed)
    await refused(following.ops.write(handle, 0, b"hook"), errno.ESTALE)
    assert (world.source / "d/e/file").read_text() == "text"
    await following.ops.release(handle)


@every_source
async def test_what_git_may_soon_run_is_not_opened_again_for_writing(
    make_world: MakeWorld, successor: Successor, kind: dict[str, bool]
) -> None:
    world = make_world(**kind)
    (world.source / "d").mkdir()
    (world.source / "d/config").write_text("text")
    handle = await world.open("d/config", os.O_WRONLY)

    def make_half_a_repository() -> None:
        for name in ("objects", "refs"):
            (world.source / "d" / name).mkdir()

    following = successor(world, make_half_a_repository, **kind)
    await refused(following.ops.write(handle, 0, b"hook"), errno.ESTALE)
    assert (world.source / "d/config").read_text() == "text"


async def test_a_renamed_rule_counts_for_nodes_of_before(
    world: World, successor: Successor
) -> None:
    """As if a new version guarded more names."""
    (world.source / "hooks").mkdir()
    (world.source / "hooks/run").write_text("text")
    number = await world.id("hooks/run")
    following = successor(world, rules=GuardRules(deny=("hooks",)))
    await refused(following.ops.open(number, os.O_RDONLY, following.ctx), errno.ESTALE)
    await refused(following.id("hooks/run"), errno.EACCES)


@pytest.mark.parametrize("mode", [GitMode.DENY, GitMode.READONLY])
async def test_a_guarded_node_stays_guarded(
    make_world: MakeWorld, successor: Successor, mode: GitMode
) -> None:
    world = make_world(rules=GuardRules(mode))
    (world.source / ".git").mkdir()
    (world.source / ".git/config").write_text("text")
    number = await world.id(".git")
    following = successor(world, rules=GuardRules(mode))
    assert await following.ops.getattr(number, following.ctx)
    await refused(following.ops.create(number, b"x", 0o644, os.O_RDWR, following.ctx))
    assert await following.id(".git") == number
    if mode is GitMode.READONLY:
        assert await read(following, await following.id(".git/config")) == b"text"


async def test_a_number_of_our_own_is_never_given_again(world: World, successor: Successor) -> None:
    for name in ("a", "b"):
        (world.source / name / ".git").mkdir(parents=True)
    first = await world.id("a/.git")
    world.tree.forget(world.tree.nodes.by_id[first].id, 1)
    following = successor(world)
    assert first >= FIRST_OWN_ID
    assert await following.id("b/.git") > first


@pytest.mark.parametrize("kind", [os.mkdir, os.mknod], ids=lambda kind: kind.__name__)
async def test_the_number_of_what_is_gone_is_not_given_again(
    world: World, successor: Successor, kind: Callable[[Path], None]
) -> None:
    """The kernel still knows it, as the working directory of a process that was removed."""
    kind(world.source / "gone")
    number = await world.id("gone")
    world.tree.nodes.by_id[number].parent = None  # the file system has reused the inode's number
    following = successor(world)
    await refused(following.ops.getattr(number, following.ctx), errno.ESTALE)
    assert await following.id("gone") >= FIRST_OWN_ID
    following.tree.forget(NodeId(number), 1)
    assert number not in following.tree.nodes.by_id


@at_an_end
async def test_a_file_that_has_lost_one_of_two_names_stays_one_file(
    world: World, successor: Successor
) -> None:
    (world.source / "file").touch()
    (world.source / "link").hardlink_to(world.source / "file")
    handle, number = await world.open("file", os.O_RDWR), await world.id("file")
    await world.ops.unlink(ROOT_ID, b"file", world.ctx)
    following = successor(world)
    assert await following.id("link") == number
    await following.ops.release(handle)


@at_an_end
@every_source
async def test_a_file_is_found_in_a_directory_that_the_kernel_has_forgotten(
    make_world: MakeWorld, successor: Successor, kind: dict[str, bool]
) -> None:
    world = make_world(**kind)
    for name in ("one", "two"):
        (world.source / name).mkdir()
    (world.source / "one/file").write_text("text")
    (world.source / "two/file").hardlink_to(world.source / "one/file")
    number, above = await world.id("one/file"), await world.id("two")
    assert await world.id("two/file") == number
    world.tree.forget(NodeId(above), 2)
    following = successor(world, **kind)
    assert await read(following, number) == b"text"


@at_an_end
async def test_a_directory_that_the_host_has_moved_is_found(
    world: World, successor: Successor, later: Later
) -> None:
    (world.source / "d/e").mkdir(parents=True)
    (world.source / "d/e/file").touch()
    number = await world.id("d/e")
    (world.source / "other").mkdir()
    (world.source / "d/e").rename(world.source / "other/e")
    later()
    assert await world.ops.lookup(number, b"file", world.ctx)
    following = successor(world)
    assert await following.ops.lookup(number, b"file", following.ctx)


async def test_handles_keep_their_numbers(world: World, successor: Successor) -> None:
    (world.source / "one").write_text("one")
    (world.source / "two").write_text("two")
    one, two = await world.open("one", os.O_RDWR | os.O_APPEND), await world.open("two")
    (world.source / "new").write_text("new")
    (world.source / "new").rename(world.source / "two")
    following = successor(world)
    await following.ops.write(one, 0, b"more")
    assert (world.source / "one").read_text() == "onemore"
    await refused(following.ops.read(two, 0, 10), errno.ESTALE)
    assert await following.open("one") > two
    for handle in (one, two):
        await following.ops.release(handle)
    with pytest.raises(RequestError):
        following.view.serve("read", None, 10**6, 0, 10)


@at_an_end
@every_source
async def test_a_file_without_a_name_is_handed_over(
    make_world: MakeWorld, successor: Successor, kind: dict[str, bool]
) -> None:
    world = make_world(**kind)
    handle, node = await world.create(ROOT_ID, b"file")
    await world.ops.unlink(ROOT_ID, b"file", world.ctx)
    (world.source / "other").mkdir()
    other = world.tree.nodes.by_id[await world.id("other")]
    world.tree.nodes.restrict_below(other, Verdict.DENY, "a repository elsewhere")
    following = successor(world, **kind)
    await following.ops.write(handle, 0, b"text")
    assert bytes(await following.ops.read(handle, 0, 10)) == b"text"
    if not kind.get("is_ninep"):
        assert (await following.ops.getattr(node, following.ctx)).st_size == 4
    (world.source / "file").touch()
    assert await following.id("file") != node
    await following.ops.release(handle)


@at_an_end
async def test_a_file_that_the_server_does_not_open_again_is_handed_over(
    world: World, successor: Successor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git's new objects, which have mode 0444."""
    handle, _ = await world.create(ROOT_ID, b"object")

    def fail(*_: object) -> int:
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(Files, "_open", fail)
    following = successor(world)
    await following.ops.write(handle, 0, b"text")
    await following.ops.release(handle)
    assert (world.source / "object").read_text() == "text"


@every_source
async def test_a_handed_over_file_must_be_the_one_at_its_place(
    make_world: MakeWorld, successor: Successor, kind: dict[str, bool]
) -> None:
    world = make_world(**kind)
    (world.source / "file").write_text("old")
    handle = await world.open("file", os.O_WRONLY)

    def replace() -> None:
        (world.source / "new").write_text("new")
        (world.source / "new").rename(world.source / "file")

    following = successor(world, replace, **kind)
    await refused(following.ops.write(handle, 0, b"text"), errno.ESTALE)
    await following.ops.release(handle)


@at_an_end
async def test_a_listing_goes_on_where_it_was(world: World, successor: Successor) -> None:
    for number in range(20):
        (world.source / f"{number}").touch()
    handle = await world.ops.opendir(ROOT_ID, world.ctx)
    names: list[bytes] = []

    def add(entry: tuple[bytes, ...]) -> bool:
        names.append(entry[0])
        return len(names) % 8 != 0 or not names.pop()

    world.view.serve("readdir", None, handle, 0, add)
    assert len(names) == 7
    following = successor(world)
    for number in range(20, 40):
        (world.source / f"{number}").touch()
    following.view.serve("readdir", None, handle, 7, lambda entry: not names.append(entry[0]))
    assert sorted(names) == sorted([b".", b"..", *(b"%d" % number for number in range(20))])


async def test_a_tree_with_resolved_symlinks_is_not_taken_over(make_world: MakeWorld) -> None:
    assert not make_world(symlinks=SymlinkPolicy()).view.can_be_taken_over


async def test_requests_under_way_are_noted_whenever_notes_are_shortened(world: World) -> None:
    notes = Notes(world.view, lambda _: None, {}, {})
    with mmap.mmap(-1, mmap.PAGESIZE) as request:
        for unique in (2, 4):
            assert notes.begins(Opcode.MKDIR, unique, request, ROOT_ID)
        notes.done(4, None)
        notes.shorten()
        assert {unique: one.result for unique, one in read_notes(notes.fd)[2].items()} == {
            2: None, 4: 0
        }  # fmt: skip
    notes.close()


async def test_only_what_is_used_is_looked_up(world: World, successor: Successor) -> None:
    (world.source / "d").mkdir()
    (world.source / "d/file").touch()
    await world.id("d/file")
    following = successor(world)
    nodes = [node for node in following.tree.nodes if node.id != ROOT_ID]
    assert [node.restrictions for node in nodes] == [UNJUDGED, UNJUDGED]
