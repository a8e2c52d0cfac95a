"""Lookup counts and descriptors: nothing is left when the kernel has forgotten everything."""

import os
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from stat import S_IFREG

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.fs.nodes import ROOT_ID
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import FAILED, Token, World, open_descriptors, stand_ins

FEW = 16
"""Descriptors that are cached: fewer than the tests have directories."""


def lookups(world: World, node: int) -> int:
    return world.tree.nodes.get(node).lookup_count


async def test_each_reply_that_names_a_node_counts_once(world: World) -> None:
    ctx = world.ctx
    made = [
        await world.ops.mkdir(ROOT_ID, b"d", 0o755, ctx),
        await world.ops.mknod(ROOT_ID, b"n", S_IFREG | 0o644, 0, ctx),
        await world.ops.symlink(ROOT_ID, b"s", b"n", ctx),
    ]
    info, created = await world.ops.create(ROOT_ID, b"c", 0o644, os.O_RDWR, ctx)
    await world.ops.release(info.fh)
    for entry in (*made, created):
        assert lookups(world, entry.st_ino) == 1
    number = created.st_ino
    await world.ops.lookup(ROOT_ID, b"c", ctx)
    assert lookups(world, number) == 2
    assert (await world.ops.link(number, ROOT_ID, b"l", ctx)).st_ino == number
    assert lookups(world, number) == 3
    await world.ops.getattr(number, ctx)
    await world.setattr(number, mode=0o600)
    assert lookups(world, number) == 3
    await world.list("")
    assert [lookups(world, entry.st_ino) for entry in made] == [2, 2, 2]
    assert lookups(world, number) == 5, "it has two names in the listing"
    assert lookups(world, ROOT_ID) == 1


async def test_what_did_not_fit_into_a_listing_was_not_told(world: World) -> None:
    """The kernel still has the size from before the host changed the file."""
    for name in "abc":
        (world.source / name).write_text("text")
    last = list(await world.list(""))[-1]
    node = await world.id(last)
    (world.source / os.fsdecode(last)).write_text("longer text")
    handle = await world.ops.opendir(ROOT_ID, world.ctx)
    token = Token(room=4)  # the dots and two more
    await world.ops.readdir(handle, 0, token)
    assert last not in [name for name, *_ in token.entries]
    await world.ops.releasedir(handle)
    world.invalidated.clear()
    info = await world.ops.open(node, os.O_RDONLY, world.ctx)
    assert (info.keep_cache, world.invalidated) == (False, [node])
    await world.ops.release(info.fh)


async def test_an_entry_that_does_not_fit_is_undone(world: World) -> None:
    for number in range(10):
        (world.source / f"f{number}").touch()
        (world.source / f"d{number}").mkdir()
    before = open_descriptors()
    handle = await world.ops.opendir(ROOT_ID, world.ctx)
    token = Token(room=5)
    await world.ops.readdir(handle, 0, token)
    assert len(world.tree.nodes) == 1 + 3, "the root and the entries; dots are no lookups"
    assert all(lookups(world, entry.st_ino) == 1 for _, entry, _ in token.entries[2:])
    for _, entry, _ in token.entries[2:]:
        await world.ops.forget([(entry.st_ino, 1)])
    await world.ops.releasedir(handle)
    assert open_descriptors() == before


@pytest.mark.parametrize("room", [1, 2, 3, 7, 1000])
async def test_a_listing_in_parts_is_whole(world: World, room: int) -> None:
    names = {b"f%d" % number for number in range(20)} | {b"\xff\xfe"}
    for name in (*names, b".git"):
        os.close(os.open(os.fsencode(world.source) + b"/" + name, os.O_CREAT))
    assert set(await world.list("", room)) == names


async def test_a_listing_of_many_directories_outlives_the_descriptor_cache(
    make_world: MakeWorld,
) -> None:
    """Classifying each directory may need a descriptor; the listed one must not lose its own."""
    world = make_world(descriptor_limit=FEW)
    names = {b"d%d" % number for number in range(5 * FEW)}
    for name in names:
        os.makedirs(os.fsencode(world.source) + b"/dir/" + name)
    (world.source / "dir/d0/d1").mkdir()
    handle = await world.ops.opendir(await world.id("dir"), world.ctx)
    token = Token()
    await world.ops.readdir(handle, 0, token)
    await world.ops.releasedir(handle)
    assert {name for name, _, _ in token.entries[2:]} == names, "one reply holds what fits"
    listed = await world.list("dir")
    assert set(listed) == names
    for name, entry in listed.items():
        real = os.stat(os.fsencode(world.source) + b"/dir/" + name)
        assert entry.st_ino == real.st_ino, name


