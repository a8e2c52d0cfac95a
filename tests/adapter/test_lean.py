"""The lean methods answer every request as the tree behind them does.

Two views serve two sources that are alike, one with and one without the lean methods. Each request
goes to both, and both hosts make each change. Replies, errors, tables and refusals must be equal.
"""

import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from random import Random
from stat import S_IFIFO, S_IFREG, S_ISDIR
from typing import Any
from unittest import mock

import pytest

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import (
    RENAME_EXCHANGE,
    Caller,
    DirEntry,
    EntryReply,
    OpenReply,
    RequestError,
    SetAttr,
)
from gitguardfs.fs import files, revalidation
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.blocking import Blocking
from gitguardfs.fs.lean.changes import tree_of
from gitguardfs.fs.new_entries import CLOCK_TICK_NS
from gitguardfs.fs.nodes import Directory, Node
from gitguardfs.fs.tree import Tree
from gitguardfs.linux.syscalls import mount, renameat2
from gitguardfs.mounting import build
from gitguardfs.mounting.preflight import MountPaths
from gitguardfs.options import mount_options
from gitguardfs.view.rows import NODE, NUMBERS
from tests.adapter.world import needs_root, open_descriptors
from tests.support.request_table import GUARDED_BY, GuardedBy

pytestmark = needs_root

NAMES = [b"a", b"b", b"file.txt", b"dir", b"deep", b"hooks", b"HEAD", b"refs", b"config", b".git",
         b"GIT~1", b".Git", b"deps", b"node_modules", b"secret.key", b"kept", b"x" * 300, b"..",
         b"\xc3\xa9", b"dir/b", b"dir/none", b"\0"]  # fmt: skip
USUAL = [b"a", b"b", b"file.txt", b"dir", b"deep"]
WALKS = 60
"""Walks of one seed."""
FLAGS = [os.O_RDONLY, os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_WRONLY | os.O_TRUNC,
         os.O_RDWR | os.O_EXCL]  # fmt: skip
MODES = [0o644, 0o600, 0o4755, 0o2755]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"git": "private", "local": ["deps", "node_modules"]},
    {"git": "off", "links": "raw"},
    {"git": "readonly"},
    {"git": "hide", "cache_timeout": 0.0},
    {"git": "list", "allow_bare": True, "map": ["0:1000"]},
    {"deny": ["*.key"], "protect": ["kept", "dir"], "hide": ["b"]},
    {"read_only": True},
    {"delete_deny": True, "rename_deny": True},
    {"create_with_perms": "g+w,o-rwx", "create_for_user": "0", "xattr": "rw"},
    {"allow_suid": True, "direct_io": True},
    {"mirror": "1000"},
    {"resolve_symlinks": True},
]  # fmt: skip
TRAITS: list[dict[str, Any]] = [
    {}, {"is_local": lambda _: False, "closes_late": True}, {"can_chown": False},
    {"is_local": lambda _: False, "is_ninep": True},
]  # fmt: skip
SETATTRS = [
    SetAttr(mode=0o600), SetAttr(uid=1000, gid=1000), SetAttr(size=2), SetAttr(mtime_ns=10**18),
    SetAttr(),
]  # fmt: skip
CALLERS = [Caller(0, 0, 7), Caller(1000, 1000, 8), Caller(1000, 50, 9), Caller(4242, 4242, 10)]


class Clock:
    """The clock of verdicts, which only the test moves on."""

    now = 1000.0


class Refusals(AuditLog):
    """Refusals as (request, rule, path, uid, pid)."""

    def __init__(self) -> None:
        super().__init__(None)
        self.lines: list[tuple[object, ...]] = []

    def refuse(self, operation: str, refused: Any, uid: int, pid: int) -> None:
        self.lines.append((operation, refused.rule, refused.where(), uid, pid))


