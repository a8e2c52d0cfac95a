"""The kernel's session, request by request: each is answered once, whatever is in it."""

import errno
import logging
import os
import tempfile
from pathlib import Path
from stat import S_IFREG
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gitguardfs.base.protocol import (
    Attributes,
    Caller,
    DirEntry,
    EntryReply,
    OpenReply,
    RequestError,
)
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.file_flags import SET_FLAGS
from gitguardfs.fs.locks import Locks
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.names.dotgit import is_dotgit
from gitguardfs.sessions.kernel_session import session as module
from gitguardfs.sessions.kernel_session.abi import BUFFER_SIZE, Opcode
from gitguardfs.sessions.kernel_session.requests import FORMS
from gitguardfs.view.view import View
from tests.adapter.test_boundary import SERVED, arguments
from tests.adapter.world import Context, World, open_descriptors
from tests.support.kernel_client import (
    BODIES,
    NO_REPLY,
    OPCODES,
    REPLIES,
    KernelClient,
    _pack,
    checked,
    packed,
    request,
)
from tests.support.request_table import KERNEL_ALONE, REQUESTS, GuardedBy

ITSELF = {
    Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INIT, Opcode.INTERRUPT, Opcode.DESTROY,
}  # fmt: skip
"""Requests that the session takes itself."""
NOT_SERVED = {
    Opcode.READDIR: "DO_READDIRPLUS without READDIRPLUS_AUTO: the kernel sends none",
    Opcode.BMAP: "for block devices only (fuseblk)",
    Opcode.POLL: "after ENOSYS every file is always ready, as on a disk",
    Opcode.NOTIFY_REPLY: "the answer to NOTIFY_RETRIEVE, which is never sent",
    Opcode.SETUPMAPPING: "for DAX of virtiofs only",
    Opcode.REMOVEMAPPING: "for DAX of virtiofs only",
    Opcode.SYNCFS: "for virtiofs and fuseblk only",
}
CONTEXT = Context(0, 0, 1)
ALSO = {Opcode.RENAME, Opcode.COPY_FILE_RANGE, Opcode.SETLKW}
"""Requests of the view that come by a second opcode."""


class FakeTree:
    """A tree whose requests all do the same."""

    def __init__(self, verb: Any) -> None:
        self.descriptors = SimpleNamespace(request=0, passing=[])
        self._verb = verb

    def __getattr__(self, _name: str) -> Any:
        return self._verb


def client_of(verb: Any) -> KernelClient:
    return KernelClient(View(FakeTree(verb), AuditLog(None)), lambda _: None)


def test_every_opcode_is_classed(world: World) -> None:
    assert set(Opcode) == set(FORMS) | ITSELF | set(NOT_SERVED)
    assert len(Opcode) == len(FORMS) + len(ITSELF) + len(NOT_SERVED)
    assert set(world.ops.session._own) == ITSELF | {Opcode.IOCTL}


def test_every_request_of_the_view_is_reached() -> None:
    reached = {form.request for form in FORMS.values()} | {"forget"}
    served = {name for name, by in REQUESTS.items() if by is not GuardedBy.UNSUPPORTED}
    assert reached == served == {*BODIES, "forget"}
    assert {form.request: opcode for opcode, form in FORMS.items() if opcode not in ALSO} == {
        name: OPCODES[name] for name in BODIES
    }
    for form in FORMS.values():
        on_handle = REQUESTS[form.request] in (GuardedBy.HANDLE, GuardedBy.OPEN_NODE)
        assert form.has_caller == (not on_handle), form.request


@pytest.mark.parametrize("opcode", [*NOT_SERVED, 0, 7, 19, 54, 1000, 4096, 2**32 - 1])
def test_what_is_not_served_is_enosys_and_asks_nobody(opcode: int) -> None:
    client = client_of(lambda *_: pytest.fail("the tree was asked"))
    client.send(request(opcode, 2, ROOT_ID, bytes(200)))
    assert checked(client.wire.replies[2]) == (2, errno.ENOSYS, b"")
    client.close()


def test_a_request_whose_length_is_wrong_is_eio_and_asks_nobody() -> None:
    client = client_of(lambda *_: pytest.fail("the tree was asked"))
    whole = packed("lookup", 2, (ROOT_ID, b"name", CONTEXT))
    short = request(Opcode.READ, 2, 0, bytes(39))
    for sent in (whole[:-1], whole + b"x", b"\xff" * 4 + whole[4:], short):
        client.send(sent)
        assert checked(client.wire.replies.pop(2)) == (2, errno.EIO, b"")
    client.close()


