"""A source directory with Operations and Handlers over it, and the parts of a kernel."""

import copy
import errno
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyfuse3
import pytest
from pyfuse3 import EntryAttributes, FUSEError

from gitguardfs.base.protocol import Attributes, Caller, EntryReply, RequestError
from gitguardfs.fs import parts, revalidation
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.lean.changes import tree_of
from gitguardfs.fs.nodes import ROOT_ID, Node
from gitguardfs.fs.parts import SourceTraits
from gitguardfs.fs.tree import Tree
from gitguardfs.names.rules import GuardRules
from gitguardfs.options.change_policy import ChangePolicy, SymlinkPolicy, XattrPolicy
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.sessions.pyfuse3_session import handlers
from gitguardfs.sessions.pyfuse3_session.handlers import Handlers
from gitguardfs.view.git_files import GitFiles, Repositories
from gitguardfs.view.view import View

Later = Callable[[], None]

FAILED = (FUSEError, RequestError)
"""The exceptions by which a session fails a request."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
"""A user's run leaves these tests out; in CI, which runs as root, nothing may be skipped."""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Return a function that lets VERDICT_TTL pass."""
    passed = [0.0]
    monkeypatch.setattr(revalidation, "clock", lambda: time.monotonic() + passed[0])

    def pass_time() -> None:
        passed[0] += revalidation.VERDICT_TTL

    return pass_time


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """Return a list that gets ``name`` at each call of this method of an object or a class."""
    original = getattr(owner, name)
    calls: list[str] = []

    def call(*arguments: Any) -> Any:
        calls.append(name)
        return original(*arguments)

    monkeypatch.setattr(owner, name, call)
    return calls


@dataclass
class Context:
    """What stands in for pyfuse3.RequestContext, whose fields cannot be set."""

    uid: int = field(default_factory=os.geteuid)
    gid: int = field(default_factory=os.getegid)
    pid: int = field(default_factory=os.getpid)
    umask: int = 0


@dataclass
class Fields:
    """What stands in for pyfuse3.SetattrFields."""

    update_size: bool = False
    update_mode: bool = False
    update_uid: bool = False
    update_gid: bool = False
    update_atime: bool = False
    update_mtime: bool = False
    update_ctime: bool = False


class CountingView(AttributeMapper):
    """A view that notes what left through it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.presented: list[Attributes | None] = []

    def report(self, node: Node, st: os.stat_result, uid: int) -> EntryReply:
        reply = super().report(node, st, uid)
        self.presented.append(reply.attributes)
        return reply


class Broken:
    """Every attribute of it raises when it is called or used."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, name: str) -> object:
        raise self.error

    def __call__(self, *_: object) -> object:
        raise self.error


class Token:
    """A reply to readdir that has room for ``room`` entries."""

    def __init__(self, room: int = 10**6) -> None:
        self.room = room
        self.entries: list[tuple[bytes, EntryAttributes, int]] = []


def readdir_reply(token: Token, name: bytes, attr: EntryAttributes, next_id: int) -> bool:
    """What stands in for pyfuse3.readdir_reply."""
    if len(token.entries) >= token.room:
        return False
    token.entries.append((name, copy.copy(attr), next_id))
    return True


def values(entry: EntryAttributes) -> Attributes:
    """The fields of a reply, to be compared."""
    return Attributes(
        entry.st_ino, entry.st_mode, entry.st_nlink, entry.st_uid, entry.st_gid, entry.st_rdev,
        entry.st_size, entry.st_blocks, entry.st_blksize, entry.st_atime_ns, entry.st_mtime_ns,
        entry.st_ctime_ns,
    )  # fmt: skip