class Side:
    """A source, its view, and the numbers that the view has given out, in order."""

    def __init__(
        self,
        place: Path,
        options: dict[str, Any],
        traits: dict[str, Any],
        kind: Callable[..., Tree],
    ) -> None:
        self.source, mountpoint = place / "source", place / "view"
        self.source.mkdir(parents=True)
        mountpoint.mkdir()
        fill(self.source)
        self.fds = [os.open(p, os.O_PATH | os.O_DIRECTORY) for p in (self.source, mountpoint)]
        stores = {f"{kind}_store": str(place / kind) for kind in ("private", "local")}
        given = {**options, **(stores if "local" in options else {})}
        chosen = mount_options.build(str(self.source), str(mountpoint), given)
        paths = MountPaths(str(self.source), self.fds[0], str(mountpoint), self.fds[1])
        self.audit = Refusals()
        trees: list[Tree] = []

        def make(*args: Any) -> Tree:
            trees.append(kind(*args))
            return trees[-1]

        def traits_of(*args: Any) -> Any:
            return replace(whole(*args), **traits)

        whole = build.traits_of
        with (
            mock.patch.object(build, "tree_of", make),
            mock.patch.object(build, "traits_of", traits_of),
        ):
            self.tables, self.view = build.assemble(chosen, paths, self.audit, self.fds[0], True)
        self.trees = trees
        self.nodes: list[int] = [1]
        self.numbers = {1: 0}
        self.handles: list[int] = []
        self.directory = 0
        self.listed: list[Any] = []
        self.counts: Counter[int] = Counter()
        self.directories: set[int] = set()
        self.notes: list[Any] = []
        self.is_noted = self.view.note_changes(self.notes.append)

    def close(self) -> None:
        self.tables.close()
        for fd in self.fds:
            os.close(fd)

    def ask(self, request: str, caller: Caller | None, *args: Any) -> Any:
        """Return the reply with all numbers replaced by their place in the order."""
        try:
            reply = self.view.serve(request, caller, *args)
            if type(reply) is Blocking:
                with reply:
                    reply = reply.finish(reply.run())
        except (RequestError, OSError) as error:  # the latter by a call that may wait
            return errno.errorcode.get(self.view.errno_of(error, request), error)
        if request == "opendir":
            self.directory = reply.handle  # the two sources are changed at different times
            return None
        return self.plain(reply, counts=request not in ("getattr", "setattr"))

    def plain(self, reply: Any, counts: bool = True) -> Any:
        if isinstance(reply, EntryReply):
            node = self.number(reply.node) if reply.node else None
            if node is not None and counts:
                self.counts[node] += 1
            shown = reply.attributes
            if node is not None and shown is not None and S_ISDIR(shown.mode):
                self.directories.add(node)
            if shown is not None:
                shown = shown._replace(ino=0, atime_ns=0, mtime_ns=0, ctime_ns=0, blocks=0)
            return node, shown, reply.entry_timeout, reply.attr_timeout
        if isinstance(reply, OpenReply):
            self.handles.append(reply.handle)
            # Whether pages are kept depends on time stamps: see test_content.
            return len(self.handles), reply.direct_io, reply.backing_fd >= 0
        if isinstance(reply, tuple) and len(reply) == 2:
            return self.plain(reply[0]), self.plain(reply[1])
        if isinstance(reply, (bytearray, memoryview)):
            return bytes(reply)
        return "space" if isinstance(reply, os.statvfs_result) else reply

    def number(self, node_id: int) -> int:
        if node_id not in self.numbers:
            self.numbers[node_id] = len(self.nodes)
            self.nodes.append(node_id)
        return self.numbers[node_id]

    def noted(self, rows: Iterable[Any]) -> dict[Any, Any]:
        """Return where rows say that each node is; sizes, times and counts are not noted."""
        last = {row[:2]: row[2:] for row in rows if row[0] != NUMBERS}
        return {
            key: more[:6] if key[0] == NODE else more
            for key, more in last.items()
            if more not in ((), (None,))
        }

    def state(self) -> list[Any]:
        """All that the tables hold, without numbers of the source, times and descriptors."""
        found = []
        for tree in self.trees:
            by_key = {id(node): self.number(node.id) for node in tree.nodes}
            for node in sorted(tree.nodes, key=lambda node: self.number(node.id)):
                found.append(
                    (
                        self.number(node.id), by_key.get(id(node.parent), "none"), node.name,
                        node.verdict, node.rule, node.file_type, node.lookup_count, node.is_hashed,
                        node.has_other_names, node.restrictions, node.size, bool(node.reported),
                        len(node.open_fds), node.unplaced_as is None, node.variant,
                        node.unsynced, node.was_mappable, bool(node.btime_ns), *_of_directory(node),
                    )
                )  # fmt: skip
            lookups = [*tree.advice.lookups.items()]
            found.append((len(tree.handles), tree.nodes.restrictions, lookups))
        return found