async def test_entries_that_vanish_are_skipped_and_new_ones_wait(world: World) -> None:
    for name in ("a", "b", "c"):
        (world.source / name).touch()
    handle = await world.ops.opendir(ROOT_ID, world.ctx)
    token = Token(room=3)
    await world.ops.readdir(handle, 0, token)
    (first,) = (name for name, _, _ in token.entries[2:])
    rest = sorted({b"a", b"b", b"c"} - {first})
    os.unlink(os.fsencode(world.source) + b"/" + rest[0])
    (world.source / "new").touch()
    token = Token()
    await world.ops.readdir(handle, 3, token)
    assert [name for name, _, _ in token.entries] == [rest[1]]
    token = Token()
    await world.ops.readdir(handle, 0, token)
    assert {name for name, _, _ in token.entries[2:]} == {first, rest[1], b"new"}


NAMES = [b"a", b"b", b"c", b"d"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([
            "lookup", "mkdir", "create", "mknod", "symlink", "link", "unlink", "rmdir", "rename",
            "exchange", "readdir", "open", "release", "forget", "setattr", "host",
        ]),
        st.integers(0, 7), st.sampled_from([*NAMES, b".git"]), st.integers(0, 7),
        st.sampled_from(NAMES),
    ),
    max_size=40,
)  # fmt: skip


class Kernel:
    """Sends requests and keeps the counts that a kernel keeps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[int] = Counter()
        self.handles: list[int] = []

    def told(self, number: int) -> None:
        self.counts[number] += 1

    def node(self, choice: int) -> int:
        known = [ROOT_ID, *self.counts]
        return known[choice % len(known)]

    async def step(self, what: str, first: int, name: bytes, second: int, other: bytes) -> None:
        ops, ctx = self.world.ops, self.world.ctx
        node, target = self.node(first), self.node(second)
        match what:
            case "lookup":
                if number := (await ops.lookup(node, name, ctx)).st_ino:
                    self.told(number)
            case "mkdir":
                self.told((await ops.mkdir(node, name, 0o755, ctx)).st_ino)
            case "mknod":
                self.told((await ops.mknod(node, name, S_IFREG | 0o644, 0, ctx)).st_ino)
            case "symlink":
                self.told((await ops.symlink(node, name, b"x", ctx)).st_ino)
            case "link":
                self.told((await ops.link(target, node, name, ctx)).st_ino)
            case "create":
                info, entry = await ops.create(node, name, 0o644, os.O_RDWR, ctx)
                self.handles.append(info.fh)
                self.told(entry.st_ino)
            case "unlink" | "rmdir":
                await getattr(ops, what)(node, name, ctx)
            case "rename" | "exchange":
                flags = RENAME_EXCHANGE if what == "exchange" else 0
                await ops.rename(node, name, target, other, flags, ctx)
            case "readdir":
                token = Token(room=2 + second)
                handle = await ops.opendir(node, ctx)
                try:
                    await ops.readdir(handle, 0, token)
                finally:
                    await ops.releasedir(handle)
                for _, entry, _ in token.entries[2:]:
                    self.told(entry.st_ino)
            case "open":
                self.handles.append((await ops.open(node, os.O_RDWR, ctx)).fh)
            case "setattr":
                await self.world.setattr(node, mode=0o755)
            case "release" if self.handles:
                await ops.release(self.handles.pop())
            case "forget" if node != ROOT_ID and not self.handles:
                await ops.forget([(node, self.counts.pop(node))])
            case "host":
                root = os.fsencode(self.world.source) + b"/"
                os.rename(root + name, root + other)

    def check(self) -> None:
        nodes = self.world.tree.nodes
        assert {node.id: node.lookup_count for node in nodes if node.id != ROOT_ID} == self.counts


async def _run(source: Path, steps: list[tuple[str, int, bytes, int, bytes]]) -> None:
    world = World(source, descriptor_limit=FEW)
    before = open_descriptors()
    kernel = Kernel(world)
    for step in steps:
        with suppress(*FAILED, OSError):
            await kernel.step(*step)
        kernel.check()
    for handle in kernel.handles:
        await world.ops.release(handle)
    await world.ops.forget(list(kernel.counts.items()))
    assert len(world.tree.nodes) == 1
    assert len(world.tree.handles) == 0
    assert open_descriptors() == before
    world.close()


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_sequence_leaves_a_node_or_a_descriptor(
    steps: list[tuple[str, int, bytes, int, bytes]],
) -> None:
    with tempfile.TemporaryDirectory() as directory, stand_ins():
        trio.run(_run, Path(directory), steps)