async def test_the_first_form_of_a_rename_is_one_without_flags(world: World) -> None:
    (world.source / "a").touch()
    body = _pack("Q", ROOT_ID) + b"a\0b\0"
    world.ops.send(request(Opcode.RENAME, 2, ROOT_ID, body, world.ctx))
    assert checked(world.ops.wire.replies[2]) == (2, 0, b"")
    assert os.listdir(world.source) == ["b"]


async def test_the_caller_is_the_one_of_the_header(world: World) -> None:
    seen: list[Caller] = []
    world.tree.getattr = lambda caller, node: seen.append(caller)  # type: ignore[return-value]
    ctx = SimpleNamespace(uid=2**32 - 2, gid=77, pid=12345)
    world.ops.send(packed("getattr", 2, (ROOT_ID, ctx)))
    assert seen == [(2**32 - 2, 77, 12345)]


def test_init_agrees_on_the_older_version_and_on_flags_that_are_offered() -> None:
    client, made = client_of(None), []
    client.session._ready = lambda: made.append("ready")
    for unique, minor, offered in ((2, 36, 1 << 13 | 1 << 20), (4, 99, 2**32 - 1)):
        client.send(request(Opcode.INIT, unique, 0, _pack("IIII", 7, minor, 131072, offered)))
        _, number, data = checked(client.wire.replies[unique])
        words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, 64, 4)]
        assert (number, len(data), words[0], words[1], words[2]) == (
            0, 64, 7, min(minor, 45), 131072,
        )  # fmt: skip
        assert words[3] & ~offered & ~(1 << 30) == 0
        assert words[3] & 1 << 13, "DO_READDIRPLUS"
        assert not words[3] & (1 << 14 | 1 << 1 | 1 << 10 | 1 << 16), (
            "READDIRPLUS_AUTO, locks, the writeback cache"
        )
        assert words[5] == 1 << 20
        assert words[5] + 4096 <= BUFFER_SIZE
    assert made == ["ready", "ready"]
    client.close()


def test_a_ready_that_fails_leaves_the_mount(caplog: pytest.LogCaptureFixture) -> None:
    client = client_of(None)
    client.session._ready = lambda: [][0]
    client.send(request(Opcode.INIT, 2, 0, _pack("IIII", 7, 40, 0, 0)))
    assert checked(client.wire.replies[2])[1] == 0
    assert "stays mounted" in caplog.text
    client.close()


# Replies that are none

NONSENSE = [
    "text", -1, 2**64, 1.5, [], [1], {}, object, (), (1, 2), True, None, b"x" * 3, OpenReply,
    EntryReply(1, Attributes(*[-1] * 12), 1.0, 1.0),
    EntryReply(1, Attributes(*[2**64] * 12), 1.0, 1.0),
    EntryReply(2**64, Attributes(*[1] * 12), 1.0, 1.0),
    EntryReply(1, Attributes(*[1] * 12), -1.0, float("nan")),
    EntryReply(1, Attributes(*["x"] * 12), 1.0, 1.0),
    EntryReply(1, None, float("inf"), 1.0),
    OpenReply(-1, False, False), OpenReply(2**64, True, True), OpenReply(1, "yes", False),
    (OpenReply(1, False, False), None), (None, EntryReply(0, None, 1.0, 1.0)),
    ["text"], [None], [b"a", 5],
]  # fmt: skip