class Requests:
    """The requests of a view as methods, for tests without a session."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def request(*args: Any) -> Any:
            caller, rest = (args[0], args[1:]) if type(args[0]) is Caller else (None, args)
            return self._view.serve(name, caller, *rest)

        return request


class World:
    """One mount without a kernel."""

    def __init__(
        self,
        source: Path,
        rules: GuardRules | None = None,
        *,
        idmap: IdMap | None = None,
        descriptor_limit: int = 1000,
        read_only: bool = False,
        xattr: XattrPolicy = XattrPolicy.RW,
        allow_suid: bool = False,
        can_chown: bool | None = None,
        cache_timeout: float = 1.0,
        policy: ChangePolicy | None = None,
        symlinks: SymlinkPolicy | None = None,
        override: Any = None,
        reports_names_only: bool = False,
        read_rate: float | None = None,
        write_rate: float | None = None,
        is_local: bool = True,
        is_ninep: bool = False,
        session: Any = Handlers,
        repositories: Repositories | None = None,
        is_lean: bool = True,
    ) -> None:
        self.source = source
        self.root_fd = os.open(source, os.O_PATH | os.O_DIRECTORY)
        options = MountOptions(
            str(source), "", rules=rules or GuardRules(), allow_suid=allow_suid,
            policy=policy or ChangePolicy(xattr=xattr), symlinks=symlinks, read_only=read_only,
            cache_timeout=cache_timeout, read_rate=read_rate, write_rate=write_rate,
        )  # fmt: skip
        traits = SourceTraits(
            self.root_fd, idmap or IdMap(), descriptor_limit,
            os.geteuid() == 0 if can_chown is None else can_chown,
            lambda _: is_local, is_ninep, not is_local, override,
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "AttributeMapper", CountingView)
            self.tree = (tree_of if is_lean else Tree)(options, traits, reports_names_only)
        self.attributes = cast("CountingView", self.tree.attributes)
        self.audit = AuditLog(None)
        self.invalidated: list[int] = []
        git_files = None if repositories is None else GitFiles(self.tree, repositories)
        self.view = View(self.tree, self.audit, git_files=git_files)
        self.requests = Requests(self.view)
        self.ops: Any = session(self.view, self.invalidated.append)
        self.ctx = Context()
        self._whole: dict[str, Any] = {}

    def close(self) -> None:
        vars(self.tree).update(self._whole)
        if not isinstance(self.ops, Handlers):
            self.ops.close()
        self.tree.close()
        os.close(self.root_fd)

    def break_with(self, error: BaseException) -> None:
        """Let every request fail with ``error``, at the first part of the tree that it uses."""
        self._whole = dict(vars(self.tree))
        for name in self._whole:
            setattr(self.tree, name, Broken(error))

    # Requests as the kernel sends them

    async def entry(self, path: str | bytes) -> EntryAttributes:
        """Look a path up, component by component; FUSEError(ENOENT) if there is nothing."""
        reply: EntryAttributes = await self.ops.getattr(ROOT_ID, self.ctx)
        number = ROOT_ID
        for part in os.fsencode(path).split(b"/"):
            if part:
                reply = await self.ops.lookup(number, part, self.ctx)
                number = reply.st_ino
                if not number:
                    raise FUSEError(errno.ENOENT)
        return reply

    async def id(self, path: str | bytes) -> int:
        if not path:
            return ROOT_ID
        return int((await self.entry(path)).st_ino)

    async def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        return int((await self.ops.open(await self.id(path), flags, self.ctx)).fh)

    async def create(self, parent: int, name: bytes, flags: int = os.O_RDWR) -> tuple[int, int]:
        info, entry = await self.ops.create(parent, name, 0o644, flags, self.ctx)
        return int(info.fh), int(entry.st_ino)

    async def rename(self, old: str, new: str, flags: int = 0) -> None:
        (old_parent, _, old_name), (new_parent, _, new_name) = (
            path.rpartition("/") for path in (old, new)
        )
        await self.ops.rename(
            await self.id(old_parent), os.fsencode(old_name),
            await self.id(new_parent), os.fsencode(new_name), flags, self.ctx,
        )  # fmt: skip

    async def list(self, path: str, room: int = 10**6) -> dict[bytes, EntryAttributes]:
        """All entries but the dots, in as many requests as ``room`` makes necessary."""
        handle = await self.ops.opendir(await self.id(path), self.ctx)
        found: dict[bytes, EntryAttributes] = {}
        position = 0
        while True:
            token = Token(room)
            await self.ops.readdir(handle, position, token)
            if not token.entries:
                break
            found |= {name: entry for name, entry, _ in token.entries}
            position = token.entries[-1][2]
        await self.ops.releasedir(handle)
        return {name: entry for name, entry in found.items() if name not in (b".", b"..")}

    async def setattr(self, node: int, fh: int | None = None, **changes: int) -> EntryAttributes:
        attributes, fields = EntryAttributes(), Fields()
        for name, value in changes.items():
            stem = name.removesuffix("_ns")
            setattr(attributes, f"st_{name}", value)
            setattr(fields, f"update_{stem}", True)
        reply: EntryAttributes = await self.ops.setattr(node, attributes, fields, fh, self.ctx)
        return reply


@contextmanager
def stand_ins() -> Iterator[None]:
    """pyfuse3 without a session: contexts that can be made and replies that collect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handlers, "RequestContext", Context)
        patch.setattr(pyfuse3, "readdir_reply", readdir_reply)
        yield


async def read(world: World, node: int) -> bytes:
    """Open, read and close a node."""
    handle = (await world.ops.open(node, os.O_RDONLY, world.ctx)).fh
    try:
        return bytes(await world.ops.read(handle, 0, 4096))
    finally:
        await world.ops.release(handle)


async def touch(world: World, path: str) -> None:
    parent, _, name = path.rpartition("/")
    handle, _ = await world.create(await world.id(parent), name.encode())
    await world.ops.release(handle)


async def mkdir(world: World, path: str) -> None:
    parent, _, name = path.rpartition("/")
    await world.ops.mkdir(await world.id(parent), name.encode(), 0o755, world.ctx)


async def remove(world: World, path: str) -> None:
    parent, _, name = path.rpartition("/")
    await world.ops.unlink(await world.id(parent), name.encode(), world.ctx)


async def symlink(world: World, path: str, text: bytes) -> None:
    parent, _, name = path.rpartition("/")
    await world.ops.symlink(await world.id(parent), name.encode(), text, world.ctx)


async def refused(call: Awaitable[object], *numbers: int) -> int:
    """Await a call that has to fail with one of ``numbers``; returns which."""
    with pytest.raises(FAILED) as error:
        await call
    assert isinstance(error.value, FAILED)
    assert error.value.errno in (numbers or (errno.EACCES,)), os.strerror(error.value.errno)
    return error.value.errno


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))
