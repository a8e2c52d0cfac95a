"""The virtual file ``.git`` of ``--git=private``."""

import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from stat import S_IFREG
from typing import Any

import pytest
import trio
import trio.testing

from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names.rules import GitMode, GuardRules
from gitguardfs.options.idmap import IdMap
from gitguardfs.sessions.pyfuse3_session.request_loop import WORKERS
from gitguardfs.view.git_files import WorkTree
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Later, World, needs_root, open_descriptors, refused
from tests.support.mounting import LIMIT

NONE = (errno.ENODATA, errno.ENOSYS, errno.EOPNOTSUPP)


class Asked:
    """Notes what is asked of the agent's repositories."""

    def __init__(self) -> None:
        self.prepared: list[tuple[WorkTree, Path]] = []
        self.fails_with = 0
        self.leads_to = self.leads_to_after = b"store"
        self.waits_for: threading.Event | None = None

    def text(self, place: WorkTree) -> bytes:
        return b"gitdir: /%s/%s/agent\n" % (self.leads_to, place.path)

    def prepare(self, place: WorkTree, work_tree: int) -> None:
        self.prepared.append((place, Path(os.readlink(f"/proc/self/fd/{work_tree}"))))
        if self.waits_for is not None:
            assert self.waits_for.wait(LIMIT)
        if self.fails_with:
            raise OSError(self.fails_with, os.strerror(self.fails_with))
        self.leads_to = self.leads_to_after


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def world(make_world: MakeWorld, asked: Asked) -> World:
    return made(make_world, asked)


def made(make_world: MakeWorld, asked: Asked, **options: Any) -> World:
    rules = options.pop("rules", GuardRules(GitMode.PRIVATE))
    world = make_world(rules=rules, repositories=asked, **options)
    (world.source / "a/.git/hooks").mkdir(parents=True)
    (world.source / "a/.git/config").write_text("secret")
    (world.source / "a/file").touch()
    (world.source / "tree").mkdir()
    (world.source / "tree/.git").write_text("gitdir: ../a/.git/worktrees/tree\n")
    (world.source / "symlinked").mkdir()
    (world.source / "symlinked/.git").symlink_to("../a/.git")
    return world


async def read(world: World, path: str) -> bytes:
    handle = await world.open(path)
    try:
        return bytes(await world.ops.read(handle, 0, 4096))
    finally:
        await world.ops.flush(handle)
        await world.ops.release(handle)


@pytest.mark.parametrize("place", ["a", "tree", "symlinked"])
async def test_a_repository_or_worktree_shows_a_file_that_leads_to_the_agents_own(
    world: World, asked: Asked, place: str
) -> None:
    entry = await world.entry(f"{place}/.git")
    directory = (world.source / place).stat()
    assert (entry.st_mode, entry.st_nlink) == (S_IFREG | 0o444, 1)
    assert (entry.st_uid, entry.st_gid) == (directory.st_uid, directory.st_gid)
    text = b"gitdir: /store/%s/agent\n" % place.encode()
    assert entry.st_size == len(text)
    assert asked.prepared == [], "a stat makes nothing"
    assert await read(world, f"{place}/.git") == text
    owner = (entry.st_uid, entry.st_gid)
    assert asked.prepared == [(WorkTree(place.encode(), *owner), world.source / place)]
    assert (await world.entry(f"{place}/.git")).st_ino == entry.st_ino
    assert (await world.ops.getattr(entry.st_ino, world.ctx)).st_size == len(text)


async def test_a_share_that_is_a_repository_itself(world: World, asked: Asked) -> None:
    (world.source / ".git").mkdir()
    assert await read(world, ".git") == b"gitdir: /store/./agent\n"


@needs_root
async def test_the_owner_is_the_one_that_the_view_shows(
    make_world: MakeWorld, asked: Asked
) -> None:
    world = made(make_world, asked, idmap=IdMap([(501, 1000)], [(20, 100)]))
    os.chown(world.source / "a", 501, 20)
    entry = await world.entry("a/.git")
    assert (entry.st_uid, entry.st_gid) == (1000, 100)
    await read(world, "a/.git")
    assert asked.prepared[0][0] == WorkTree(b"a", 1000, 100)


async def test_it_is_listed_and_nothing_else_that_git_could_take_for_it(world: World) -> None:
    for name in (".GIT", "git~1"):
        (world.source / "a" / name).mkdir()
    for _ in range(2):
        listed = await world.list("a")
        assert set(listed) == {b".git", b"file"}
        assert listed[b".git"].st_mode & S_IFREG
        await world.entry("a/.git")
    for name in (".GIT", "git~1"):
        assert (await world.entry(f"a/{name}")).st_mode & 0o777 == 0
        await refused(world.ops.opendir(await world.id(f"a/{name}"), world.ctx))


