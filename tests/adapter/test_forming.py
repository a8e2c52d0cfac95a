"""Directories that git on the host may be making into a repository."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gitguardfs.fs import forming, left_places, tree_walk
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.guard.rules import GuardRules
from gitguardfs.protocol import RENAME_EXCHANGE
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, refused

Pass = Callable[[float], None]


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Move the daemon's clocks on by seconds; otherwise they stand still, and no request waits."""
    monkeypatch.setattr(forming, "FORMING_FOR", 2.0)
    monkeypatch.setattr(forming, "WAIT", 0.0)
    passed = [0.0]
    since, date = time.monotonic(), time.time()
    for module in (forming, left_places):
        monkeypatch.setattr(module, "monotonic", lambda: since + passed[0])
    monkeypatch.setattr(forming, "time", SimpleNamespace(time=lambda: date + passed[0]))

    def more(seconds: float) -> None:
        passed[0] += seconds

    return more


@pytest.fixture
def world(make_world: MakeWorld, pass_time: Pass) -> World:
    """The host has begun to make a repository in ``x``; requests do not wait for it."""
    world = make_world()
    begin(world.source / "x")
    (world.source / "other").mkdir()
    (world.source / "other/file").write_text("text")
    return world


def begin(path: Path) -> None:
    for name in ("hooks", "info", "branches"):
        (path / name).mkdir(parents=True)
    (path / "description").write_text("text")
    (path / "hooks/sample").write_text("text")


