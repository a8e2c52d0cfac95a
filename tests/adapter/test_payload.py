"""What makes git run programs is closed in a directory that is half a repository (rule G4)."""

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from stat import S_IFREG
from typing import Any

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names import repository
from gitguardfs.names.rules import GitMode, GuardRules
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, refused

Half = Callable[[Path], None]
Use = Callable[[World, int, bytes], Awaitable[Any]]


def _head(top: Path) -> None:
    (top / "HEAD").write_text("ref: refs/heads/main\n")


def _head_symlink(top: Path) -> None:
    (top / "HEAD").symlink_to("refs/heads/main")


def _refs(top: Path) -> None:
    (top / "refs").mkdir()


def _objects(top: Path) -> None:
    (top / "objects").mkdir()


def _refs_file(top: Path) -> None:
    (top / "refs").touch()


HALVES: dict[str, tuple[Half, ...]] = {
    "HEAD and objects": (_head, _objects),
    "refs and objects": (_refs, _objects),
}
"""HEAD with refs is a whole repository (G2): what is in it is closed in every way."""
ALL: dict[str, tuple[Half, ...]] = {
    **HALVES,
    "a symlink HEAD and objects": (_head_symlink, _objects),
    "refs as a file and objects": (_refs_file, _objects),
    "HEAD and refs": (_head, _refs),
    "a symlink HEAD and refs": (_head_symlink, _refs),
}

NAMES = [
    b"config", b"CONFIG", b"config.", b"config ", b"config::$DATA", "con\u200cfig".encode(),
    "\uff43onfig".encode(), b"config.worktree", b"Config.Worktree", b"commondir", b"COMMONDIR",
    b"hooks", b"Hooks", b"hooks.", b"hooks\xff",
]  # fmt: skip


def _named(world: World) -> int:
    """Return a file that is ordinary, to be linked or moved to a payload's name."""
    return world.tree.nodes.get(os.stat(world.source / "plain").st_ino).id


MAKES: dict[str, Use] = {
    "create": lambda w, d, n: w.create(d, n),
    "mkdir": lambda w, d, n: w.ops.mkdir(d, n, 0o755, w.ctx),
    "mknod": lambda w, d, n: w.ops.mknod(d, n, S_IFREG | 0o644, 0, w.ctx),
    "fifo": lambda w, d, n: w.ops.mknod(d, n, 0o10644, 0, w.ctx),
    "symlink": lambda w, d, n: w.ops.symlink(d, n, b"plain", w.ctx),
    "link to": lambda w, d, n: w.ops.link(_named(w), d, n, w.ctx),
    "rename to": lambda w, d, n: w.ops.rename(ROOT_ID, b"plain", d, n, 0, w.ctx),
    "rename within": lambda w, d, n: w.ops.rename(d, b"plain", d, n, 0, w.ctx),
}


async def _node(world: World, directory: int, name: bytes) -> int:
    return int((await world.ops.lookup(directory, name, world.ctx)).st_ino)


async def _setattr(world: World, directory: int, name: bytes, **changes: int) -> None:
    await world.setattr(await _node(world, directory, name), **changes)


async def _open(world: World, directory: int, name: bytes, flags: int) -> None:
    await world.ops.open(await _node(world, directory, name), flags, world.ctx)


async def _link(world: World, directory: int, name: bytes) -> None:
    await world.ops.link(await _node(world, directory, name), ROOT_ID, b"linked", world.ctx)


async def _setxattr(world: World, directory: int, name: bytes) -> None:
    await world.ops.setxattr(await _node(world, directory, name), b"user.x", b"", world.ctx)


async def _removexattr(world: World, directory: int, name: bytes) -> None:
    await world.ops.removexattr(await _node(world, directory, name), b"user.x", world.ctx)