async def test_no_node_stands_for_the_hosts_own(world: World) -> None:
    await world.list("a")
    await read(world, "a/.git")
    assert {node.name for node in world.tree.nodes} <= {b"", b"a", b"file"}
    number = await world.id("a/.git")
    await refused(world.ops.lookup(number, b"config", world.ctx), errno.ESTALE)
    await refused(world.ops.opendir(number, world.ctx), errno.ENOTDIR)
    await refused(world.ops.readlink(number, world.ctx), errno.EINVAL)


def everything(top: Path) -> dict[Path, tuple[object, ...]]:
    """Return what the host sees of each file and directory."""
    found: dict[Path, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        st = path.lstat()
        found[path] = (
            st.st_ino, st.st_mode, st.st_nlink, st.st_uid, st.st_size, st.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )  # fmt: skip
    return found


Change = Callable[[World, int, int], Awaitable[object]]
CHANGES: dict[str, Change] = {
    "chmod": lambda w, git, _: w.setattr(git, mode=0o777),
    "chown": lambda w, git, _: w.setattr(git, uid=1000),
    "truncate": lambda w, git, _: w.setattr(git, size=0),
    "times": lambda w, git, _: w.setattr(git, mtime_ns=1),
    "write": lambda w, git, _: w.ops.open(git, os.O_WRONLY, w.ctx),
    "append": lambda w, git, _: w.ops.open(git, os.O_RDWR | os.O_APPEND, w.ctx),
    "open to truncate": lambda w, git, _: w.ops.open(git, os.O_RDONLY | os.O_TRUNC, w.ctx),
    "link": lambda w, git, a: w.ops.link(git, a, b"other", w.ctx),
    "link over": lambda w, _, a: _link_over(w, a),
    "setxattr": lambda w, git, _: w.ops.setxattr(git, b"user.x", b"x", w.ctx),
    "removexattr": lambda w, git, _: w.ops.removexattr(git, b"user.x", w.ctx),
    "access": lambda w, git, _: w.ops.access(git, os.W_OK, w.ctx),
    "unlink": lambda w, _, a: w.ops.unlink(a, b".git", w.ctx),
    "rmdir": lambda w, _, a: w.ops.rmdir(a, b".git", w.ctx),
    "mkdir": lambda w, _, a: w.ops.mkdir(a, b".git", 0o755, w.ctx),
    "mknod": lambda w, _, a: w.ops.mknod(a, b".git", S_IFREG | 0o644, 0, w.ctx),
    "symlink": lambda w, _, a: w.ops.symlink(a, b".git", b"x", w.ctx),
    "create": lambda w, _, a: w.ops.create(a, b".git", 0o644, os.O_RDWR, w.ctx),
    "move away": lambda w, _, a: w.ops.rename(a, b".git", a, b"x", 0, w.ctx),
    "move over": lambda w, _, a: w.ops.rename(a, b"file", a, b".git", 0, w.ctx),
    "exchange": lambda w, _, a: w.ops.rename(a, b"file", a, b".git", RENAME_EXCHANGE, w.ctx),
    "move the work tree": lambda w, _, __: w.ops.rename(ROOT_ID, b"a", ROOT_ID, b"x", 0, w.ctx),
}


async def _link_over(world: World, directory: int) -> object:
    return await world.ops.link(await world.id("a/file"), directory, b".git", world.ctx)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_every_change_is_refused(world: World, change: Change) -> None:
    before = everything(world.source)
    git, directory = await world.id("a/.git"), await world.id("a")
    await refused(change(world, git, directory))
    assert everything(world.source) == before


async def test_it_can_be_asked_for_extended_attributes(world: World) -> None:
    git = await world.id("a/.git")
    assert list(await world.ops.listxattr(git, world.ctx)) == []
    await refused(world.ops.getxattr(git, b"user.x", world.ctx), *NONE)
    await world.ops.access(git, os.R_OK, world.ctx)


async def test_a_special_file_is_closed_as_ever(world: World, asked: Asked) -> None:
    path = world.source / "tree/.git"
    path.unlink()
    os.mkfifo(path)
    assert set(await world.list("tree")) == set()
    entry = await world.entry("tree/.git")
    assert entry.st_mode & 0o777 == 0
    await refused(world.ops.open(entry.st_ino, os.O_RDONLY, world.ctx))
    assert asked.prepared == []


async def test_below_what_is_guarded_there_is_none(world: World, asked: Asked) -> None:
    (world.source / "bare/refs").mkdir(parents=True)
    (world.source / "bare/objects").mkdir()
    (world.source / "bare/HEAD").write_text("ref: refs/heads/main\n")
    (world.source / "bare/.git").mkdir()
    await refused(world.entry("bare/.git"))
    assert asked.prepared == []


async def test_a_repository_that_cannot_be_made_fails_the_open(world: World, asked: Asked) -> None:
    asked.fails_with = errno.ENOSPC
    await refused(world.open("a/.git"), errno.ENOSPC)
    before = open_descriptors()
    await refused(world.open("a/.git"), errno.ENOSPC)
    assert open_descriptors() == before
    asked.fails_with = 0
    assert await read(world, "a/.git") == b"gitdir: /store/a/agent\n"


async def test_it_leads_to_what_is_there_once_it_is_ready(world: World, asked: Asked) -> None:
    """The host may have put another project there, which has another repository."""
    asked.leads_to_after = b"new"
    assert await read(world, "a/.git") == b"gitdir: /new/a/agent\n"


@pytest.mark.parametrize("glob", [".git", ".g*"])
@pytest.mark.parametrize("option", ["deny", "hide"])
async def test_what_the_user_closes_by_its_name_stays_closed(
    make_world: MakeWorld, asked: Asked, option: str, glob: str
) -> None:
    rules = GuardRules(GitMode.PRIVATE, **{option: (glob,)})  # type: ignore[arg-type]
    world = made(make_world, asked, rules=rules)
    assert set(await world.list("a")) == {b"file"}
    if option == "hide":
        await refused(world.entry("a/.git"), errno.ENOENT)
    else:
        entry = await world.entry("a/.git")
        assert entry.st_mode & 0o777 == 0
        await refused(world.ops.open(entry.st_ino, os.O_RDONLY, world.ctx))
        await refused(world.ops.unlink(await world.id("a"), b".git", world.ctx))
    assert asked.prepared == []


async def test_what_the_user_protects_can_be_read(make_world: MakeWorld, asked: Asked) -> None:
    rules = GuardRules(GitMode.PRIVATE, protect=(".git",))
    assert await read(made(make_world, asked, rules=rules), "a/.git") == b"gitdir: /store/a/agent\n"


async def test_who_waits_for_a_repository_keeps_nobody_else_waiting(
    make_world: MakeWorld, asked: Asked
) -> None:
    world = made(make_world, asked)
    goes_on = threading.Event()
    asked.waits_for = goes_on
    handle = await world.open("a/file", os.O_RDWR)
    opened: list[int] = []

    async def open_it() -> None:
        opened.append(await world.open("a/.git"))

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS + 8):
                nursery.start_soon(open_it)
            await trio.testing.wait_all_tasks_blocked()
            await world.ops.fsync(handle, False)
            assert not opened
            goes_on.set()
    finally:
        goes_on.set()
    for each in (handle, *opened):
        await world.ops.release(each)