def _of_directory(node: Node) -> tuple[object, ...]:
    if not isinstance(node, Directory):
        return ()
    return node.classified_at, node.looked_at, node.case_matters, node.case_asked


def fill(source: Path) -> None:
    """Make the tree that all begin with."""
    (source / "dir/deep/hooks").mkdir(parents=True)
    (source / "dir/deep/a").write_text("deep")
    (source / "dir/b").write_text("b")
    (source / "a").write_text("a")
    (source / "file.txt").write_text("text")
    os.chown(source / "file.txt", 1000, 1000)
    os.link(source / "file.txt", source / "dir/file.txt")
    (source / "half/hooks/dir").mkdir(parents=True)
    (source / "half/HEAD").write_text("ref: refs/heads/main")
    (source / "half/hooks/a").write_text("hook")
    (source / ".git/hooks").mkdir(parents=True)
    (source / ".git/HEAD").write_text("ref: refs/heads/main")
    (source / ".git/refs").mkdir()
    os.symlink("a", source / "link")
    os.mkfifo(source / "fifo")
    (source / "setgid").mkdir()
    os.chown(source / "setgid", 0, 50)
    os.chmod(source / "setgid", 0o2775)


PLACES = ["", "dir", "dir/deep", "dir/deep/hooks", "half", "half/hooks", "half/hooks/dir", "setgid"]


class Pair:
    """The two views. Each step is done to both, and must come out alike."""

    def __init__(self, place: Path, options: dict[str, Any], traits: dict[str, Any]) -> None:
        kinds: dict[str, Callable[..., Tree]] = {"lean": tree_of, "tree": Tree}  # as long: paths
        self.sides = [Side(place / name, options, traits, kind) for name, kind in kinds.items()]

    def close(self) -> None:
        for side in self.sides:
            side.close()

    def ask(self, request: str, caller: Caller | None, *args: Any) -> Any:
        """Send a request, with an index for each node or handle, and compare."""
        lean, tree = (
            side.ask(request, caller, *(a(side) if callable(a) else a for a in args))
            for side in self.sides
        )
        print(request, [a(self.sides[1]) if callable(a) else a for a in args], tree)
        assert lean == tree
        self.compare()
        return tree

    def compare(self) -> None:
        lean, tree = self.sides
        assert lean.audit.lines == tree.audit.lines
        assert lean.state() == tree.state()
        for side in self.sides:
            if side.is_noted:
                assert side.noted(side.notes) == side.noted(side.view.rows())

    def host(self, change: Callable[[Path], None]) -> None:
        for side in self.sides:
            with suppress(OSError, ValueError):
                change(side.source)


REQUESTS = sorted(name for name, kind in GUARDED_BY.items() if kind is not GuardedBy.UNSUPPORTED)
LEAN = ["lookup", "getattr", "open", "create", "mkdir", "unlink", "rmdir", "rename"]
HOST = ["write", "remove", "mkdir", "rename", "link", "replace", "repository", "chmod"]
KINDS = [*LEAN * 3, *REQUESTS, *(f"host {change}" for change in HOST), "a second", "a moment"]