CHANGES: dict[str, Use] = {
    "open for writing": lambda w, d, n: _open(w, d, n, os.O_WRONLY),
    "open for both": lambda w, d, n: _open(w, d, n, os.O_RDWR),
    "open to append": lambda w, d, n: _open(w, d, n, os.O_WRONLY | os.O_APPEND),
    "O_TRUNC": lambda w, d, n: _open(w, d, n, os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda w, d, n: _setattr(w, d, n, size=0),
    "chmod": lambda w, d, n: _setattr(w, d, n, mode=0o755),
    "utimens": lambda w, d, n: _setattr(w, d, n, mtime_ns=1),
    "setxattr": _setxattr,
    "removexattr": _removexattr,
    "link from": _link,
    "rename from": lambda w, d, n: w.ops.rename(d, n, ROOT_ID, b"taken", 0, w.ctx),
    "rename over": lambda w, d, n: w.ops.rename(ROOT_ID, b"plain", d, n, 0, w.ctx),
    "exchange": lambda w, d, n: w.ops.rename(ROOT_ID, b"plain", d, n, RENAME_EXCHANGE, w.ctx),
    "exchange from": lambda w, d, n: w.ops.rename(d, n, ROOT_ID, b"plain", RENAME_EXCHANGE, w.ctx),
    "unlink": lambda w, d, n: w.ops.unlink(d, n, w.ctx),
}

OF_DIRECTORIES: dict[str, Use] = {
    "chmod": CHANGES["chmod"],
    "utimens": CHANGES["utimens"],
    "setxattr": _setxattr,
    "rename from": CHANGES["rename from"],
    "exchange": CHANGES["exchange"],
    "rmdir": lambda w, d, n: w.ops.rmdir(d, n, w.ctx),
    "create": lambda w, d, n: _in(w, d, n, MAKES["create"]),
    "mkdir": lambda w, d, n: _in(w, d, n, MAKES["mkdir"]),
    "symlink": lambda w, d, n: _in(w, d, n, MAKES["symlink"]),
    "link to": lambda w, d, n: _in(w, d, n, MAKES["link to"]),
    "rename to": lambda w, d, n: _in(w, d, n, MAKES["rename to"]),
}
"""What is refused of a directory of hooks."""


async def _in(world: World, directory: int, name: bytes, use: Use) -> None:
    await use(world, await _node(world, directory, name), b"new")


async def planted(world: World, halves: tuple[Half, ...], paths: tuple[bytes, ...] = ()) -> int:
    """Make ``d`` with files at ``paths``, then, as the host does, into half a repository."""
    top = world.source / "d"
    top.mkdir()
    for where in (world.source, top):
        (where / "plain").write_text("plain")
    for path in paths:
        full = os.path.join(os.fsencode(top), path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if path.endswith(b"/"):
            continue
        Path(os.fsdecode(full)).write_text("human's")
    for half in halves:
        half(top)
    await world.id("plain")
    return await world.id("d")


def state_of(world: World) -> list[tuple[object, ...]]:
    return sorted(
        (str(path), (st := path.lstat()).st_mode, st.st_size, st.st_nlink, st.st_mtime_ns)
        for path in world.source.rglob("*")
    )


@pytest.mark.parametrize("halves", ALL)
@pytest.mark.parametrize("make", MAKES)
async def test_no_payload_is_made(world: World, halves: str, make: str) -> None:
    d = await planted(world, ALL[halves])
    before = state_of(world)
    for name in NAMES:
        await refused(MAKES[make](world, d, name))
    assert state_of(world) == before


@pytest.mark.parametrize("halves", ALL)
@pytest.mark.parametrize("change", CHANGES)
async def test_none_is_changed_or_removed(world: World, halves: str, change: str) -> None:
    files = (b"config", b"config.worktree", b"hooks")
    if "HEAD" not in halves:  # HEAD with commondir is a whole one
        files = (*files, b"commondir")
    d = await planted(world, ALL[halves], files)
    if not halves.endswith("HEAD and refs"):
        for name in files:
            await _node(world, d, name)  # which takes the kernel there
    before = state_of(world)
    for name in files:
        await refused(CHANGES[change](world, d, name))
    assert state_of(world) == before


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("change", CHANGES)
async def test_nor_is_what_is_below_hooks(world: World, halves: str, change: str) -> None:
    await planted(world, HALVES[halves], (b"hooks/post-update", b"hooks/lib/config/run"))
    before = state_of(world)
    for above, name in (("d/hooks", b"post-update"), ("d/hooks/lib/config", b"run")):
        node = await world.id(above)
        await _node(world, node, name)
        await refused(CHANGES[change](world, node, name))
    assert state_of(world) == before


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("use", OF_DIRECTORIES)
async def test_nor_is_a_directory_of_hooks_or_one_below(
    world: World, halves: str, use: str
) -> None:
    d = await planted(world, HALVES[halves], (b"Hooks/", b"hooks/lib/"))
    hooks, other = await world.id("d/hooks"), await world.id("d/Hooks")
    await _node(world, hooks, b"lib")
    before = state_of(world)
    for directory, name in ((d, b"Hooks"), (d, b"hooks"), (hooks, b"lib")):
        await refused(OF_DIRECTORIES[use](world, directory, name))
    for make in MAKES.values():
        await refused(make(world, other, b"new"))
    assert state_of(world) == before


@pytest.mark.parametrize("name", NAMES)
async def test_every_spelling_is_closed_to_changes(world: World, name: bytes) -> None:
    d = await planted(world, (_refs, _objects), (name,))
    before = state_of(world)
    for change in CHANGES.values():
        await refused(change(world, d, name))
    assert state_of(world) == before


@pytest.mark.parametrize("halves", HALVES)
async def test_all_of_it_can_be_read(world: World, halves: str) -> None:
    files = (b"config", b"config.worktree", b"hooks/post-update")
    d = await planted(world, HALVES[halves], files)
    assert {b"config", b"config.worktree", b"hooks"} < set(await world.list("d"))
    for path in map("d/{}".format, map(bytes.decode, files)):
        handle = await world.open(path)
        assert bytes(await world.ops.read(handle, 0, 99)) == b"human's"
        await world.ops.release(handle)
        await world.ops.access(await world.id(path), os.R_OK, world.ctx)
    await refused(world.create(d, b"commondir"))


@pytest.mark.parametrize("halves", HALVES)
async def test_other_names_beside_it_are_free(world: World, halves: str) -> None:
    d = await planted(world, HALVES[halves], (b"plain2",))
    for name in (b"info", b"description", b"config.txt", b"myhooks", b"config-1"):
        for make in (MAKES["create"], MAKES["mkdir"], MAKES["symlink"]):
            await make(world, d, name)
            path = world.source / "d" / os.fsdecode(name)
            (path.rmdir if path.is_dir() and not path.is_symlink() else path.unlink)()
    await _setattr(world, d, b"plain2", mode=0o600)
    await world.ops.unlink(d, b"plain2", world.ctx)
    await world.ops.rename(ROOT_ID, b"d", ROOT_ID, b"e", 0, world.ctx)


ORDINARY: dict[str, tuple[Half, ...]] = {
    "HEAD": (_head,),
    "refs": (_refs,),
    "objects": (_objects,),
    "a directory HEAD, and objects": (lambda top: (top / "HEAD").mkdir(), _objects),
    "a directory HEAD, and refs": (lambda top: (top / "HEAD").mkdir(), _refs),
    "nothing": (),
}


@pytest.mark.parametrize("halves", ORDINARY)
@pytest.mark.parametrize("name", [b"config", b"config.worktree", b"hooks"])
async def test_ordinary_directories_are_unhurt(world: World, halves: str, name: bytes) -> None:
    d = await planted(world, ORDINARY[halves], (name, b"src/config/x", b"src/hooks/use.ts"))
    for use in ("chmod", "truncate", "open for writing", "setxattr", "removexattr", "unlink"):
        await CHANGES[use](world, d, name)
    for path in ("d/src/config", "d/src/hooks"):
        for make in ("create", "mkdir", "symlink"):
            await MAKES[make](world, await world.id(path), make.encode())
    if halves != "HEAD":  # HEAD with a payload completes a set of G3
        handle, _ = await world.create(d, name)
        await world.ops.release(handle)


async def test_a_directory_called_config_is_ordinary_in_half_a_repository(world: World) -> None:
    """git reads no such directory; only its name is closed."""
    d = await planted(world, (_refs, _objects), (b"config/settings.toml",))
    config = await world.id("d/config")
    await _setattr(world, config, b"settings.toml", size=0)
    handle, _ = await world.create(config, b"new.toml")
    await world.ops.release(handle)
    await world.setattr(config, mode=0o700)
    await refused(world.ops.rename(d, b"config", ROOT_ID, b"c", 0, world.ctx))
    await refused(world.ops.rmdir(d, b"config", world.ctx))


ALLOWED = [GuardRules(allow_bare=True), GuardRules(git=GitMode.OFF)]


@pytest.mark.parametrize("halves", ALL)
@pytest.mark.parametrize("rules", ALLOWED, ids=["allow-bare", "git=off"])
async def test_where_bare_repositories_are_allowed_all_is(
    make_world: MakeWorld, rules: GuardRules, halves: str
) -> None:
    world = make_world(rules=rules)
    d = await planted(world, ALL[halves], (b"config", b"hooks/post-update"))
    for use in ("chmod", "truncate", "setxattr", "removexattr", "exchange", "unlink"):
        await CHANGES[use](world, d, b"config")
        await CHANGES[use](world, await world.id("d/hooks"), b"post-update")
        if use == "exchange":  # it took the file from the root
            assert (world.source / "d/config").read_text() == "plain"
    for name in (b"config", b"commondir"):
        handle, _ = await world.create(d, name)
        await world.ops.release(handle)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
@pytest.mark.parametrize("part", [b"HEAD", b"refs", b"objects"])
async def test_what_the_source_cannot_tell_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, part: bytes, number: int
) -> None:
    """Only ENOENT and ENOTDIR mean that a part is not there."""
    d = await planted(world, (), (b"config", b"hooks/post-update"))
    hooks = await world.id("d/hooks")
    config = await world.id("d/config")
    stat = os.stat

    def failing(path: Any, *, dir_fd: int | None = None, **more: Any) -> os.stat_result:
        if path == part and os.path.samestat(os.fstat(dir_fd), os.lstat(world.source / "d")):
            raise OSError(number, "")
        return stat(path, dir_fd=dir_fd, **more)

    before = state_of(world)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        await refused(world.setattr(config, mode=0o777), number)
        await refused(world.ops.unlink(d, b"config", world.ctx), number)
        await refused(world.create(hooks, b"new"), number)
        await refused(world.ops.unlink(hooks, b"post-update", world.ctx), number)
        assert state_of(world) == before
    await world.ops.unlink(d, b"config", world.ctx)


async def test_it_is_asked_only_where_such_a_name_is_touched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = await planted(world, (_refs, _objects))
    asked: list[object] = []
    half = repository.is_half_repository
    monkeypatch.setattr(
        repository, "is_half_repository", lambda mode_of: asked.append(mode_of) or half(mode_of)
    )
    await _setattr(world, d, b"plain", size=0)
    handle, _ = await world.create(d, b"new")
    await world.ops.release(handle)
    await world.ops.rename(d, b"new", ROOT_ID, b"new", 0, world.ctx)
    assert not asked
    await refused(world.create(d, b"config"))
    assert len(asked) == 1