async def test_it_goes_with_the_hosts_own(world: World) -> None:
    number = await world.id("tree/.git")
    (world.source / "tree/.git").unlink()
    await refused(world.ops.getattr(number, world.ctx), errno.ESTALE)
    await refused(world.ops.open(number, os.O_RDONLY, world.ctx), errno.ESTALE)
    await refused(world.entry("tree/.git"), errno.ENOENT)


async def test_a_work_tree_that_the_host_moves_gets_another(world: World, later: Later) -> None:
    await world.entry("a/.git")
    (world.source / "a").rename(world.source / "b")
    later()
    assert await read(world, "b/.git") == b"gitdir: /store/b/agent\n"


async def test_it_is_forgotten(world: World) -> None:
    first = await world.id("a/.git")
    await world.entry("a/.git")
    await world.ops.forget([(first, 1)])
    assert await world.id("a/.git") == first
    await world.ops.forget([(first, 2)])
    await refused(world.ops.getattr(first, world.ctx), errno.ESTALE)
    assert await world.id("a/.git") != first


async def test_the_next_daemon_has_the_file(
    make_world: MakeWorld, world: World, asked: Asked
) -> None:
    number, handle = await world.id("a/.git"), await world.open("tree/.git")
    kept: dict[str, int] = {}
    former = world.view.saved(kept)
    assert former is not None
    following = make_world(rules=GuardRules(GitMode.PRIVATE), repositories=asked)
    following.view.restore(former, kept)
    assert (await following.ops.getattr(number, following.ctx)).st_ino == number
    assert await following.id("a/.git") == number
    assert b"/tree/" in bytes(await following.ops.read(handle, 0, 4096))
    assert await following.id("symlinked/.git") > max(number, handle)
    await refused(following.setattr(number, mode=0o777))
    (world.source / "a/.git").rename(world.source / "a/other")
    await refused(following.ops.getattr(number, following.ctx), errno.ESTALE)
