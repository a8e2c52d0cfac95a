"""Random trees and requests: no symlink made through the view leads out of its work tree.

The agent makes, moves, exchanges, links and removes; the human works on the source meanwhile, but
makes no symlink of the agent's lead out by moving it or by making a repository round it. After each
step the symlinks are resolved by the kernel, which knows nothing of the rule.
"""

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.base.protocol import (
    RENAME_EXCHANGE,
    Caller,
    DirEntry,
    EntryReply,
    GuestGid,
    GuestUid,
    RequestError,
)
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names import links
from gitguardfs.names.dotgit import is_dotgit
from tests.adapter.path_client import PathClient
from tests.adapter.world import World, open_descriptors
from tests.unit.names.test_links import is_contained

CALLER = Caller(GuestUid(0), GuestGid(0))
NAMES = (b"a", b"b", b"c", b"d")
PLANTED = {b"a/b/c/up": b"../../d", b"r/a/b/up": b"../d", b"b/a/up": b"..", b"r/n/a/near": b"../c"}
"""Symlinks that the agent has made before the steps."""
MAX_LEVELS = 5
"""Directories that are made: deeper than a text climbs, and few enough to meet again."""


class Step(NamedTuple):
    """What is done, to which of the entries that are there, in which of the directories."""

    what: str
    entry: int
    directory: int
    name: bytes
    text: bytes = b""


TEXTS = st.one_of(
    st.tuples(
        st.integers(0, 4).map(lambda up: b"../" * up),
        st.lists(st.sampled_from(NAMES), max_size=3).map(b"/".join),
    ).map(b"".join),
    st.lists(st.sampled_from((*NAMES, b".", b"..", b"", b".git", b".GIT", b"r")), max_size=5).map(
        b"/".join
    ),
    st.sampled_from([b"/", b"/etc/passwd", links.NEUTRAL + b"a", b"git~1/a", b"../r/.git "]),
)
AGENT = ("mkdir", "symlink", "symlink", "symlink", "rename", "rename", "exchange", "link", "remove")
HUMAN = ("make", "point", "git", "move", "write")
STEPS = st.lists(
    st.builds(
        Step, st.sampled_from(AGENT * 2 + HUMAN), st.integers(0, 30), st.integers(0, 30),
        st.sampled_from(NAMES), TEXTS,
    ),
    max_size=30,
)  # fmt: skip