def seem_new(path: Path) -> None:
    """Change an empty directory's ctime, as if it were a new one with a reused inode number."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        os.utime(path)


def end(path: Path) -> None:
    (path / "refs").mkdir()
    (path / "HEAD").write_text("ref: refs/heads/main\n")


async def touch(world: World, path: str) -> None:
    parent, _, name = path.rpartition("/")
    handle, _ = await world.create(await world.id(parent), name.encode())
    await world.ops.release(handle)


async def mkdir(world: World, path: str) -> None:
    parent, _, name = path.rpartition("/")
    await world.ops.mkdir(await world.id(parent), name.encode(), 0o755, world.ctx)


async def open_to_write(world: World, path: str) -> None:
    await world.ops.release(await world.open(path, os.O_WRONLY))


async def remove(world: World, path: str) -> None:
    parent, _, name = path.rpartition("/")
    await world.ops.unlink(await world.id(parent), name.encode(), world.ctx)


async def link(world: World, path: str) -> None:
    node = await world.id("x/description")
    await world.ops.link(node, await world.id("other"), path.encode(), world.ctx)


CHANGES: dict[str, Callable[[World], Awaitable[Any]]] = {
    "make a config": lambda w: touch(w, "x/config"),
    "make anything else": lambda w: touch(w, "x/README"),
    "make a hook": lambda w: touch(w, "x/hooks/post-update"),
    "make something further down": lambda w: mkdir(w, "x/info/deep"),
    "write to a file of git's": lambda w: open_to_write(w, "x/description"),
    "write to a hook": lambda w: open_to_write(w, "x/hooks/sample"),
    "remove a file": lambda w: remove(w, "x/description"),
    "move something in": lambda w: w.rename("other/file", "x/config"),
    "move something out": lambda w: w.rename("x/description", "other/config"),
    "link something out": lambda w: link(w, "linked"),
    "make a hook executable": lambda w: _chmod(w, "x/hooks/sample"),
}


async def _chmod(world: World, path: str) -> None:
    await world.setattr(await world.id(path), mode=0o100755)


@pytest.mark.parametrize("way", CHANGES)
async def test_it_is_waited_for_and_then_judged_anew(
    world: World, pass_time: Pass, way: str
) -> None:
    before = sorted(os.listdir(world.source / "x"))
    await refused(CHANGES[way](world), errno.EBUSY)
    assert sorted(os.listdir(world.source / "x")) == before
    end(world.source / "x")
    pass_time(2.0)
    await refused(CHANGES[way](world))


@pytest.mark.parametrize("way", CHANGES)
async def test_what_becomes_no_repository_is_free_two_seconds_later(
    world: World, pass_time: Pass, way: str
) -> None:
    await refused(CHANGES[way](world), errno.EBUSY)
    pass_time(3.0)
    await CHANGES[way](world)


WHOLE: dict[str, Callable[[World], Awaitable[Any]]] = {
    "move it away": lambda w: w.rename("x", "y"),
    "exchange it for another": lambda w: w.rename("other", "x", RENAME_EXCHANGE),
    "exchange another for it": lambda w: w.rename("x", "other", RENAME_EXCHANGE),
    "replace it while it is empty": lambda w: w.rename("mine", "empty"),
}


@pytest.mark.parametrize("way", WHOLE)
async def test_git_goes_on_in_the_very_directory_that_it_made(
    world: World, pass_time: Pass, way: str
) -> None:
    """git goes by the path: what is moved there would become part of the repository."""
    await mkdir(world, "mine")
    (world.source / "empty").mkdir()
    before = {name: (world.source / name).stat().st_ino for name in ("x", "other", "empty")}
    await refused(WHOLE[way](world), errno.EBUSY)
    assert before == {name: (world.source / name).stat().st_ino for name in before}
    pass_time(3.0)
    await WHOLE[way](world)


ABOVE: dict[str, Callable[[World], Awaitable[Any]]] = {
    "move it away": lambda w: w.rename("p", "y"),
    "exchange it for another": lambda w: w.rename("other", "p", RENAME_EXCHANGE),
    "exchange another for it": lambda w: w.rename("p", "other", RENAME_EXCHANGE),
    "move the one above away": lambda w: w.rename("p/q", "other/q"),
}


@pytest.mark.parametrize("way", ABOVE)
@pytest.mark.parametrize("is_empty", [False, True])
async def test_so_do_the_directories_above_it_stay(
    world: World,
    pass_time: Pass,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    is_empty: bool,
) -> None:
    (world.source / "p/q").mkdir(parents=True)
    (world.source / "p/file").touch()
    (world.source / "p/q/file").touch()
    await world.list("p/q")
    (world.source / "p/q/new").mkdir()
    if not is_empty:
        begin(world.source / "p/q/new")
    paths = ("p", "p/q", "p/q/new", "other")
    before = {name: (world.source / name).stat().st_ino for name in paths}
    with monkeypatch.context() as patch:
        patch.setattr(Source, "rename", None)
        await refused(ABOVE[way](world), errno.EBUSY)
    assert before == {name: (world.source / name).stat().st_ino for name in before}
    pass_time(3.0)
    await ABOVE[way](world)


def make_before_the_rename(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git make ``p/new`` after the checks of the next rename."""
    rename = Source.rename

    def make_and_rename(self: Source, *arguments: Any) -> None:
        monkeypatch.setattr(Source, "rename", rename)
        (world.source / "p/new").mkdir()
        rename(self, *arguments)

    monkeypatch.setattr(Source, "rename", make_and_rename)