class Walk:
    """A random walk over both views, which mostly stays at one name."""

    def __init__(self, pair: Pair, clock: Clock, random: Random) -> None:
        self.pair = pair
        self.clock = clock
        self.random = random
        self.directory, self.name = 0, b"a"
        """Where the walk is: the place of a directory's node in the order, and a name."""

    def _name(self) -> bytes:
        return self.random.choice(USUAL if self.random.random() < 0.7 else NAMES)

    def begin(self) -> None:
        """Look the tree up, as the kernel has before most requests."""
        for place in PLACES:
            number = 0
            for name in filter(None, place.encode().split(b"/")):
                reply = self.pair.ask("lookup", CALLERS[0], self.node(number), name)
                if isinstance(reply, str):
                    break
                number = reply[0]

    def _known(self, directories: bool = False) -> int:
        """Return the place of a node that the kernel knows; it knows which are directories."""
        side = self.pair.sides[0]
        known = sorted(number for number, count in side.counts.items() if count > 0)
        if directories:
            known = [number for number in known if number in side.directories]
        return self.random.choice([0, *known])

    def _there(self) -> int:
        """Return the place of the node that is where the walk is, or that of any node."""
        side = self.pair.sides[1]
        parent = side.nodes[self.directory]
        for node in (node for tree in side.trees for node in tree.nodes if node.lookup_count):
            if node.name == self.name and node.parent is not None and node.parent.id == parent:
                return side.number(node.id)
        return self._known()

    @staticmethod
    def node(number: int) -> Callable[[Side], int]:
        return lambda side: side.nodes[number]

    def _handle(self) -> Callable[[Side], int]:
        back = self.random.randint(1, 4)
        return lambda side: side.handles[-back] if len(side.handles) >= back else 0

    def take(self) -> None:
        """Take a step."""
        kind, random = self.random.choice(KINDS), self.random.random
        if random() < 0.3:
            self.name = self._name()
        if random() < 0.2 or not self.pair.sides[0].counts[self.directory]:
            self.directory = self._known(directories=True)
        if kind in ("a second", "a moment"):
            self.clock.now += 1.0 if kind == "a second" else 0.3
        elif kind.startswith("host "):
            self._change(kind[5:])
        elif kind == "forget":
            self._forget(self._there())
        elif kind in ("opendir", "readdir", "fsyncdir", "releasedir"):
            self._list(self.random.randint(1, 20))
        else:
            self.ask(kind)

    def _change(self, change: str) -> None:
        share = self.pair.sides[1].trees[0]
        parent = share.nodes.by_id.get(self.node(self.directory)(self.pair.sides[1]))
        path = b"." if parent is None else share.check.path(parent)
        is_near = self.random.random() < 0.5
        name, other = self._name(), path if is_near else self.random.choice(PLACES).encode()
        old = path if is_near and change == "repository" else path + b"/" + self.name
        if b".." not in (self.name, name):
            self.pair.host(partial(change_by_host, change, old, other + b"/" + name))
        if is_near and change == "rename":
            self.name = name

    def ask(self, kind: str) -> None:
        """Send a request about the name where the walk is, or the object there."""
        node = self.node(self.directory)
        other, there = self.node(self._known(directories=True)), self.node(self._there())
        other, name = (node if self.random.random() < 0.6 else other), self._name()
        j = self.random.randint(0, 40)
        mode, flags, handle = MODES[j % len(MODES)], FLAGS[j % len(FLAGS)], self._handle()
        arguments: dict[str, tuple[Any, ...]] = {
            "lookup": (node, self.name), "unlink": (node, self.name),
            "rmdir": (node, self.name),
            "mkdir": (node, self.name, mode), "create": (node, self.name, mode, flags),
            "mknod": (node, self.name, (S_IFREG if j % 2 else S_IFIFO) | mode, 0),
            "symlink": (node, self.name, [b"a", b"../a", b"/none"][j % 3]),
            "link": (there, other, name),
            "rename": (node, self.name, other, name, [0, 0, 0, 1, 2, 4][j % 6]),
            "access": (there, os.W_OK if j % 2 else os.R_OK), "open": (there, flags),
            "setattr": (there, SETATTRS[j % len(SETATTRS)], None),
            "getxattr": (there, b"user.x"), "removexattr": (there, b"user.x"),
            "setxattr": (there, b"user.x", b"1"), "statfs": (),
            "read": (handle, 0, 100), "write": (handle, j, b"data"), "fsync": (handle, True),
            "flush": (handle,), "release": (handle,),
        }  # fmt: skip
        caller = None if GUARDED_BY[kind] is GuardedBy.HANDLE else self.random.choice(CALLERS)
        self.pair.ask(kind, caller, *arguments.get(kind, (there,)))

    def _forget(self, number: int) -> None:
        if not number:
            return
        counts = self.pair.sides[0].counts
        times = self.random.randint(1, counts[number])
        self.pair.ask("forget", None, self.node(number), times)
        for side in self.pair.sides:
            side.counts[number] -= times

    def _list(self, room: int) -> None:
        def add(side: Side, entry: DirEntry) -> bool:
            reply = None if entry.reply is None else side.plain(entry.reply)
            side.listed.append((entry.name, entry.offset, reply, entry.file_type))
            return len(side.listed) < room

        caller, directory = self.random.choice(CALLERS), self.node(self.directory)
        opened = self.pair.ask("opendir", caller, directory)
        if isinstance(opened, str):
            return
        for side in self.pair.sides:
            side.listed = []
        handle = [lambda side: side.directory]
        self.pair.ask("readdir", None, *handle, 0, lambda side: partial(add, side))
        assert self.pair.sides[0].listed == self.pair.sides[1].listed
        self.pair.ask("fsyncdir", None, *handle, False)
        self.pair.ask("releasedir", None, *handle)