class Tree:
    """The source, an agent who has a view of it, and a human who has not."""

    def __init__(self, source: Path, **options: bool) -> None:
        self.top = os.fsencode(os.path.realpath(source))
        for path in (b"r/.git/hooks", b"r/a/b", b"r/n/.git", b"r/n/a", b"a/b/c", b"b/a"):
            os.makedirs(os.path.join(self.top, path))
        self.world = World(source, descriptor_limit=8, **options)
        self.ops = self.world.requests
        self.made: dict[tuple[int, int], bytes] = {}
        """The texts that the agent gave, by device and inode of the symlink."""
        self.held = [ROOT_ID]
        """Directories in which processes of the agent are."""
        for place, text in PLANTED.items():
            above, name = os.path.split(os.path.join(self.top, place))
            self.symlink(self.node(above), name, text)

    def chosen(self, step: Step) -> bytes:
        """Return an entry; more often than others, a symlink or what is above one."""
        entries = self.entries()
        symlinks = self.symlinks()
        if symlinks and step.entry % 3:
            path = symlinks[step.entry // 3 % len(symlinks)]
            return path if step.entry % 3 == 1 else self.moved_with(path)
        return entries[step.entry % len(entries)]

    def moved_with(self, path: bytes) -> bytes:
        above = os.path.dirname(path)
        return path if above == self.top else above

    # What there is

    def directories(self) -> list[bytes]:
        """Return all directories outside of ``.git``."""
        found = []
        for path, names, _ in os.walk(self.top):
            names[:] = sorted(name for name in names if name != b".git")
            found.append(path)
        return found

    def entries(self) -> list[bytes]:
        """Return everything outside of ``.git``, except the top."""
        found = []
        for path in self.directories():
            found += [os.path.join(path, name) for name in sorted(os.listdir(path))]
        return [path for path in found if os.path.basename(path) != b".git"]

    def symlinks(self, below: bytes | None = None) -> list[bytes]:
        return [
            path
            for path in self.entries()
            if os.path.islink(path) and (below is None or path.startswith(below + b"/"))
        ]

    def root_of(self, directory: bytes) -> bytes:
        """Return the work tree's root that a directory is in, or is."""
        while directory != self.top and not os.path.lexists(directory + b"/.git"):
            directory = os.path.dirname(directory)
        return directory

    def depth_of(self, directory: bytes) -> int:
        return directory.count(b"/") - self.root_of(directory).count(b"/")

    # The agent

    def node(self, path: bytes) -> int:
        number = ROOT_ID
        for name in path[len(self.top) :].split(b"/"):
            if name:
                attributes = self.ops.lookup(CALLER, number, name).attributes
                assert attributes is not None, path
                number = attributes.ino
        return number

    def agent(self, step: Step) -> None:
        directories = self.directories()
        entry = self.chosen(step)
        above, old = os.path.split(entry)
        # He names a directory by its path, or is in one since before the host moved it.
        if step.directory % 5 == 4:
            to = self.held[step.entry % len(self.held)]
        else:
            path = directories[step.directory % len(directories)]
            if path.count(b"/") - self.top.count(b"/") >= MAX_LEVELS:
                return
            to = self.node(path)
            if len(self.held) < 4:
                self.held.append(to)
        match step.what:
            case "mkdir":
                self.ops.mkdir(CALLER, to, step.name, 0o755)
            case "symlink" if step.text:
                self.symlink(to, step.name, step.text)
            case "link":
                self.ops.link(CALLER, self.node(entry), to, step.name)
                self.check_now(os.lstat(entry))
            case "rename":
                st = os.lstat(entry)
                self.ops.rename(CALLER, self.node(above), old, to, step.name, 0)
                self.check_now(st)
            case "exchange":
                entries = self.entries()
                other = entries[step.directory % len(entries)]
                ends = os.lstat(entry), os.lstat(other)
                to, name = self.node(os.path.dirname(other)), os.path.basename(other)
                self.ops.rename(CALLER, self.node(above), old, to, name, RENAME_EXCHANGE)
                for st in ends:
                    self.check_now(st)
            case "remove":
                parent = self.node(above)
                if os.path.isdir(entry) and not os.path.islink(entry):
                    self.ops.rmdir(CALLER, parent, old)
                else:
                    self.ops.unlink(CALLER, parent, old)

    def symlink(self, to: int, name: bytes, text: bytes) -> None:
        reply = self.ops.symlink(CALLER, to, name, text)
        assert reply.attributes is not None
        assert reply.attributes.size == len(text)
        number = self.world.tree.nodes.get(reply.attributes.ino).ino
        (st,) = (st for path in self.symlinks() if (st := os.lstat(path)).st_ino == number)
        self.made[st.st_dev, st.st_ino] = text
        self.check_now(st)

    # The human

    def human(self, step: Step) -> None:
        directories = self.directories()
        directory = directories[step.directory % len(directories)]
        entry = self.chosen(step)
        new = os.path.join(directory, step.name)
        match step.what:
            case "make":
                os.mkdir(new)
            case "write":
                os.close(os.open(new, os.O_CREAT | os.O_EXCL))
            case "point":
                # What it leads to in the end is contained as well: so are all other symlinks.
                if is_contained(step.text, self.depth_of(directory)):
                    os.symlink(step.text, new)
            case "git":
                leads_here = any(os.path.realpath(path) == directory for path in self.symlinks())
                if not self.symlinks(directory) and not leads_here:
                    os.mkdir(directory + b"/.git")
            case "move":
                is_below = (directory + b"/").startswith(entry + b"/")
                if os.path.islink(entry) or is_below or os.path.lexists(new):
                    return
                if all(
                    links.is_neutral(text := os.readlink(path))
                    or (
                        (steps := links.steps_of(text)) is not None
                        and steps.up < path.count(b"/") - entry.count(b"/")
                    )
                    for path in self.symlinks(entry)
                ):
                    os.rename(entry, new)

    # What must hold

    def step(self, step: Step) -> None:
        if step.what in HUMAN:
            with suppress(OSError):
                self.human(step)
        else:
            with suppress(RequestError):
                self.agent(step)
        self.check()

    def check(self) -> None:
        """Check all symlinks that the agent has made."""
        found = {}
        for path in self.symlinks():
            st = os.lstat(path)
            given = self.made.get((st.st_dev, st.st_ino))
            if given is None:
                continue
            found[st.st_dev, st.st_ino] = given
            self.check_resolved(path)
            self.check_shown(path, given)
        self.made = found

    def check_shown(self, path: bytes, given: bytes) -> None:
        number = self.node(path)
        assert self.ops.readlink(CALLER, number) == given
        for reply in (self.ops.getattr(CALLER, number), self.listed(path)):
            assert reply.attributes is not None and reply.attributes.size == len(given)

    def listed(self, path: bytes) -> EntryReply:
        above, name = os.path.split(path)
        found: dict[bytes, EntryReply] = {}

        def add(entry: DirEntry) -> bool:
            if entry.reply is not None:  # as it is for the dots
                found[entry.name] = entry.reply
            return True

        handle = self.ops.opendir(CALLER, self.node(above)).handle
        self.ops.readdir(handle, 0, add)
        self.ops.releasedir(handle)
        return found[name]

    def check_resolved(self, path: bytes) -> bytes:
        """Check where a symlink leads on the source; return that place.

        ``realpath`` goes on by the text alone where nothing is there, as many programs do.
        """
        try:
            os.stat(path)
        except OSError as error:
            if error.errno == errno.ELOOP:  # realpath of Python 3.12 goes astray there
                return path
        end = os.path.realpath(path)
        if end.startswith(links.NEUTRAL) or end == links.NEUTRAL[:-1]:
            return end
        root = self.root_of(os.path.dirname(path))
        told = f"{os.fsdecode(path)} -> {os.fsdecode(os.readlink(path))} leads to {end!r}"
        assert end.startswith(root + b"/"), told
        assert not any(map(is_dotgit, end[len(root) :].split(b"/"))), told
        with suppress(OSError):
            assert os.path.samestat(os.stat(path), os.lstat(end)), told
        return end

    def check_now(self, st: os.stat_result) -> None:
        """Check that a symlink of the agent that was just placed leads to no work tree's root.

        Later on a directory may be moved to where it leads, with a work tree further down in it.
        """
        for path in self.symlinks():
            if os.path.samestat(os.lstat(path), st) and (st.st_dev, st.st_ino) in self.made:
                end = self.check_resolved(path)
                assert not os.path.lexists(end + b"/.git"), f"{path!r} leads to a root, {end!r}"


def run(steps: list[Step], **options: bool) -> None:
    before = open_descriptors()
    with tempfile.TemporaryDirectory() as source, pytest.MonkeyPatch.context() as patch:
        if options.get("is_ninep"):
            PathClient(Path(source), patch)
        tree = Tree(Path(source), **options)
        try:
            tree.check()
            for step in steps:
                tree.step(step)
        finally:
            tree.world.close()
    assert open_descriptors() == before


SOURCES = {"local": {}, "share": {"is_local": False}, "9p": {"is_local": False, "is_ninep": True}}


@pytest.mark.parametrize("source", SOURCES)
def test_no_symlink_leads_out(source: str) -> None:
    @settings(max_examples=60)
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        run(steps, **SOURCES[source])

    check()
