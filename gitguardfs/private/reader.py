"""A repository of ours, for one fetch, in which git finds the host's branches and objects.

Its objects are symlinks to what the descriptors of the daemon lead to. Everything else is written
here: git reads nothing of the host's besides packs and objects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gitguardfs.base import store_directory
from gitguardfs.private import git
from gitguardfs.private.host_repository import Head, HostRepository, Objects, head_of, refs_in
from gitguardfs.private.share import Unusable

NAME = "reader"
"""The name of the reader's directory, which is beside the copy that it is fetched into."""
DETACHED = b"refs/detached/HEAD"
"""Names the commit of a detached HEAD, which no branch may have."""
UNBORN = b"refs/heads/main"
"""The branch of an empty repository."""
TABLE_SECONDS = 30.0
"""How long git may take to read the branches from tables; it needs milliseconds."""
FORMATS = {b"": b"sha1", b"sha1": b"sha1", b"sha256": b"sha256"}
_PROMISOR = re.compile(rb"extensions\.partialclone|remote\..*\.promisor", re.DOTALL)
_CONFIG = """[core]
\trepositoryformatversion = {version}
\tbare = true
\tbigFileThreshold = 16m
[gc]
\tauto = 0
[pack]
\twindow = 0
[uploadPack]
	allowFilter = true
{extensions}"""
"""No search for deltas: what the host has packed stays packed, and the rest comes at once."""


@dataclass(frozen=True)
class Source:
    """The host's HEAD, branches, tags and object directories, as one fetch takes them."""

    head: Head
    refs: dict[bytes, bytes]
    object_format: bytes
    shallow: bytes
    objects: list[Objects]
    is_partial: bool = False
    """Whether the host has left out objects (git clone --filter)."""

    @property
    def pack_bytes(self) -> int:
        """The size of all packs."""
        return sum(one.pack_bytes for one in self.objects)

    @property
    def commit(self) -> bytes:
        """The commit that is checked out; empty if there is none yet."""
        return self.head.commit or self.refs.get(self.head.branch, b"")

    @property
    def all_refs(self) -> dict[bytes, bytes]:
        """Branches, tags, and a name for the commit of a detached HEAD."""
        return {**self.refs, **({DETACHED: self.head.commit} if self.head.commit else {})}

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that git has to inherit."""
        fds = [fd for one in self.objects for fd in (one.fd, one.pack_fd)]
        return [fd for fd in fds if fd is not None]


def source_of(host: HostRepository, scratch: str) -> Source:
    """Look through the host's repository; ``scratch`` is a free name for a directory.

    Raises Unusable, OSError.
    """
    config = host.config()
    given = config.get(b"extensions.objectformat", b"").lower()
    if given not in FORMATS:
        raise Unusable(f"has objects of the format {given.decode(errors='replace')!r}")
    objects = host.objects()
    stored = config.get(b"extensions.refstorage", b"files").lower()
    if stored == b"reftable":
        head, refs = _from_reftables(host, FORMATS[given], objects, scratch)
    elif stored == b"files":
        head, refs = host.head(), host.refs()
    else:
        raise Unusable(f"keeps its branches in the format {stored.decode(errors='replace')!r}")
    is_partial = any(_PROMISOR.fullmatch(key) for key in config)
    return Source(head, refs, FORMATS[given], host.shallow(), objects, is_partial)


def _from_reftables(
    host: HostRepository, object_format: bytes, objects: list[Objects], scratch: str
) -> tuple[Head, dict[bytes, bytes]]:
    """Let git read the tables, which are copied into a repository of ours.

    There are two: a worktree has its HEAD in tables of its own.
    """
    empty = Source(Head(UNBORN, b""), {}, object_format, b"", objects)
    store_directory.remove_tree(scratch)
    os.mkdir(scratch, 0o700)

    def ask(tables: dict[bytes, bytes], *command: str) -> bytes:
        with made(scratch, empty) as path:
            _put(path, "config", config_of(object_format, "reftable"))
            os.mkdir(os.path.join(path, "reftable"))
            for name, content in tables.items():
                _put(path, f"reftable/{os.fsdecode(name)}", content)
            keep = empty.descriptors
            return git.run(command, directory=path, limit=TABLE_SECONDS, keep=keep)

    kinds = ("refs/heads", "refs/tags")
    try:
        own, common = host.reftables()
        refs = refs_in(ask(common, "for-each-ref", "--format=%(objectname) %(refname)", *kinds))
        try:
            head = b"ref: " + ask(own, "symbolic-ref", "--quiet", "HEAD")
        except git.GitFailed:
            head = ask(own, "rev-parse", "--verify", "HEAD")
    except git.GitFailed:
        raise Unusable("keeps its branches in reftables, which git reads since 2.45") from None
    finally:
        store_directory.remove_tree(scratch)
    return head_of(head), refs


def config_of(object_format: bytes, storage: str = "", *, is_partial: bool = False) -> bytes:
    """Return the configuration of a bare repository of ours.

    ``is_partial``: objects may be missing. git then wants to know a remote that has them.
    """
    extensions = ""
    if object_format != b"sha1":
        extensions += f"\tobjectFormat = {object_format.decode()}\n"
    if storage:
        extensions += f"\trefStorage = {storage}\n"
    if is_partial:
        extensions += "\tpartialClone = host\n"
    if extensions:
        extensions = "[extensions]\n" + extensions
    version = 1 if extensions else 0
    if is_partial:
        extensions += '[remote "host"]\n\tpromisor = true\n\turl = not-in-the-guest\n'
    return _CONFIG.format(version=version, extensions=extensions).encode()


def head_text(head: Head) -> bytes:
    """Return the content of a file HEAD."""
    return b"%s\n" % (head.commit or b"ref: " + head.branch)


def packed(refs: dict[bytes, bytes]) -> bytes:
    """Return the content of a file packed-refs (git-pack-refs(1))."""
    lines = [b"# pack-refs with: sorted \n"]
    return b"".join(lines + [b"%s %s\n" % (value, name) for name, value in sorted(refs.items())])


@contextmanager
def made(directory: str, source: Source) -> Iterator[str]:
    """Make the repository in ``directory``; yield its path. Raises OSError."""
    path = os.path.join(directory, NAME)
    store_directory.remove_tree(path)
    os.mkdir(path, 0o700)
    try:
        for name in ("refs", "objects", "objects/info"):
            os.mkdir(os.path.join(path, name))
        names = ["objects", *(f"objects-{n}" for n in range(1, len(source.objects)))]
        for name, objects in zip(names, source.objects, strict=True):
            _link(os.path.join(path, name), objects)
        others = b"".join(os.fsencode(f"{path}/{name}\n") for name in names[1:])
        for name, content in (
            ("config", config_of(source.object_format)),
            ("HEAD", head_text(source.head)),
            ("packed-refs", packed(source.all_refs)),
            ("shallow", source.shallow),
            ("objects/info/alternates", others),
        ):
            if content:
                _put(path, name, content)
        yield path
    finally:
        store_directory.remove_tree(path)


def _put(path: str, name: str, content: bytes) -> None:
    with open(os.path.join(path, name), "wb") as file:
        file.write(content)


def _link(path: str, objects: Objects) -> None:
    os.makedirs(os.path.join(path, "pack"), exist_ok=True)
    for name in map(os.fsdecode, objects.loose):
        os.symlink(f"/proc/self/fd/{objects.fd}/{name}", os.path.join(path, name))
    for name in map(os.fsdecode, objects.packs):
        os.symlink(f"/proc/self/fd/{objects.pack_fd}/{name}", os.path.join(path, "pack", name))