@pytest.mark.parametrize("reply", NONSENSE, ids=lambda reply: f"{reply!r:.60}")
def test_a_reply_that_is_none_is_eio(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    """Some are valid for a few requests, such as an empty sequence of names."""
    monkeypatch.setattr(logging.getLogger("gitguardfs.view.view"), "disabled", True)
    client = client_of(lambda *_: reply)
    for name in (*SERVED, *KERNEL_ALONE):
        client.send(packed(name, 2, tuple(arguments(name))))
        _, error, data = checked(client.wire.replies[2])
        if error:
            assert error == errno.EIO
        else:
            REPLIES[name](data)
    client.close()


@pytest.mark.parametrize("number", [0, -5, 512, 2**31, 10**30, "EIO", None, 5.0])
def test_an_errno_that_is_none_is_eio(number: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: object) -> None:
        raise RequestError(number)

    client = client_of(fails)
    for name in (*SERVED, *KERNEL_ALONE):
        client.send(packed(name, 2, tuple(arguments(name))))
        assert checked(client.wire.replies[2]) == (2, errno.EIO, b"")
        assert name in caplog.text
    client.close()


def test_a_listing_whose_entry_is_none_is_eio_alone() -> None:
    def readdir(_handle: int, _offset: int, add: Any) -> None:
        assert add(DirEntry(b"good", 1, None, S_IFREG, 5))
        add(DirEntry(b"bad", 2**64, None, S_IFREG, 5))

    client = client_of(readdir)
    client.send(packed("readdir", 2, (1, 0, SimpleNamespace(room=100))))
    assert checked(client.wire.replies[2]) == (2, errno.EIO, b"")
    client.close()


async def test_debug_lines_name_requests_and_results_and_may_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, module.__name__)
    client = client_of(lambda *_: None)
    client.send(request(Opcode.GETATTR, 2, 1, bytes(16)))
    client.send(request(1234, 4, 1, b""))
    assert "opcode: GETATTR, node: 1" in caplog.text
    assert "opcode: 1234" in caplog.text
    assert os.strerror(errno.ENOSYS) in caplog.text
    monkeypatch.setattr(module.log, "debug", lambda *_: [][0])
    client.send(request(Opcode.ACCESS, 6, 1, bytes(8)))
    assert checked(client.wire.replies[6]) == (6, 0, b"")
    client.close()


# Requests that no kernel sends

GUARDED = [b".git", b".GIT", b"git~1", b".git. ."]
PIECES = st.one_of(
    st.binary(max_size=40), st.sampled_from([*GUARDED, b"file", b"dir", b"", b"a/b", b".", b".."]),
    st.just(b"\0"), st.integers(0, 2**64 - 1).map(lambda number: number.to_bytes(8, "little")),
    st.integers(0, 9).map(lambda number: number.to_bytes(8, "little")),
    st.integers(0, 2**32 - 1).map(lambda number: number.to_bytes(4, "little")),
)  # fmt: skip
BYTES = st.lists(PIECES, max_size=12).map(b"".join)


def quads(*numbers: int) -> bytes:
    return _pack("Q" * len(numbers), *numbers)


NUMBERS = st.sampled_from([*range(6), 2**52 + 1, 3 << 61, 2**63 - 1, 2**64 - 1])
"""Handles, nodes, offsets, sizes."""
ANY_REQUEST = st.one_of(
    st.tuples(
        st.sampled_from([*map(int, Opcode)]) | st.integers(0, 2**32 - 1),
        st.integers(0, 6) | st.integers(0, 2**64 - 1), BYTES,
        st.none() | st.integers(0, 2**32 - 1),
    ),
    st.tuples(
        st.sampled_from([*map(int, FORMS)]), st.integers(0, 6),
        st.lists(NUMBERS, min_size=3, max_size=8).map(lambda numbers: quads(*numbers)), st.none(),
    ),
)  # fmt: skip
"""Opcode, node or its place in the list of known ones, body, and the header's length where it is
wrong."""
HUGE = b"\xff" * 8
ON_HANDLES = (15, 16, 18, 20, 25, 29, 30, 31, 32, 33, 43, 44, 46, 47, 53)
FILE, READING, DIRECTORY = 1, 2, 3
"""The handles that are open."""


def contents(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in sorted(directory.rglob("*")):
        st = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (st.st_mode, st.st_uid, data)
    return found


def guarded_in(source: Path) -> dict[str, dict[str, tuple[int, int, bytes]]]:
    """Return what git could take for a repository, and what is in it."""
    found = (path for path in source.rglob("*") if is_dotgit(os.fsencode(path.name)))
    return {str(path): contents(path) for path in found}


def allocates_little(fd: int, mode: int, offset: int, length: int) -> None:
    if 1 << 20 < length < 1 << 62:
        raise OSError(errno.EFBIG, "it would fill the disk of the tests")
    Source.fallocate(fd, mode, offset, length)


def arguments_read(opcode: int, whole: bytes, beyond: bytes) -> list[object] | None:
    """Return what a request says; None if it is malformed. ``beyond`` is what a former one left."""
    form = FORMS.get(opcode)
    if form is None or len(whole) < form.least:
        return None
    try:
        _, read = form.read(5, whole + beyond, len(whole))
    except Exception:
        return None
    return [bytes(one) if isinstance(one, memoryview) else one for one in read if not callable(one)]


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY_REQUEST, min_size=1, max_size=30))
@example([(42, 0, HUGE, None), (42, 0, HUGE * 3, None), (2, 1, b"", None), (42, 0, b"", None)])
@example([(16, 1, HUGE * 5, None), (15, 1, HUGE * 5, None), (44, 1, HUGE * 5, None)])
@example([(12, 1, b"", None), (45, 1, b".git", None), (6, 1, b"\0", None), (21, 1, b"", None)])
@example([(4, 2, HUGE * 11, None), (35, 1, HUGE * 2 + b".git\0", None), (1, 1, b".git\0", 5)])
@example([(opcode, 2, b"", None) for opcode in (*ON_HANDLES, 39, 51)])
@example([(opcode, 2, quads(FILE), None) for opcode in (*ON_HANDLES, 39, 51)])
@example([(opcode, 3, quads(FILE) + HUGE * 8, None) for opcode in ON_HANDLES])
@example([(opcode, 2, quads(DIRECTORY, *range(7)), None) for opcode in ON_HANDLES])
@example([(47, 2, quads(READING, 0, 3, to, 0, 4, 0), None) for to in (FILE, DIRECTORY)])
@example([(32, 2, quads(FILE, owner, 0, 9, 1, 0), None) for owner in (1, 2)])
@example([(33, 2, quads(FILE, owner, 0, 9, 1, 0), None) for owner in (1, 2)])
@example([(43, 4, quads(READING, 0, 9, 0), None), (46, 4, quads(FILE, 0, 3), None)])
@example(
    [(39, node, _pack("QIIQII", FILE, 0, SET_FLAGS, 0, 999, 0) + b"xx", None) for node in (2, 3, 4)]
)
@example([(opcode, 4, _pack("IIII", os.O_RDWR, 0o644, 0, 0) + b"/\0", None) for opcode in (51, 52)])
def test_malformed_requests_are_answered_once_and_open_nothing_guarded(
    sent: list[tuple[int, int, bytes, int | None]],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        (source / ".git").mkdir(parents=True)
        (source / ".git/config").write_text("guarded")
        (source / "dir/.git").mkdir(parents=True)
        (source / "file").write_text("text")
        before, descriptors = guarded_in(source), open_descriptors()
        world = World(source, session=KernelClient, is_lean=False)
        client = world.ops
        world.tree.locks = Locks(world.tree.source)
        world.tree.source.fallocate = allocates_little  # type: ignore[method-assign]
        known = [0, ROOT_ID]
        for name in (b"file", b"dir", b".git"):
            client.send(packed("lookup", 2, (ROOT_ID, name, world.ctx)))
            known.append(REPLIES["lookup"](checked(client.wire.replies[2])[2]).st_ino)
        for name, *more in (("open", 2, os.O_RDWR), ("open", 2, os.O_RDONLY), ("opendir", 3)):
            client.send(packed(name, 2, (known[more[0]], *more[1:], world.ctx)))
        client.wire.replies.clear()
        for number, (opcode, node, body, length) in enumerate(sent):
            node = known[node] if node < len(known) else node
            whole = request(opcode, 2 * number + 4, node, body, world.ctx)
            assert arguments_read(opcode, whole, HUGE * 20) == arguments_read(
                opcode, whole, quads(*[FILE] * 20)
            ), "memory beyond a request is read"
            if length is not None:
                whole = length.to_bytes(4, "little") + whole[4:]
            client.send(whole)
            while client.session._under_way:
                if tries := client.session._under_way._tries:
                    (waiting, *_), *_ = tries.values()
                    client.send(request(Opcode.INTERRUPT, 0, 0, quads(waiting)))
                    continue
                client.session._under_way.wait(-1)
                client.session._take_returned()
        assert not client.wire.unanswered
        answered = {
            2 * number + 4 for number, (opcode, *_) in enumerate(sent) if opcode not in NO_REPLY
        }
        assert set(client.wire.replies) == answered
        assert guarded_in(source) == before
        opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in open_descriptors()}
        assert f"{source}/.git/config" not in opened
        for handle in [*world.tree.handles.files]:
            world.tree.release(handle)
        world.close()
        assert open_descriptors() == descriptors
