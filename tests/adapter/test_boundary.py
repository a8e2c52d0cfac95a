"""The error boundary: whatever happens below, the session sees an errno or an answer."""

import errno
import logging
import os

import pyfuse3
import pytest
from pyfuse3 import FUSEError

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import HandleId, RequestError
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.file_flags import GET_FLAGS
from gitguardfs.fs.files import Files
from gitguardfs.fs.locks import Range
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names.rules import Refused
from gitguardfs.options.rate_limit import RateLimit
from gitguardfs.sessions.kernel_session.replies import Listing
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Broken, Context, Token, World, open_descriptors, refused
from tests.support.kernel_client import arguments_of
from tests.support.request_table import GUARDED_BY, KERNEL_ALONE, GuardedBy

BUGS = [
    KeyError("k"), RuntimeError("r"), MemoryError(), ValueError("v"), RecursionError("deep"),
    AssertionError(), StopIteration(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
]  # fmt: skip


def arguments(name: str) -> list[object]:
    """Return as many arguments as a handler takes; no part of the world uses them."""
    ctx = Context()
    table: dict[str, list[object]] = {
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
        "tmpfile": [5, 0o644, os.O_RDWR, ctx],
        "statx": [5, ctx],
        "ioctl": [5, GET_FLAGS, b"", ctx],
        "fallocate": [1, 0, 1, 0],
        "lseek": [1, 0, os.SEEK_DATA],
        "copy_file_range": [1, 0, 1, 0, 1],
        "getlk": [1, 2, False, Range(0, 1, 0, 3)],
        "setlk": [1, 2, False, Range(0, 1, 0, 3)],
    }
    return table[name]


class _Anything:
    def __getattr__(self, name: str) -> int:
        return 1


WITHOUT_PARTS = {"flush"}
WITHOUT_ANSWER = {"forget"}
SERVED = [
    name
    for name, guarded in sorted(GUARDED_BY.items())
    if guarded is not GuardedBy.UNSUPPORTED and name not in WITHOUT_PARTS | WITHOUT_ANSWER
]


@pytest.mark.parametrize("error", BUGS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", SERVED)
async def test_a_bug_is_a_logged_eio(
    world: World, caplog: pytest.LogCaptureFixture, name: str, error: Exception
) -> None:
    world.break_with(error)
    await refused(getattr(world.ops, name)(*arguments(name)), errno.EIO)
    assert name in caplog.text
    assert all(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize("error", [KeyError("k"), OSError(errno.ENOSPC, ""), Refused("a rule")])
@pytest.mark.parametrize("name", [*SERVED, *KERNEL_ALONE])
def test_only_request_errors_leave_the_view(world: World, name: str, error: Exception) -> None:
    """The session needs no boundary of its own. Nothing of the request is kept."""
    world.break_with(error)
    given = arguments_of(name, tuple(arguments(name)))
    with pytest.raises(RequestError) as raised:
        world.view.serve(name, *given)
    assert raised.value.errno == getattr(error, "errno", errno.EIO)
    assert raised.value.__context__ is None


@pytest.mark.parametrize("error", [OSError("no errno"), OSError()])
async def test_an_oserror_without_an_errno_is_a_bug_too(
    world: World, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    world.break_with(error)
    await refused(world.ops.statfs(world.ctx), errno.EIO)
    assert "statfs" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EXDEV, errno.ENOSPC])
@pytest.mark.parametrize("name", SERVED)
async def test_an_errno_is_passed_on_and_is_no_bug(
    world: World, caplog: pytest.LogCaptureFixture, name: str, number: int
) -> None:
    world.break_with(os_error(number))
    await refused(getattr(world.ops, name)(*arguments(name)), number)
    assert not caplog.records


@pytest.mark.parametrize("name", SERVED)
async def test_what_one_object_does_not_support_is_not_turned_off_for_all(
    world: World, name: str
) -> None:
    """The kernel takes ENOSYS for the answer to all further requests of that kind."""
    world.break_with(OSError(errno.ENOSYS, "not implemented"))
    meant = name in ("getxattr", "listxattr")
    number = errno.ENOSYS if meant else errno.EOPNOTSUPP
    await refused(getattr(world.ops, name)(*arguments(name)), number)


@pytest.mark.parametrize("name", SERVED)
async def test_a_refusal_is_eacces_and_counted(world: World, name: str) -> None:
    world.break_with(Refused("some rule", lambda: b"p"))
    await refused(getattr(world.ops, name)(*arguments(name)))
    assert world.audit.refused == {"some rule": 1}


@pytest.mark.parametrize("number", [0, -1, 512, 529, 10**9, "EIO", 5.0, None])
async def test_an_errno_that_the_kernel_takes_no_reply_with_is_eio(
    world: World, number: object
) -> None:
    """From 512 on they are its own, and the caller would wait for ever."""
    error = OSError("text")
    error.errno = number  # type: ignore[assignment]
    world.break_with(error)
    await refused(world.ops.statfs(world.ctx), errno.EIO)


@pytest.mark.parametrize("error", [*BUGS, OSError(errno.ESTALE, "stale"), FUSEError(errno.EIO)])
async def test_forget_raises_nothing_and_goes_on(world: World, error: Exception) -> None:
    """pyfuse3 awaits it in its own loop: an exception that left it would end the mount."""
    for name in "abc":
        (world.source / name).touch()
    nodes = [await world.id(name) for name in "abc"]
    forget = world.tree.forget

    def breaks(node: int, times: int) -> None:
        forget(node, times)
        if node == nodes[0]:
            raise error

    world.tree.forget = breaks  # type: ignore[method-assign]
    await world.ops.forget([(node, 1) for node in nodes])
    assert len(world.tree.nodes) == 1


async def test_forget_goes_on_if_a_lease_cannot_be_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.source / "a").touch()
    node = await world.id("a")
    world.tree.descriptors.passing.append(world.tree.nodes.root)
    monkeypatch.setattr(world.tree.descriptors, "close_passing", _broken)
    await world.ops.forget([(5, 1), (node, 1)])
    assert len(world.tree.nodes) == 1


@pytest.mark.parametrize("name", SERVED)
async def test_a_log_that_fails_is_no_end(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(logging.getLogger("gitguardfs.view.view"), "error", _broken)
    world.break_with(KeyError("k"))
    await refused(getattr(world.ops, name)(*arguments(name)), errno.EIO)
    await world.ops.forget([(5, 1)])


@pytest.mark.parametrize("name", SERVED)
async def test_an_audit_that_fails_leaves_a_refusal_a_refusal(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(world.audit, "refuse", _broken)
    world.break_with(Refused("some rule", lambda: b"p"))
    await refused(getattr(world.ops, name)(*arguments(name)))
    assert "not noted" in caplog.text


# Answers that pyfuse3 cannot translate


@pytest.mark.parametrize("name", ["read", "write"])
async def test_a_rate_that_fails_is_no_end(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The steps after the transfer itself are within the boundary as well."""
    world = make_world(read_rate=1e6, write_rate=1e6)
    handle, _ = await world.create(ROOT_ID, b"f")
    arguments = {"read": (handle, 0, 1), "write": (handle, 0, b"x")}[name]
    with monkeypatch.context() as patch:
        patch.setattr(RateLimit, "delay", _broken)
        await refused(getattr(world.ops, name)(*arguments), errno.EIO)
    await world.ops.release(handle)


async def test_a_listing_that_breaks_off_has_told_of_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gets only the error: it does not know of lookups that were counted before."""
    for name in "abcd":
        (world.source / name).touch()
    told: list[bytes] = []

    def reply(token: object, name: bytes, *rest: object) -> bool:
        told.append(name)
        if len(told) == 5:
            raise OverflowError
        return True

    handle = await world.ops.opendir(ROOT_ID, world.ctx)
    with monkeypatch.context() as patch:
        patch.setattr(pyfuse3, "readdir_reply", reply)
        patch.setattr(Listing, "add", lambda listing, entry: reply(listing, entry.name))
        await refused(world.ops.readdir(handle, 0, Token()), errno.EIO)
    assert len(world.tree.nodes) == 1
    await world.ops.releasedir(handle)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
async def test_what_ends_the_program_is_let_through(world: World, error: BaseException) -> None:
    world.break_with(error)
    with pytest.raises(type(error)):
        await world.ops.statfs(world.ctx)


async def test_flush_turns_itself_off_where_the_source_is_local(world: World) -> None:
    await refused(world.ops.flush(1), errno.ENOSYS)


async def test_errors_of_a_server_are_reported_at_every_close(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This goes for the descriptor for pages of a mapping, too; none is left open."""
    world = make_world(is_local=False)
    (world.source / "f").write_bytes(b"x" * 5000)
    handle = await world.open("f", os.O_RDWR | os.O_APPEND)
    assert await world.ops.write(handle, 0, b"y" * 4096) == 4096
    before, close = open_descriptors(), os.close
    errors = [errno.EDQUOT, errno.ENOSPC]

    def fails(fd: int) -> None:
        close(fd)
        if errors:
            raise OSError(errors.pop(0), "")

    monkeypatch.setattr(os, "close", fails)
    await refused(world.ops.flush(handle), errno.EDQUOT)
    assert not errors
    await world.ops.flush(handle)
    assert open_descriptors() == before
    await world.ops.release(handle)
    await refused(world.ops.flush(handle), errno.EBADF)


@pytest.mark.parametrize(
    ("flags", "is_ninep"), [(os.O_RDONLY, False), (os.O_WRONLY, False), (os.O_WRONLY, True)]
)
async def test_closing_needs_a_thread_only_if_a_server_may_have_to_write(
    make_world: MakeWorld, flags: int, is_ninep: bool
) -> None:
    world = make_world(is_local=False, is_ninep=is_ninep)
    (world.source / "f").touch()
    handle = HandleId(await world.open("f", flags))
    waits = world.requests.flush(handle)
    assert (waits is None) == (flags == os.O_RDONLY or is_ninep)
    if waits is not None:
        with waits:
            waits.run()
    await world.ops.release(int(handle))


async def test_a_close_that_one_file_does_not_support_is_asked_for_at_the_next(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one ENOSYS no close of the whole mount would report an error."""
    world = make_world(is_local=False, is_ninep=True)
    handle, _ = await world.create(ROOT_ID, b"f")
    with monkeypatch.context() as patch:
        patch.setattr(Files, "_duplicates", Broken(os_error(errno.ENOSYS)))
        await refused(world.ops.flush(handle), errno.EOPNOTSUPP)
    await world.ops.release(handle)


async def test_a_local_file_in_a_source_with_others_has_nothing_to_report(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(is_local=False)
    world.tree.source.is_local = lambda device: device == os.stat(world.source).st_dev
    handle, _ = await world.create(ROOT_ID, b"f")
    monkeypatch.setattr(Files, "_duplicates", _broken)
    await world.ops.flush(handle)
    await world.ops.release(handle)


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
        patch.setattr(AttributeMapper, "report", _broken)
        await refused(world.ops.getattr(ROOT_ID, world.ctx), errno.EIO)
    assert (await world.ops.getattr(ROOT_ID, world.ctx)).st_mode