def change_by_host(change: str, old: bytes, new: bytes, source: Path) -> None:
    """Change something in a source behind the view's back, never through a symlink.

    Raises OSError.
    """
    at, to = (os.path.join(os.fsencode(source), path) for path in (old, new))
    if change == "write":
        fd = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK)
        os.write(fd, new)
        os.close(fd)
    elif change == "remove":
        if os.path.isdir(at) and not os.path.islink(at):
            shutil.rmtree(at)
        else:
            os.unlink(at)
    elif change == "mkdir":
        os.mkdir(at)
    elif change == "rename":
        os.rename(at, to)
    elif change == "link":
        os.link(at, to)
    elif change == "replace":
        Path(os.fsdecode(at) + "~").write_text("another")
        os.replace(at + b"~", at)
    elif change == "repository":
        if not os.path.islink(at):
            os.makedirs(os.path.join(at, b"refs"), exist_ok=True)
        Path(os.fsdecode(at), "HEAD").touch()
    else:
        fd = os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # it may be a FIFO
        os.fchmod(fd, 0o4755)
        os.close(fd)


@pytest.fixture(scope="module")
def area() -> Iterator[Path]:
    """A directory in memory: a disk may give an inode number to another object at once."""
    path = Path(tempfile.mkdtemp(prefix="lean-"))
    mount("tmpfs", str(path), "tmpfs", data="mode=755")
    yield path
    subprocess.run(["umount", "-l", path], check=True)
    path.rmdir()


@contextmanager
def walking(
    area: Path, random: Random, options: dict[str, Any], traits: dict[str, Any]
) -> Iterator[Walk]:
    """Two views over new sources, and a walk that has looked the tree up."""
    place, clock = Path(tempfile.mkdtemp(dir=area)), Clock()
    with (
        mock.patch.object(revalidation, "clock", lambda: clock.now),
        mock.patch.object(files, "RACY_NS", 0),
        closing(Pair(place, options, traits)) as pair,
    ):
        walk = Walk(pair, clock, random)
        walk.begin()
        yield walk
    shutil.rmtree(place)


@pytest.mark.parametrize("seed", range(20))
def test_a_random_walk_is_alike(area: Path, seed: int) -> None:
    random = Random(seed)
    for _ in range(WALKS):
        options, traits = random.choice(OPTIONS), random.choice(TRAITS)
        with walking(area, random, options, traits) as walk:
            for _ in range(random.randint(10, 80)):
                walk.take()


CHANGES = [None, *HOST, "repository around"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [b"b", b"deep", b"none"])
def test_each_request_after_each_change_is_alike(
    area: Path, change: str | None, name: bytes
) -> None:
    """The host changes a name that the kernel knows, or the directory that it is in."""
    for kind, passes in product(LEAN, (False, True)):
        with walking(area, Random(0), {}, {}) as walk:
            walk.directory, walk.name = 1, name
            for _ in range(2):
                walk.ask("lookup")
            if change is not None:
                around = change == "repository around"
                at, to = (b"dir", b"") if around else (b"dir/" + name, b"dir/other")
                walk.pair.host(partial(change_by_host, change.split()[0], at, to))
            walk.clock.now += 1.0 * passes
            for _ in range(3):
                walk.ask(kind)
                walk.ask("lookup")


