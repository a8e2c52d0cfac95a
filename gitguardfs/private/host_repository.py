"""Reads the host's repository as data, by descriptors that never leave the share.

git itself never sees the host's directory: it gets a repository of ours (``reader``) with the
host's branches and objects in it. So nothing that the host's repository holds besides them (config,
hooks, replaced objects, alternates, includes, promisors) has any effect.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from gitguardfs.base.errors import os_error
from gitguardfs.private import git
from gitguardfs.private.share import (
    DIRECTORY,
    OUT,
    Share,
    Unusable,
    content_of,
    cut,
    is_guarded,
    line_of,
    names_in,
    open_directory,
    open_file,
    open_path,
    read,
    stat_of,
)

MAX_REFS = 64 << 20
"""Bytes of packed-refs: that is about a million branches and tags."""
MAX_INDEX = 512 << 20
"""Bytes of an index: that of 20,000 files has 2 MiB."""
MAX_LOOSE_REFS = 100_000
"""Branches and tags that are files of their own; git packs them long before."""
MAX_ALTERNATES = 20
"""Object directories of one repository; git itself follows them five deep."""
CONFIG_SECONDS = 10.0
"""How long ``git config`` may take: it needs milliseconds."""
_OBJECT = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(
    rb"refs/(?:heads|tags)(?:/(?!\.)(?:(?!\.\.|@\{|\.lock(?:/|\Z))[^\x00-\x20\x7f~^:?*\[\\/])+(?<!\.))+"
)
"""A branch or tag, as git-check-ref-format(1) has it."""
_PACK = re.compile(rb"pack-[0-9a-f]+\.(?:pack|idx|rev)")
_LOOSE = re.compile(rb"[0-9a-f]{2}")
_LOOSE_OBJECT = re.compile(rb"[0-9a-f]{38}(?:[0-9a-f]{24})?")
_TABLE = re.compile(rb"0x[0-9a-f]+-0x[0-9a-f]+-[0-9a-f]+\.ref")
_KINDS = (b"refs/heads", b"refs/tags")
_TRIES = 5
"""How often tables of branches are read, while git joins them."""

Config = dict[bytes, bytes]
"""The last value of each key; section and name are in lower case."""


class Head(NamedTuple):
    """The host's HEAD: a branch, which may have no commit yet, or a commit."""

    branch: bytes
    """The full name; empty if HEAD is detached."""
    commit: bytes
    """Empty for a branch."""


def head_of(text: bytes) -> Head:
    """Parse the content of a file HEAD. Raises Unusable."""
    text = line_of(text)
    branch = text.removeprefix(b"ref:").strip()
    if text.startswith(b"ref:") and _REF.fullmatch(branch):
        return Head(branch, b"")
    if _OBJECT.fullmatch(text):
        return Head(b"", text)
    raise Unusable(f"has a HEAD that names no branch and no commit: {cut(text)}")


class Objects(NamedTuple):
    """An object directory: descriptors of it and its ``pack``, and the names in them."""

    fd: int
    loose: tuple[bytes, ...]
    """The names of the directories that hold an object each in a file."""
    pack_fd: int | None
    packs: tuple[bytes, ...]
    pack_bytes: int


