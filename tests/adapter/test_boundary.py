"""The error boundary: whatever happens below, pyfuse3 sees FUSEError or an answer."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from gitguardfs.core.guard import Refused
from gitguardfs.core.inodes import ROOT_ID
from gitguardfs.core.tree import Tree
from gitguardfs.fuse import operations
from gitguardfs.fuse.operations import GUARDED, Guarded
from tests.adapter.world import Context, Token, World, refused

BUGS = [
    KeyError("k"), RuntimeError("r"), MemoryError(), ValueError("v"), RecursionError("deep"),
    AssertionError(), StopIteration(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
]  # fmt: skip


class BrokenTree:
    """Every attribute of it raises when it is called or used."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, name: str) -> object:
        raise self.error


def arguments(name: str) -> list[object]:
    """Arguments of the right number for a handler; the tree never gets to see them."""
    ctx = Context()
    table: dict[str, list[object]] = {
        "forget": [[(5, 1)]],
        "setattr": [5, _Anything(), _Anything(), None, ctx],
        "mknod": [1, b"n", 0o644, 0, ctx],
        "mkdir": [1, b"n", 0o755, ctx],
        "symlink": [1, b"n", b"t", ctx],
        "link": [5, 1, b"n", ctx],
        "create": [1, b"n", 0o644, os.O_RDWR, ctx],
        "rename": [1, b"n", 1, b"m", 0, ctx],
        "read": [1, 0, 10],
        "write": [1, 0, b"x"],
        "fsync": [1, False],
        "fsyncdir": [1, False],
        "release": [1],
        "releasedir": [1],
        "readdir": [1, 0, Token()],
        "statfs": [ctx],
        "getattr": [5, ctx],
        "readlink": [5, ctx],
        "opendir": [5, ctx],
        "listxattr": [5, ctx],
        "lookup": [1, b"n", ctx],
        "unlink": [1, b"n", ctx],
        "rmdir": [1, b"n", ctx],
        "access": [5, os.R_OK, ctx],
        "open": [5, os.O_RDONLY, ctx],
        "getxattr": [5, b"user.a", ctx],
        "removexattr": [5, b"user.a", ctx],
        "setxattr": [5, b"user.a", b"v", ctx],
    }
    return table[name]


class _Anything:
    def __getattr__(self, name: str) -> int:
        return 1


WITHOUT_TREE = {"flush"}
SERVED = [
    name
    for name, guarded in sorted(GUARDED.items())
    if guarded is not Guarded.UNSUPPORTED and name not in WITHOUT_TREE
]


@pytest.mark.parametrize("error", BUGS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", SERVED)
async def test_a_bug_is_a_logged_eio(
    world: World, caplog: pytest.LogCaptureFixture, name: str, error: Exception
) -> None:
    world.ops._tree = BrokenTree(error)
    await refused(getattr(world.ops, name)(*arguments(name)), errno.EIO)
    assert name in caplog.text
    assert all(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize("error", [OSError("no errno"), OSError()])
async def test_an_oserror_without_an_errno_is_a_bug_too(
    world: World, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    world.ops._tree = BrokenTree(error)
    await refused(world.ops.statfs(world.ctx), errno.EIO)
    assert "statfs" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EXDEV, errno.ENOSPC])
@pytest.mark.parametrize("name", SERVED)
async def test_an_errno_is_passed_on_and_is_no_bug(
    world: World, caplog: pytest.LogCaptureFixture, name: str, number: int
) -> None:
    world.ops._tree = BrokenTree(OSError(number, os.strerror(number)))
    await refused(getattr(world.ops, name)(*arguments(name)), number)
    assert not caplog.records


@pytest.mark.parametrize("name", SERVED)
async def test_a_refusal_is_eacces_and_counted(world: World, name: str) -> None:
    world.ops._tree = BrokenTree(Refused("some rule", lambda: b"p"))
    await refused(getattr(world.ops, name)(*arguments(name)))
    assert world.audit.refused == {"some rule": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
async def test_what_ends_the_program_is_let_through(world: World, error: BaseException) -> None:
    world.ops._tree = BrokenTree(error)
    with pytest.raises(type(error)):
        await world.ops.statfs(world.ctx)


async def test_flush_turns_itself_off(world: World) -> None:
    await refused(world.ops.flush(1), errno.ENOSYS)


@pytest.mark.parametrize("name", ["read", "write", "fsync", "release", "readdir", "fsyncdir"])
async def test_handles_that_were_never_handed_out(world: World, name: str) -> None:
    await refused(getattr(world.ops, name)(*arguments(name)), errno.EBADF)


async def test_an_error_in_a_worker_thread_is_an_errno(world: World) -> None:
    handle, _ = await world.create(ROOT_ID, b"f", os.O_WRONLY)
    await refused(world.ops.read(handle, 0, 10), errno.EBADF)
    await world.ops.fsync(handle, True)
    await world.ops.release(handle)
    await refused(world.ops.release(handle), errno.EBADF)


def _broken(*_: object) -> None:
    raise KeyError("missing")


async def test_a_tree_that_breaks_once_serves_the_next_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Tree, "getattr", _broken)
        await refused(world.ops.getattr(ROOT_ID, world.ctx), errno.EIO)
    assert (await world.ops.getattr(ROOT_ID, world.ctx)).st_mode


def test_the_settings_that_keep_the_guest_s_view_the_host_s() -> None:
    assert operations.Operations.enable_writeback_cache is False
    assert operations.Operations.supports_dot_lookup is False