# A step fails, or another guard over the same source was there in between.


def fail(number: int, done: Callable[..., Any], *_: Any) -> None:
    raise os_error(number)


def put_another_there(source: Path, done: Callable[..., Any], *args: Any) -> Any:
    (source / "another").write_text("another")
    os.replace(source / "another", source / "dir/b")
    return done(*args)


def move_an_old_one_there(source: Path, done: Callable[..., Any], *args: Any) -> Any:
    done(*args)
    os.rmdir(source / "dir/new")
    os.rename(source / "setgid", source / "dir/new")


def take_it_away(source: Path, done: Callable[..., Any], *args: Any) -> Any:
    found = done(*args)
    (source / "dir/c").rename(source / "dir/d")
    return found


FAILURES: dict[str, tuple[str, str, Callable[[Path], Callable[..., Any]], str, tuple[Any, ...]]] = {
    "cannot be shown": (
        "attributes", "report", lambda _: partial(fail, errno.EIO), "create", (b"new", 0o644, 1)
    ),
    "directory cannot be shown": (
        "attributes", "report", lambda _: partial(fail, errno.EIO), "mkdir", (b"new", 0o755)
    ),
    "cannot be given away": (
        "source", "chown", lambda _: partial(fail, errno.EDQUOT), "create", (b"new", 0o644, 1)
    ),
    "directory cannot be given away": (
        "source", "chown", lambda _: partial(fail, errno.EDQUOT), "mkdir", (b"new", 0o755)
    ),
    "directory cannot be opened": (
        "source", "open_node", lambda _: partial(fail, errno.EIO), "mkdir", (b"new", 0o755)
    ),
    "older directory": (
        "source", "mkdir", lambda source: partial(move_an_old_one_there, source), "mkdir",
        (b"new", 0o755),
    ),
    "not the file that was checked": (
        "source", "rename", lambda source: partial(put_another_there, source), "rename",
        (b"b", "dir", b"c", 0),
    ),
    "gone at once": (
        "source", "rename", lambda source: partial(take_it_away, source), "rename",
        (b"b", "dir", b"c", 0),
    ),
    "no directory any more": (
        "source", "stat_at", lambda _: partial(fail, errno.ENOTDIR), "lookup", (b"none",)
    ),
    "unknown to its server": (
        "source", "stat", lambda _: partial(fail, errno.ENOENT), "getattr", ()
    ),
    "cannot be removed": (
        "source", "remove", lambda _: partial(fail, errno.EIO), "unlink", (b"b",)
    ),
    "cannot be renamed": (
        "source", "rename", lambda _: partial(fail, errno.EIO), "rename", (b"b", "dir", b"c", 0)
    ),
}  # fmt: skip
"""By what goes wrong: the part and method that is replaced, by what, and the request with that."""


@pytest.mark.parametrize("what", FAILURES)
def test_what_fails_is_undone_alike(area: Path, what: str) -> None:
    part, method, replacement, request, arguments = FAILURES[what]
    with walking(area, Random(0), {}, {}) as walk:
        directory = walk.node(1)
        for name in (b"b", b"none"):
            walk.pair.ask("lookup", CALLERS[1], directory, name)
        time.sleep(2 * CLOCK_TICK_NS / 1e9)  # what is there now is older
        walk.pair.host(lambda source: (source / "dir/other").touch())
        descriptors = open_descriptors()
        with ExitStack() as stack:
            for side in walk.pair.sides:
                owner = getattr(side.trees[0], part)
                call = partial(replacement(side.source), getattr(owner, method))
                stack.enter_context(mock.patch.object(owner, method, call))
            given = (directory if each == "dir" else each for each in arguments)
            reply = walk.pair.ask(request, CALLERS[1], directory, *given)
        assert isinstance(reply, str), "it has not failed"
        assert open_descriptors() == descriptors
        lean, tree = (
            sorted((str(path.relative_to(side.source)), path.lstat().st_uid, path.lstat().st_mode)
                   for path in side.source.rglob("*"))
            for side in walk.pair.sides
        )  # fmt: skip
        assert lean == tree


