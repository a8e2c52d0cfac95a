"""Every handler of pyfuse3 is classed, and every class is kept: driven from the table."""

import errno
import inspect
import os
from collections.abc import Awaitable, Callable
from stat import S_IFIFO, S_IFREG, S_IMODE

import pyfuse3
import pytest
from pyfuse3 import EntryAttributes

from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names.rules import GitMode, GuardRules
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Context, Fields, Token, World, needs_root, refused
from tests.support.request_table import GUARDED_BY, GuardedBy


def test_every_handler_of_pyfuse3_is_classed() -> None:
    handlers = {
        name
        for name, function in inspect.getmembers(pyfuse3.Operations)
        if not name.startswith("_") and inspect.iscoroutinefunction(function)
    }
    unsupported = {name for name, guarded in GUARDED_BY.items() if guarded is GuardedBy.UNSUPPORTED}
    assert handlers | unsupported == set(GUARDED_BY), "old versions have fewer that are unsupported"


def test_unsupported_handlers_are_pyfuse3_s_own(world: World) -> None:
    for name, guarded in GUARDED_BY.items():
        inherited = getattr(type(world.ops), name, None) is getattr(pyfuse3.Operations, name, None)
        assert inherited == (guarded is GuardedBy.UNSUPPORTED), name


# By name. A case gets the world, the directory, the guarded name and the node of a plain file
# called "plain" in that directory.

NameCase = Callable[[World, int, bytes, int], Awaitable[object]]

FLAGS = (0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT)


def _move(flags: int, *, away: bool) -> NameCase:
    """Rename the guarded name to a free one, or the plain file to the guarded name."""
    if away:
        return lambda w, d, n, f: w.ops.rename(d, n, d, b"free", flags, w.ctx)
    return lambda w, d, n, f: w.ops.rename(d, b"plain", d, n, flags, w.ctx)


NAME_CASES: dict[str, list[NameCase]] = {
    "mknod": [
        lambda w, d, n, f: w.ops.mknod(d, n, S_IFREG | 0o644, 0, w.ctx),
        lambda w, d, n, f: w.ops.mknod(d, n, S_IFIFO | 0o644, 0, w.ctx),
    ],
    "mkdir": [lambda w, d, n, f: w.ops.mkdir(d, n, 0o755, w.ctx)],
    "symlink": [lambda w, d, n, f: w.ops.symlink(d, n, b"plain", w.ctx)],
    "link": [lambda w, d, n, f: w.ops.link(f, d, n, w.ctx)],
    "create": [
        lambda w, d, n, f: w.ops.create(d, n, 0o644, os.O_RDWR, w.ctx),
        lambda w, d, n, f: w.ops.create(d, n, 0o644, os.O_RDWR | os.O_EXCL | os.O_TRUNC, w.ctx),
    ],
    "unlink": [lambda w, d, n, f: w.ops.unlink(d, n, w.ctx)],
    "rmdir": [lambda w, d, n, f: w.ops.rmdir(d, n, w.ctx)],
    "rename": [
        *(_move(flags, away=True) for flags in FLAGS),
        *(_move(flags, away=False) for flags in FLAGS),
        lambda w, d, n, f: w.ops.rename(d, b"empty", d, n, 0, w.ctx),
        lambda w, d, n, f: w.ops.rename(d, n, d, b"plain", RENAME_EXCHANGE, w.ctx),
        lambda w, d, n, f: w.ops.rename(d, n, ROOT_ID, n, 0, w.ctx),
        lambda w, d, n, f: w.ops.rename(d, n, d, n, 0, w.ctx),
    ],
}

LOOKUP = "lookup"
"""The one operation by name that a guarded name is open to: what it finds is masked."""

NAMES = [
    b".git", b".GIT", b"git~1", b".git. .", b".git::$INDEX_ALLOCATION", b"x\\.git",
    ".g\u200cit".encode(), b".git\xff",
]  # fmt: skip

SOURCES: dict[str, Callable[[bytes], None]] = {
    "absent": lambda path: None,
    "file": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),
    "directory": lambda path: os.mkdir(path),
    "symlink": lambda path: os.symlink(b"plain", path),
}


def test_every_handler_by_name_has_cases() -> None:
    by_name = {name for name, guarded in GUARDED_BY.items() if guarded is GuardedBy.NAME}
    assert by_name == {*NAME_CASES, LOOKUP}


def snapshot(directory: bytes) -> list[tuple[bytes, int, int, int]]:
    """Everything in a directory: names, inode numbers, modes, numbers of links."""
    return sorted(
        (e.name, (st := e.stat(follow_symlinks=False)).st_ino, st.st_mode, st.st_nlink)
        for e in os.scandir(directory)
    )


@pytest.mark.parametrize("there", SOURCES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", NAME_CASES)
async def test_no_operation_by_name_reaches_a_guarded_name(
    world: World, operation: str, name: bytes, there: str
) -> None:
    directory = os.fsencode(world.source / "dir")
    os.makedirs(directory + b"/empty")
    SOURCES["file"](directory + b"/plain")
    SOURCES[there](directory + b"/" + name)
    parent, plain = await world.id("dir"), await world.id("dir/plain")
    before = snapshot(directory)
    for case in NAME_CASES[operation]:
        await refused(case(world, parent, name, plain))
    assert snapshot(directory) == before
    assert world.audit.refused["git"] == len(NAME_CASES[operation])


@needs_root
@pytest.mark.parametrize("there", ["file", "directory", "symlink"])
@pytest.mark.parametrize("name", NAMES)
async def test_lookup_and_listing_mask_a_guarded_name(
    make_world: MakeWorld, name: bytes, there: str
) -> None:
    world = make_world(rules=GuardRules(GitMode.LIST))
    path = os.fsencode(world.source) + b"/" + name
    SOURCES[there](path)
    os.lchown(path, 501, 20)
    listed = (await world.list(""))[name]
    for entry in (
        await world.entry(name),
        listed,
        await world.ops.getattr(listed.st_ino, world.ctx),
    ):
        assert (S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid) == (0, 0, 0)
        assert entry.st_mode == os.lstat(path).st_mode & ~0o7777


# By node. A case gets the world and the number of the guarded node.

NodeCase = Callable[[World, int], Awaitable[object]]


async def _readdir(world: World, node: int) -> None:
    await world.ops.readdir(world.opened, 0, Token())  # type: ignore[attr-defined]


async def _fsyncdir(world: World, node: int) -> None:
    await world.ops.fsyncdir(world.opened, False)  # type: ignore[attr-defined]


def _setattr(field: str, value: int) -> NodeCase:
    return lambda w, n: w.setattr(n, **{field: value})


def _access(mask: int) -> NodeCase:
    return lambda w, n: w.ops.access(n, mask, w.ctx)


def _open(flags: int) -> NodeCase:
    return lambda w, n: w.ops.open(n, flags, w.ctx)


FILE_CASES: dict[str, list[NodeCase]] = {
    "setattr": [
        _setattr("mode", 0o777), _setattr("size", 0), _setattr("uid", 1), _setattr("gid", 1),
        _setattr("atime_ns", 1), _setattr("mtime_ns", 1),
        lambda w, n: w.ops.setattr(n, EntryAttributes(), Fields(), None, w.ctx),
    ],
    "readlink": [lambda w, n: w.ops.readlink(n, w.ctx)],
    "access": [_access(mask) for mask in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)],
    "open": [_open(flags) for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_TRUNC)],
    "getxattr": [
        lambda w, n: w.ops.getxattr(n, b"user.a", w.ctx),
        lambda w, n: w.ops.getxattr(n, b"security.capability", w.ctx),
    ],
    "listxattr": [lambda w, n: w.ops.listxattr(n, w.ctx)],
    "setxattr": [lambda w, n: w.ops.setxattr(n, b"user.a", b"v", w.ctx)],
    "removexattr": [lambda w, n: w.ops.removexattr(n, b"user.a", w.ctx)],
}  # fmt: skip

DIRECTORY_CASES: dict[str, list[NodeCase]] = {
    "opendir": [lambda w, n: w.ops.opendir(n, w.ctx)],
    "readdir": [_readdir],
    "fsyncdir": [_fsyncdir],
}

GETATTR = "getattr"
"""The one operation on a node that a guarded one is open to: what it shows is masked."""


def test_every_handler_by_node_has_cases() -> None:
    by_node = {name for name, guarded in GUARDED_BY.items() if "NODE" in guarded.name}
    assert by_node == {*FILE_CASES, *DIRECTORY_CASES, GETATTR}


@pytest.mark.parametrize("there", ["file", "directory", "symlink"])
@pytest.mark.parametrize("operation", FILE_CASES)
async def test_no_operation_on_a_node_reaches_a_guarded_one(
    world: World, operation: str, there: str
) -> None:
    path = os.fsencode(world.source / ".git")
    SOURCES[there](path)
    node = await world.id(".git")
    before = os.lstat(path)
    for case in FILE_CASES[operation]:
        await refused(case(world, node))
    assert os.lstat(path) == before
    await refused(world.ops.link(node, ROOT_ID, b"copy", world.ctx))
    assert os.listdir(world.source) == [".git"]


@pytest.mark.parametrize("operation", DIRECTORY_CASES)
async def test_no_operation_on_a_directory_reaches_a_guarded_one(
    world: World, operation: str
) -> None:
    """The directory was opened while it was ordinary; then the host renamed it to .git."""
    (world.source / "dir").mkdir()
    (world.source / "dir/config").touch()
    node = await world.id("dir")
    world.opened = await world.ops.opendir(node, world.ctx)  # type: ignore[attr-defined]
    os.rename(world.source / "dir", world.source / ".git")
    guarded = await world.id(".git")
    assert guarded != node
    for number in (node, guarded):
        for case in DIRECTORY_CASES[operation]:
            await refused(case(world, number))
        await refused(world.ops.lookup(number, b"config", world.ctx))
        await refused(world.ops.mkdir(number, b"new", 0o755, world.ctx))
    await world.ops.releasedir(world.opened)  # type: ignore[attr-defined]


@pytest.mark.parametrize("there", ["file", "directory"])
async def test_what_is_below_a_guarded_directory_is_not_there_to_be_asked(
    world: World, there: str
) -> None:
    os.mkdir(world.source / ".git")
    SOURCES[there](os.fsencode(world.source / ".git/x"))
    git = await world.id(".git")
    await refused(world.ops.lookup(git, b"x", world.ctx))
    for cases in NAME_CASES.values():
        for case in cases:
            await refused(case(world, git, b"x", git))


async def test_the_host_s_move_back_and_forth_leaves_no_door_open(world: World) -> None:
    (world.source / ".git").mkdir()
    (world.source / ".git/config").touch()
    await world.id(".git")
    os.rename(world.source / ".git", world.source / "x")
    away = await world.id("x")
    config = await world.id("x/config")
    os.rename(world.source / "x", world.source / ".git")
    await world.id(".git")
    await refused(world.ops.lookup(away, b"config", world.ctx))
    await refused(world.ops.open(config, os.O_RDONLY, world.ctx))


@pytest.mark.parametrize("number", [0, 2, 12345, 2**62, 2**64 - 1])
async def test_node_numbers_that_were_never_handed_out_are_stale(world: World, number: int) -> None:
    """Handles and node numbers cannot be guessed."""
    for cases in (*FILE_CASES.values(), [lambda w, n: w.ops.opendir(n, w.ctx)]):
        for case in cases:
            await refused(case(world, number), errno.ESTALE)
    await refused(world.ops.lookup(number, b"x", world.ctx), errno.ESTALE)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b"])
async def test_names_that_are_no_component_are_invalid(world: World, name: bytes) -> None:
    (world.source / "plain").touch()
    plain = await world.id("plain")
    for cases in NAME_CASES.values():
        for case in cases:
            await refused(case(world, ROOT_ID, name, plain), errno.EINVAL)
    await refused(world.ops.lookup(ROOT_ID, name, world.ctx), errno.EINVAL)


async def test_git_off_opens_all_of_it(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(git=GitMode.OFF))
    await world.ops.mkdir(ROOT_ID, b".git", 0o755, world.ctx)
    handle, _ = await world.create(await world.id(".git"), b"config")
    await world.ops.release(handle)
    await world.rename(".git", "x")
    assert not world.audit.refused


async def test_a_refusal_tells_the_audit_who_asked_for_what(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        world.audit,
        "refuse",
        lambda name, refused, uid, pid: noted.append(
            (name, refused.where(), refused.rule, uid, pid)
        ),
    )
    (world.source / "sub/.git").mkdir(parents=True)
    parent, git = await world.id("sub"), await world.id("sub/.git")
    context = Context(uid=1234, gid=5, pid=77)
    await refused(world.ops.rmdir(parent, b".git", context))
    await refused(world.ops.opendir(git, context))
    assert noted == [
        ("rmdir", b"sub/.git", "git", 1234, 77),
        ("opendir", b"sub/.git", "git", 1234, 77),
    ]


@pytest.mark.parametrize("kind", ["directory", "file"])
async def test_a_number_that_a_server_gives_out_again_is_another_object(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Some shares give no birth time, and reuse the number of an object that is still open."""
    world = make_world(is_local=False)
    monkeypatch.setattr(world.tree.source, "btime_ns", lambda _: 0)
    old = world.source / "old"
    for attempt in range(100):
        old.mkdir() if kind == "directory" else old.touch()
        before = await world.id("old")
        node = world.tree.nodes.get(before)
        world.tree.descriptors.close(node)
        number = old.stat().st_ino
        old.rmdir() if kind == "directory" else old.unlink()
        name = f"new{attempt}"
        if kind == "directory":
            made = (await world.ops.mkdir(ROOT_ID, name.encode(), 0o755, world.ctx)).st_ino
        else:
            handle, made = await world.create(ROOT_ID, name.encode())
            await world.ops.release(handle)
        if (world.source / name).stat().st_ino == number:
            assert made != before
            assert await world.id(name) == made