class HostRepository:
    """An open repository of the host; used inside ``opened`` only."""

    def __init__(self, stack: ExitStack, share: Share, git_dir: int, path: bytes) -> None:
        """Take the git directory ``git_dir``, at ``path`` in the share."""
        self._stack = stack
        self._share = share
        self._own = git_dir
        self._path = path
        _check_guarded(git_dir)
        common = read(git_dir, b"commondir")
        if common is not None:  # a worktree, whose branches and objects are elsewhere
            self._path = share.below(path, line_of(common))
            git_dir = share.open_directory(self._path, f"commondir leads to {cut(common)}")
            _check_guarded(git_dir)
        self._common = git_dir

    # For the comparison with the last fetch

    def state(self) -> bytes:
        """Return a text that changes when HEAD, a branch or a tag does. Raises Unusable, OSError.

        Also when a partial clone has fetched what it lacked. It costs a stat a file.
        """
        seen: list[object] = []
        for fd, name in (
            (self._own, b"HEAD"), (self._own, b"logs/HEAD"), (self._common, b"packed-refs"),
            (self._common, b"shallow"), (self._common, b"reftable/tables.list"),
            (self._own, b"reftable/tables.list"),
        ):  # fmt: skip
            seen.append(self._stamp(fd, name))
        seen += [(name, _stamp(st)) for name, st in self._loose_refs()]
        with suppress(OSError):
            seen += [one for one in _packs(self._common) if one.endswith(b".promisor")]
        return hashlib.sha256(repr(seen).encode()).hexdigest().encode()

    def _stamp(self, fd: int, name: bytes) -> object:
        try:
            opened = open_path(fd, name, os.O_PATH)
        except OSError as error:
            if error.errno in OUT:
                return None
            raise
        try:
            return _stamp(os.fstat(opened))
        finally:
            os.close(opened)

    def _loose_refs(self) -> Iterator[tuple[bytes, os.stat_result]]:
        left = MAX_LOOSE_REFS
        rest = list(_KINDS)
        while rest:
            path = rest.pop()
            try:
                fd = open_path(self._common, path, DIRECTORY)
            except OSError as error:
                if error.errno in OUT:
                    continue
                raise
            try:
                for name in sorted(map(os.fsencode, os.listdir(fd))):
                    below = b"%s/%s" % (path, name)
                    if not _REF.fullmatch(below):
                        continue
                    left -= 1
                    if left < 0:
                        raise Unusable(f"has more than {MAX_LOOSE_REFS} branches")
                    st = stat_of(fd, name)
                    if st is not None and S_ISDIR(st.st_mode):
                        rest.append(below)
                    elif st is not None and S_ISREG(st.st_mode):
                        yield below, st
            finally:
                os.close(fd)

    # For a copy

    def head(self) -> Head:
        """Return the host's HEAD. Raises Unusable, OSError."""
        return head_of(read(self._own, b"HEAD") or b"")

    def refs(self) -> dict[bytes, bytes]:
        """Return the branches and tags, with the object of each. Raises Unusable, OSError."""
        found: dict[bytes, bytes] = {}
        links: dict[bytes, bytes] = {}
        # Before packed-refs: a branch that is packed meanwhile is in one of the two.
        for name, _ in self._loose_refs():
            text = line_of(read(self._common, name) or b"")
            if _OBJECT.fullmatch(text):
                found[name] = text
            elif text.startswith(b"ref:"):
                links[name] = text.removeprefix(b"ref:").strip()
        packed = read(self._common, b"packed-refs", MAX_REFS) or b""
        for name, value in refs_in(packed).items():
            found.setdefault(name, value)
        found.update({name: found[to] for name, to in links.items() if to in found})
        return found

    def reftables(self) -> list[dict[bytes, bytes]]:
        """Return the tables with HEAD, and those with the branches: contents by file name.

        Raises Unusable, OSError.
        """
        return [self._tables(fd) for fd in (self._own, self._common)]

    def _tables(self, fd: int) -> dict[bytes, bytes]:
        for _ in range(_TRIES):  # git joins tables meanwhile, and removes the old ones
            listed = read(fd, b"reftable/tables.list") or b""
            names = [name for name in listed.split() if _TABLE.fullmatch(name)]
            found = {name: read(fd, b"reftable/" + name, MAX_REFS) for name in names}
            whole = {name: text for name, text in found.items() if text is not None}
            if len(whole) == len(names):
                return {**whole, b"tables.list": listed}
        raise os_error(errno.ESTALE)

    def config(self) -> Config:
        """Return the repository's own configuration, includes left out. Raises Unusable, OSError.

        git parses it, as text that it gets from us; it looks for no repository then.
        """
        found = self._parsed(self._common, b"config")
        if self._own != self._common:
            found.pop(b"core.bare", None)  # that is said of the main repository
        if found.get(b"extensions.worktreeconfig", b"").lower() == b"true":
            found |= self._parsed(self._own, b"config.worktree")
        return found

    def _parsed(self, fd: int, name: bytes) -> Config:
        content = read(fd, name) or b""
        try:
            listing = git.run(
                ("config", "--file", "-", "--list", "-z", "--no-includes"),
                limit=CONFIG_SECONDS, content=content, more={"GIT_DIR": os.devnull},
            )  # fmt: skip
        except git.GitFailed as error:
            raise Unusable(f"has a {name.decode()} that {error}") from None
        pairs = (entry.partition(b"\n") for entry in listing.split(b"\0") if entry)
        return {key: value if given else b"true" for key, given, value in pairs}

    def shallow(self) -> bytes:
        """Return the commits at which a shallow repository ends. Raises Unusable, OSError."""
        lines = (read(self._common, b"shallow") or b"").split()
        return b"".join(line + b"\n" for line in lines if _OBJECT.fullmatch(line))

    def information(self, name: bytes) -> bytes | None:
        """Return a file of ``info``; None if there is none. Raises Unusable, OSError."""
        for fd in (self._own, self._common):
            text = read(fd, b"info/" + name)
            if text is not None:
                return text
        return None

    def index(self) -> tuple[bytes, int] | None:
        """Return the index and its time of change in ns; None if there is none. Raises OSError."""
        fd = None
        with suppress(Unusable):
            fd = open_file(self._own, b"index")
        if fd is None:
            return None
        try:
            st = os.fstat(fd)
            return (content_of(fd, MAX_INDEX), st.st_mtime_ns) if st.st_size < MAX_INDEX else None
        finally:
            os.close(fd)

    def objects(self) -> list[Objects]:
        """Return the object directories: its own, then the alternates. Raises Unusable, OSError."""
        found: list[Objects] = []
        rest = [(self._share.below(self._path, b"objects"), self._common, b"objects")]
        seen: set[tuple[int, int]] = set()
        while rest:
            path, start, name = rest.pop(0)
            if start < 0:
                path, fd = self._share.open_alternate(path, name)
            else:
                fd = open_directory(self._stack, start, name, "is not whole: it has no objects")
            st = os.fstat(fd)
            if (st.st_dev, st.st_ino) in seen:
                continue
            seen.add((st.st_dev, st.st_ino))
            if len(seen) > MAX_ALTERNATES:
                raise Unusable(f"has objects in more than {MAX_ALTERNATES} places")
            found.append(self._listed(fd))
            for line in (read(fd, b"info/alternates") or b"").split(b"\n"):
                if line and not line.startswith(b"#"):
                    rest.append((path, -1, line))
        return found

    def _listed(self, fd: int) -> Objects:
        """List an object directory, without special files: git would wait for ever for a FIFO."""
        names = names_in(fd)
        loose = tuple(name for name in names if _LOOSE.fullmatch(name) and _is_loose(fd, name))
        if b"pack" not in names:
            return Objects(fd, loose, None, (), 0)
        why = "is not whole: objects/pack is something else"
        pack_fd = open_directory(self._stack, fd, b"pack", why)
        packs, size = [], 0
        for name in names_in(pack_fd):
            # Opened, since git would skip a pack that it cannot read, and call its objects missing.
            opened = open_file(pack_fd, name) if _PACK.fullmatch(name) else None
            if opened is not None:
                packs.append(name)
                size += os.fstat(opened).st_size
                os.close(opened)
        return Objects(fd, loose, pack_fd, tuple(packs), size)