@pytest.mark.parametrize(
    ("request_", "arguments"),
    [("create", (b"new", 0o644, 1)), ("mkdir", (b"new", 0o755)), ("unlink", (b"b",)),
     ("open", (os.O_RDONLY,))],
)  # fmt: skip
def test_the_directory_stays_open_while_descriptors_run_out(
    area: Path, request_: str, arguments: tuple[Any, ...]
) -> None:
    with walking(area, Random(0), {}, {}) as walk:
        found = walk.pair.ask("lookup", CALLERS[1], walk.node(1), b"b")
        for tree in (side.trees[0] for side in walk.pair.sides):
            for node in tree.nodes:  # the directory is the one that would be closed first
                if node.fd >= 0 and node.name != b"dir":
                    tree.descriptors.of(node)
        calls = count()

        def every_third(*args: Any, open_: Callable[..., int] = os.open, **more: Any) -> int:
            if next(calls) % 3 < 2:  # the third comes after some were closed
                raise os_error(errno.EMFILE)
            return open_(*args, **more)

        at = walk.node(found[0] if request_ == "open" else 1)
        with mock.patch.object(os, "open", every_third):
            reply = walk.pair.ask(request_, CALLERS[1], at, *arguments)
        assert next(calls) > 1 and not isinstance(reply, str)


def test_a_removed_object_stays_whatever_is_open(area: Path) -> None:
    with walking(area, Random(0), {}, {"descriptor_limit": 2}) as walk:
        for request_, name in (("unlink", b"b"), ("rmdir", b"new")):
            walk.pair.ask("mkdir", CALLERS[0], walk.node(1), b"new", 0o755)
            found = walk.pair.ask("lookup", CALLERS[0], walk.node(1), name)
            walk.pair.ask(request_, CALLERS[0], walk.node(1), name)
            walk.begin()  # opens more than two
            assert isinstance(walk.pair.ask("getattr", CALLERS[0], walk.node(found[0])), tuple)


def exchange(old: str, new: str, source: Path) -> None:
    """Exchange two entries of a source."""
    fd = os.open(source, os.O_PATH)
    renameat2(fd, old.encode(), fd, new.encode(), RENAME_EXCHANGE)
    os.close(fd)


def test_a_file_that_is_replaced_again_and_again_is_opened(area: Path) -> None:
    """What a lookup finds after a failed open is still there at the next one."""
    with walking(area, Random(0), {}, {}) as walk:
        pair, caller = walk.pair, CALLERS[0]
        swap = partial(exchange, "dir/b", "a")
        number = pair.ask("lookup", caller, walk.node(1), b"b")[0]
        pair.host(swap)
        other = pair.ask("lookup", caller, walk.node(1), b"b")[0]
        pair.host(swap)
        assert pair.ask("open", caller, walk.node(other), os.O_RDONLY) == "ESTALE"
        assert pair.ask("lookup", caller, walk.node(1), b"b")[0] == number
        pair.host(swap)
        assert not isinstance(pair.ask("open", caller, walk.node(number), os.O_RDONLY), str)


def test_an_older_directory_at_a_new_name_is_not_given_away(area: Path) -> None:
    """Another guard has put it there within a tick of the clock after it was written to."""
    with walking(area, Random(0), {}, {}) as walk:

        def mkdir(source: Path, make: Callable[..., None], *args: Any) -> None:
            make(*args)
            old, new = source / "old", source / "dir/new"
            while True:
                (old / "file").touch()
                exchange("old", "dir/new", source)
                st = new.stat()
                if st.st_mtime_ns == st.st_ctime_ns:
                    return
                exchange("old", "dir/new", source)
                (old / "file").unlink()

        for side in walk.pair.sides:
            (side.source / "old").mkdir()
            os.chown(side.source / "old", 4242, 4242)
        time.sleep(0.1)
        for side in walk.pair.sides:
            (side.source / "dir/later").touch()
            calls = side.trees[0].source
            calls.mkdir = partial(mkdir, side.source, calls.mkdir)  # type: ignore[method-assign]
        answer = walk.pair.ask("mkdir", CALLERS[1], walk.node(1), b"new", 0o755)
        assert answer == "ESTALE"
        assert {(side.source / "dir/new").stat().st_uid for side in walk.pair.sides} == {4242}