@pytest.mark.parametrize("flags", [0, RENAME_EXCHANGE])
async def test_one_that_git_makes_while_it_is_moved_is_moved_back(
    world: World, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    (world.source / "p").mkdir()
    (world.source / "p/file").touch()
    make_before_the_rename(world, monkeypatch)
    await refused(world.rename("p", "other" if flags else "y", flags), errno.EBUSY)
    assert (world.source / "p/new").is_dir()
    assert (world.source / "other/file").exists()


async def test_nothing_comes_after_one_that_cannot_be_moved_back(
    world: World, monkeypatch: pytest.MonkeyPatch, pass_time: Pass
) -> None:
    """The directory has replaced an empty one."""
    (world.source / "p").mkdir()
    (world.source / "p/file").touch()
    for name in ("empty", "mine"):
        await mkdir(world, name)
    make_before_the_rename(world, monkeypatch)
    await world.rename("p", "empty")
    assert (world.source / "empty/new").is_dir()
    await refused(world.rename("mine", "p"), errno.EBUSY)
    pass_time(3.0)
    await world.rename("mine", "p")


async def test_a_large_directory_is_not_looked_through(
    world: World, pass_time: Pass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What git makes in it is unknown: so nothing is moved to its path."""
    monkeypatch.setattr(tree_walk, "MAX_DIRECTORIES", 3)
    for number in range(4):
        (world.source / f"a/large/{number}").mkdir(parents=True)
        (world.source / f"a/large/{number}/file").touch()
    for name in ("mine", "a2/large"):
        await mkdir(world, name.partition("/")[0])
    await touch(world, "mine/file")
    await refused(world.rename("a/large", "mine", RENAME_EXCHANGE))
    await refused(world.rename("mine", "a/large", RENAME_EXCHANGE))
    await world.rename("a/large", "b")
    a = await world.id("a")
    await refused(mkdir(world, "a/large"), errno.EBUSY)
    await refused(mkdir(world, "a/Large"), errno.EBUSY)
    await refused(world.rename("mine", "a/large"), errno.EBUSY)
    await refused(world.ops.symlink(a, b"large", b"../mine", world.ctx), errno.EBUSY)
    await refused(world.rename("a", "c"), errno.EBUSY)
    await refused(world.rename("a", "a2", RENAME_EXCHANGE), errno.EBUSY)
    await refused(world.ops.rmdir(ROOT_ID, b"a", world.ctx), errno.EBUSY)
    await touch(world, "a/large")
    await remove(world, "a/large")
    pass_time(3.0)
    await world.rename("mine", "a/large")
    await world.rename("a", "c")


async def test_an_empty_one_that_git_has_just_made_is_not_removed(
    world: World, pass_time: Pass
) -> None:
    (world.source / "new").mkdir()
    await refused(world.ops.rmdir(ROOT_ID, b"new", world.ctx), errno.EBUSY)
    pass_time(3.0)
    await world.ops.rmdir(ROOT_ID, b"new", world.ctx)


async def test_over_a_share_it_is_known_by_its_last_change(
    make_world: MakeWorld, pass_time: Pass
) -> None:
    world = make_world(is_local=False)
    await mkdir(world, "mine")
    (world.source / "new").mkdir()
    await refused(world.ops.rmdir(ROOT_ID, b"new", world.ctx), errno.EBUSY)
    pass_time(3.0)
    await world.ops.rmdir(ROOT_ID, b"new", world.ctx)


@pytest.mark.parametrize("is_local", [True, False])
async def test_removing_what_was_not_just_made_never_waits(
    make_world: MakeWorld, is_local: bool, pass_time: Pass
) -> None:
    """That holds whatever times a share gives its directories."""
    world = make_world(is_local=is_local)
    pass_time(1.5)  # in truth no clock stands still
    for path in ("mine", "mine/info", "mine/d"):
        await mkdir(world, path)
    await touch(world, "mine/info/config")
    await remove(world, "mine/info/config")
    for path in ("theirs/hooks", "theirs/hooks/d"):
        (world.source / path).mkdir(parents=True)
    (world.source / "theirs/hooks/file").touch()

    async def rmdir(path: str) -> None:
        parent, _, name = path.rpartition("/")
        os.utime(world.source / path)  # a share may report our own changes late
        await world.ops.rmdir(await world.id(parent), name.encode(), world.ctx)

    for path in ("mine/info", "mine/d", "mine"):
        await rmdir(path)
    pass_time(3.5)
    await remove(world, "theirs/hooks/file")
    if is_local:
        await rmdir("theirs/hooks/d")
    else:
        (world.source / "theirs/hooks/d").rmdir()
    for path in ("theirs/hooks", "theirs"):
        await rmdir(path)


async def test_a_mode_set_here_hides_no_change_of_the_host_s(world: World, pass_time: Pass) -> None:
    await mkdir(world, "y")
    await touch(world, "y/README")
    await remove(world, "y/README")
    begin(world.source / "y")
    await world.setattr(await world.id("y"), mode=0o40700)
    await refused(touch(world, "y/config"), errno.EBUSY)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("attribute", ["mode", "xattr"])
async def test_nor_that_it_is_another_directory_with_a_reused_inode_number(
    make_world: MakeWorld, pass_time: Pass,
    is_local: bool, attribute: str,
) -> None:  # fmt: skip
    """git has made it a moment ago. Its ctime shows that, and there is no name in it yet."""
    world = make_world(is_local=is_local)
    await mkdir(world, "y")
    node = await world.id("y")
    seem_new(world.source / "y")
    if attribute == "mode":
        await world.setattr(node, mode=0o40700)
    else:
        await world.ops.setxattr(node, b"user.x", b"1", world.ctx)
    await refused(mkdir(world, "y/hooks"), errno.EBUSY)
    pass_time(2.0)
    await mkdir(world, "y/hooks")


async def test_over_a_share_a_reused_inode_number_is_no_reason_to_remove_it(
    make_world: MakeWorld, pass_time: Pass
) -> None:
    world = make_world(is_local=False)
    await mkdir(world, "y")
    pass_time(forming.LATE)
    seem_new(world.source / "y")
    for _ in range(2):
        await refused(world.ops.rmdir(ROOT_ID, b"y", world.ctx), errno.EBUSY)
        await refused(mkdir(world, "y/hooks"), errno.EBUSY)
    await world.setattr(await world.id("y"), mode=0o40700)
    await refused(world.ops.rmdir(ROOT_ID, b"y", world.ctx), errno.EBUSY)
    pass_time(2.0)
    await world.ops.rmdir(ROOT_ID, b"y", world.ctx)


async def test_over_a_share_what_the_host_emptied_long_ago_is_removed_at_once(
    make_world: MakeWorld, pass_time: Pass
) -> None:
    """So a tree of directories that ``make clean`` has emptied goes without a pause for each."""
    world = make_world(is_local=False)
    await mkdir(world, "y")
    await touch(world, "y/file")
    (world.source / "y/file").unlink()
    pass_time(3.5)
    await world.ops.rmdir(ROOT_ID, b"y", world.ctx)


async def test_a_name_that_git_makes_before_the_listing_is_not_dated_by_an_older_ctime(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.source / "y").mkdir()
    y = await world.id("y")
    seem_old = time.time() - 100
    stat, names_if = Source.stat, Source.names_if
    begun = False

    def old(source: Source, fd: int) -> Any:
        st = stat(source, fd)
        if begun or st.st_ino != (world.source / "y").stat().st_ino:
            return st
        return SimpleNamespace(
            st_dev=st.st_dev, st_ino=st.st_ino, st_nlink=st.st_nlink, st_mode=st.st_mode,
            st_ctime=seem_old, st_ctime_ns=int(seem_old * 10**9),
        )  # fmt: skip

    def late(source: Source, *arguments: Any) -> Any:
        nonlocal begun
        if not begun:
            begin(world.source / "y")
        begun = True
        return names_if(source, *arguments)

    monkeypatch.setattr(Source, "stat", old)
    monkeypatch.setattr(Source, "names_if", late)
    await refused(world.create(y, b"config"), errno.EBUSY)


async def test_an_attribute_set_here_is_no_change_of_the_host_s(world: World) -> None:
    await mkdir(world, "mine")
    await world.ops.setxattr(await world.id("mine"), b"user.x", b"1", world.ctx)
    await touch(world, "mine/config")
    await world.ops.removexattr(await world.id("mine"), b"user.x", world.ctx)
    await touch(world, "mine/description")


async def test_the_time_of_the_last_access_stays_as_it_was_set(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may not support O_NOATIME, as virtiofsd: then the directory is not listed."""
    monkeypatch.setattr(os, "O_NOATIME", 0)
    await mkdir(world, "mine")
    node = await world.id("mine")
    await world.setattr(node, atime_ns=0, mtime_ns=15 * 10**18)
    assert (world.source / "mine").stat().st_atime_ns == 0
    os.listdir(world.source / "mine")
    assert (world.source / "mine").stat().st_atime_ns, "this file system notes no access"


async def test_a_crowd_of_git_s_names_is_none_of_git_s(world: World) -> None:
    """The names that are remembered of a directory have a limit, in all spellings together."""
    names = ["description" + "\u200d" * number for number in range(80)]
    for name in names:
        (world.source / "other" / name).touch()
    (world.source / "other/file").unlink()
    await touch(world, "other/config")
    forming_now = world.state.access._forming
    assert all(len(seen.names or ()) <= forming.MAX_NAMES for seen in forming_now._seen.values())


async def test_it_can_be_looked_at_meanwhile(world: World) -> None:
    assert sorted(await world.list("x")) == [b"branches", b"description", b"hooks", b"info"]
    await world.ops.release(await world.open("x/description"))


async def test_who_waits_goes_on_by_himself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forming, "WAIT", 60.0)
    monkeypatch.setattr(forming, "FORMING_FOR", 0.3)
    monkeypatch.setattr(forming, "monotonic", time.monotonic)
    await touch(world, "x/README")
    assert (world.source / "x/README").exists()


async def test_each_change_of_the_host_s_starts_anew(world: World, pass_time: Pass) -> None:
    await refused(touch(world, "x/config"), errno.EBUSY)
    pass_time(1.9)
    (world.source / "x/objects").mkdir()
    await refused(touch(world, "x/config"), errno.EBUSY)
    pass_time(1.9)
    await refused(touch(world, "x/config"), errno.EBUSY)
    pass_time(0.2)
    await touch(world, "x/config")


async def test_one_other_name_ends_it(world: World) -> None:
    (world.source / "x/main.c").touch()
    await touch(world, "x/config")
    await touch(world, "x/hooks/post-update")


async def test_what_is_made_here_is_never_waited_for(world: World) -> None:
    await mkdir(world, "d")
    for name in ("hooks", "info", "objects"):
        await mkdir(world, f"d/{name}")
        await touch(world, f"d/{name}/file")
    await touch(world, "d/description")
    await _chmod_directory(world, "d")
    await touch(world, "d/config")
    await world.rename("d", "e")
    await remove(world, "e/description")
    await touch(world, "e/description")


async def _chmod_directory(world: World, path: str) -> None:
    await world.setattr(await world.id(path), mode=0o040700)


async def test_unless_the_host_makes_a_repository_in_it(world: World) -> None:
    await mkdir(world, "d")
    begin(world.source / "d")
    await refused(touch(world, "d/config"), errno.EBUSY)
    await refused(touch(world, "d/hooks/post-update"), errno.EBUSY)


async def test_what_was_left_alone_for_long_is_free(world: World, pass_time: Pass) -> None:
    """The age is taken from the source's clock; on a local file system that is ours."""
    pass_time(3.0)
    await touch(world, "x/config")
    await touch(world, "x/description2")


async def test_emptying_a_directory_here_is_not_waited_for(world: World) -> None:
    for name in ("config", "description", "main.c"):
        (world.source / "other" / name).touch()
    for name in ("main.c", "file", "config", "description"):
        await remove(world, f"other/{name}")
    await world.ops.rmdir(ROOT_ID, b"other", world.ctx)


async def test_where_the_clocks_differ_a_first_look_counts_as_a_change(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, pass_time: Pass
) -> None:
    world = make_world(is_local=False)
    ahead = time.time() + 3600
    monkeypatch.setattr(forming, "time", SimpleNamespace(time=lambda: ahead))
    begin(world.source / "x")
    await refused(touch(world, "x/config"), errno.EBUSY)
    pass_time(2.0)
    await touch(world, "x/config")
    # From then on the difference of the two clocks is known.
    made = os.stat(world.source / "x/config")
    assert world.state.access._forming._age(made) == pytest.approx(0.0, abs=1e-3)


async def test_setting_the_guest_s_clock_makes_no_change_old(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, pass_time: Pass
) -> None:
    world = make_world(is_local=False)
    await mkdir(world, "mine")  # shows how far the share's clock is ahead
    later = time.time() + 3600
    monkeypatch.setattr(forming, "time", SimpleNamespace(time=lambda: later))
    begin(world.source / "x")
    await refused(touch(world, "x/config"), errno.EBUSY)
    pass_time(2.5)
    await touch(world, "x/config")


@pytest.mark.parametrize("asks_server", [True, False])
async def test_a_share_may_show_an_older_change_for_a_second(
    make_world: MakeWorld, pass_time: Pass, asks_server: bool
) -> None:
    world = make_world(is_local=False, asks_server=asks_server)
    await mkdir(world, "mine")
    begin(world.source / "x")
    pass_time(2.5)
    if not asks_server:
        await refused(touch(world, "x/config"), errno.EBUSY)
        pass_time(1.0)
    await touch(world, "x/config")


async def test_it_is_only_for_the_guard(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(rules=GuardRules(allow_bare=True))
    monkeypatch.setattr(forming, "FORMING_FOR", 2.0)
    begin(world.source / "x")
    await touch(world, "x/config")


NOW = ["config", "hooks/post-update", "logs", "index", "objects/pack/x", "refs/heads/x"]


@pytest.mark.parametrize("path", NOW)
async def test_where_git_reads_there_is_no_second_of_grace(
    make_world: MakeWorld, path: str
) -> None:
    """Everything that leads there was classified a moment ago."""
    world = make_world()
    for name in ("hooks", "objects/pack", "refs/heads"):
        (world.source / "x" / name).mkdir(parents=True)
    (world.source / "x/main.c").touch()  # not forming
    parent = await world.id(os.path.dirname(f"x/{path}"))
    x = await world.id("x")
    (world.source / "x/HEAD").write_text("ref: refs/heads/main\n")
    await world.ops.release((await world.create(x, b"other"))[0])  # the grace
    await refused(world.create(parent, os.path.basename(path).encode()))


async def test_a_directory_that_the_host_has_removed_is_not_waited_for(world: World) -> None:
    (world.source / "other/gone").mkdir()
    node = await world.id("other/gone")
    (world.source / "other/gone").rmdir()
    await refused(world.create(node, b"file"), errno.ENOENT)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each listing of a directory that looks for what git makes."""
    calls = []
    names_if = Source.names_if

    def noted(self: Source, fd: int, *arguments: Any) -> Any:
        calls.append(fd)
        return names_if(self, fd, *arguments)

    monkeypatch.setattr(Source, "names_if", noted)
    return calls


async def test_many_files_made_here_need_few_listings(world: World, listed: list[int]) -> None:
    """To list a large directory for each file in it would take longer with each file."""
    await mkdir(world, "mine")
    for number in range(50):
        await touch(world, f"mine/{number}")
    assert len(listed) < 5


async def test_over_a_share_each_change_lists_anew(
    make_world: MakeWorld, listed: list[int], pass_time: Pass
) -> None:
    """The server has removed a name that the kernel's cache may keep for a second."""
    world = make_world(is_local=False)
    await mkdir(world, "mine")
    for number in range(10):
        await touch(world, f"mine/{number}")
    assert len(listed) >= 10


async def test_a_share_that_is_asked_for_a_name_each_time_needs_few_listings(
    make_world: MakeWorld, listed: list[int], pass_time: Pass
) -> None:
    world = make_world(is_local=False, path_based=True, asks_server=True)
    await mkdir(world, "mine")
    for number in range(50):
        await touch(world, f"mine/{number}")
    assert len(listed) < 10


async def test_a_rename_within_a_directory_lists_it_once(
    make_world: MakeWorld, listed: list[int], pass_time: Pass
) -> None:
    world = make_world(is_local=False)
    await mkdir(world, "mine")
    await touch(world, "mine/old")
    listed.clear()
    await world.rename("mine/old", "mine/new")
    assert len(listed) == 1


@pytest.mark.parametrize("asks_server", [True, False])
@pytest.mark.parametrize("stays", [True, False])
async def test_a_directory_that_the_host_empties_for_git_is_waited_for(
    make_world: MakeWorld, pass_time: Pass,
    stays: bool, asks_server: bool,
) -> None:  # fmt: skip
    """The name that was remembered of the directory is gone."""
    world = make_world(is_local=not asks_server, path_based=asks_server, asks_server=asks_server)
    await mkdir(world, "mine")
    for number in range(3):
        await touch(world, f"mine/{number}")
    names = sorted(os.listdir(world.source / "mine"))
    for name in names[: -1 if stays else None]:
        (world.source / "mine" / name).unlink()
    begin(world.source / "mine")
    if stays:
        await touch(world, "mine/config")
    else:
        await refused(touch(world, "mine/config"), errno.EBUSY)
        await refused(touch(world, "mine/README"), errno.EBUSY)


@pytest.mark.parametrize("alias", ["DESCRI~1", "\uff48\uff4f\uff4f\uff4b\uff53"])
async def test_an_alias_of_a_name_of_gits_is_not_taken_for_another_name(
    world: World, monkeypatch: pytest.MonkeyPatch, alias: str
) -> None:
    """FAT gives a file a short name, ZFS may compare by NFKC: stat finds git's entry by either."""
    await mkdir(world, "mine")
    await touch(world, f"mine/{alias}")
    (world.source / "mine" / alias).unlink()
    begin(world.source / "mine")
    find_at = Source.find_at

    def folding(self: Source, dir_fd: int, name: bytes) -> os.stat_result | None:
        return find_at(self, dir_fd, b"hooks" if os.fsdecode(name) == alias else name)

    monkeypatch.setattr(Source, "find_at", folding)
    await refused(touch(world, "mine/hooks/post-update"), errno.EBUSY)


async def test_another_object_under_the_remembered_name_is_not_trusted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT may find git's entry by a short name that another entry had before."""
    await mkdir(world, "mine")
    await touch(world, "mine/DESCRIPT")
    (world.source / "mine/DESCRIPT").rename(world.source / "elsewhere")  # keeps its inode number
    begin(world.source / "mine")
    find_at = Source.find_at

    def by_short_name(self: Source, fd: int, name: bytes) -> os.stat_result | None:
        return find_at(self, fd, b"description" if name == b"DESCRIPT" else name)

    monkeypatch.setattr(Source, "find_at", by_short_name)
    await refused(touch(world, "mine/config"), errno.EBUSY)


@pytest.mark.parametrize("hooks", ["\uff48ooks", "\u029cooks", "HOOKS~1"])
async def test_git_s_directories_are_recognized_by_other_names(
    world: World, monkeypatch: pytest.MonkeyPatch, pass_time: Pass, hooks: str
) -> None:
    """Wide letters, a folding that no rule knows, or a short name: all lead to ``hooks``."""
    for method in ("stat_at", "open_node"):
        call = getattr(Source, method)

        def folding(self: Source, fd: int, name: bytes, call: Callable[..., Any] = call) -> Any:
            return call(self, fd, b"hooks" if os.fsdecode(name) == hooks else name)

        monkeypatch.setattr(Source, method, folding)
    below = await world.id(f"x/{hooks}")
    (world.source / "x/hooks/deep").mkdir()
    await refused(world.create(below, b"post-update"), errno.EBUSY)
    await refused(mkdir(world, f"x/{hooks}/deep/more"), errno.EBUSY)
    end(world.source / "x")
    await refused(world.create(below, b"post-update"))  # at once, however new the last look is
    assert sorted(os.listdir(world.source / "x/hooks")) == ["deep", "sample"]


@pytest.mark.parametrize("name", ["caf\u00e9", "\u6f22\u5b57", "x~"])
async def test_names_in_other_scripts_do_not_wait(world: World, name: str) -> None:
    """The host has just made what is there."""
    (world.source / f"p/{name}/objects").mkdir(parents=True)
    (world.source / "p/objects").mkdir()
    (world.source / f"p/{name}/file").touch()
    (world.source / f"p/{name}/{name}").touch()
    (world.source / f"p/{name}/objects/file").touch()
    await touch(world, f"p/{name}/new-{name}")
    await touch(world, f"p/{name}/objects/new-{name}")
    await open_to_write(world, f"p/{name}/{name}")
    await _chmod(world, f"p/{name}/{name}")
    await world.rename(f"p/{name}/{name}", f"p/{name}/{name}2")
    await mkdir(world, f"p/{name}2")