@contextmanager
def opened(
    root: int, work_tree: int, path: bytes, outside: str | None = None
) -> Iterator[tuple[HostRepository | None, str]]:
    """Open the repository of a work tree, which is at ``path`` in the share.

    ``root`` and ``work_tree`` are descriptors of the two. ``outside`` is where the root's ``.git``
    leads, if not into the share. Yields None, and why, if it cannot be used. Raises OSError.
    """
    with ExitStack() as stack:
        try:
            share = Share(stack, root, work_tree, path)
            if outside is not None and share.is_whole:
                share, where, fd = share.open_outside(outside)
            else:
                where, fd = share.open_git_dir()
            repository = HostRepository(stack, share, fd, where)
        except Unusable as error:
            yield None, str(error)
            return
        yield repository, ""


def _check_guarded(git_dir: int) -> None:
    """Raise Unusable for a directory that the agent could have made."""
    if not is_guarded(git_dir):
        raise Unusable("is not whole: it has no HEAD, or no refs")


def refs_in(text: bytes) -> dict[bytes, bytes]:
    """Return the branches and tags in lines of an object and a name, as in packed-refs."""
    pairs = (line.partition(b" ") for line in text.split(b"\n"))
    return {
        name: value
        for value, _, name in pairs
        if name.startswith(_KINDS) and _OBJECT.fullmatch(value) and _REF.fullmatch(name)
    }


def _packs(git_dir: int) -> list[bytes]:
    """Return the names in a repository's directory of packs. Raises OSError."""
    fd = open_path(git_dir, b"objects/pack", DIRECTORY)
    try:
        return names_in(fd)
    finally:
        os.close(fd)


def _is_loose(fd: int, name: bytes) -> bool:
    """Return whether a directory of objects is still there: git gc removes those it has packed.

    Raises Unusable if it is something else, or has something else in it.
    """
    with ExitStack() as stack:
        why = "is not whole: a directory of objects is something else"
        try:
            below = open_directory(stack, fd, name, why)
        except Unusable:
            if stat_of(fd, name) is None:
                return False
            raise
        _check_loose(below)
    return True


def _check_loose(fd: int) -> None:
    """Raise Unusable if a directory has an object that is no regular file."""
    with os.scandir(fd) as entries:
        for entry in entries:
            is_object = _LOOSE_OBJECT.fullmatch(os.fsencode(entry.name))
            if is_object and not entry.is_file(follow_symlinks=False):
                raise Unusable("has an object that is not a regular file")


def _stamp(st: os.stat_result) -> tuple[int, ...]:
    return st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns
