"""A repository of ours, for one fetch, in which git finds the host's branches and objects.

Its objects are symlinks to what the descriptors of the daemon lead to. Everything else is written
here: git reads nothing of the host's besides packs and objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gitguardfs.private import store
from gitguardfs.private.host_repository import Head, HostRepository, Objects, Unusable

NAME = "reader"
"""The name of its directory, beside the copy that is fetched into it."""
DETACHED = b"refs/detached/HEAD"
"""Names the commit of a detached HEAD, which no branch may have."""
FORMATS = {b"": b"sha1", b"sha1": b"sha1", b"sha256": b"sha256"}
_CONFIG = """[core]
\trepositoryformatversion = {version}
\tbare = true
\tbigFileThreshold = 16m
[gc]
\tauto = 0
[pack]
\twindow = 0
{extensions}"""
"""No search for deltas: what the host has packed stays packed, and the rest comes at once."""


@dataclass(frozen=True)
class Source:
    """What is fetched: the host's HEAD, branches and tags, and where its objects are."""

    head: Head
    refs: dict[bytes, bytes]
    object_format: bytes
    shallow: bytes
    objects: list[Objects]

    @property
    def pack_bytes(self) -> int:
        """The size of all packs."""
        return sum(one.pack_bytes for one in self.objects)

    @property
    def commit(self) -> bytes:
        """The commit that is checked out; empty if there is none yet."""
        return self.head.commit or self.refs.get(self.head.branch, b"")

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that git has to inherit."""
        fds = [fd for one in self.objects for fd in (one.fd, one.pack_fd)]
        return [fd for fd in fds if fd is not None]


def source_of(host: HostRepository) -> Source:
    """Look through the host's repository. Raises Unusable, OSError."""
    config = host.config()
    stored = config.get(b"extensions.refstorage", b"files").lower()
    if stored != b"files":
        kind = stored.decode(errors="replace")
        raise Unusable(f"keeps its branches in the format {kind!r}, which is not read here")
    given = config.get(b"extensions.objectformat", b"").lower()
    if given not in FORMATS:
        raise Unusable(f"has objects of the format {given.decode(errors='replace')!r}")
    head, refs = host.head(), host.refs()  # in this order: a new branch's commit is found
    return Source(head, refs, FORMATS[given], host.shallow(), host.objects())


def config_of(object_format: bytes) -> bytes:
    """Return the configuration of a bare repository of ours."""
    is_new = object_format != b"sha1"
    extensions = f"[extensions]\n\tobjectFormat = {object_format.decode()}\n" if is_new else ""
    return _CONFIG.format(version=int(is_new), extensions=extensions).encode()


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
    store.remove_tree(path)
    os.mkdir(path, 0o700)
    try:
        refs = dict(source.refs)
        if source.head.commit:
            refs[DETACHED] = source.head.commit
        for name in ("refs", "objects", "objects/info"):
            os.mkdir(os.path.join(path, name))
        places = ["objects", *(f"objects-{n}" for n in range(1, len(source.objects)))]
        for place, objects in zip(places, source.objects, strict=True):
            _link(os.path.join(path, place), objects)
        others = b"".join(os.fsencode(f"{path}/{place}\n") for place in places[1:])
        for name, content in (
            ("config", config_of(source.object_format)),
            ("HEAD", head_text(source.head)),
            ("packed-refs", packed(refs)),
            ("shallow", source.shallow),
            ("objects/info/alternates", others),
        ):
            if content:
                with open(os.path.join(path, name), "wb") as file:
                    file.write(content)
        yield path
    finally:
        store.remove_tree(path)


def _link(path: str, objects: Objects) -> None:
    os.makedirs(os.path.join(path, "pack"), exist_ok=True)
    for name in map(os.fsdecode, objects.loose):
        os.symlink(f"/proc/self/fd/{objects.fd}/{name}", os.path.join(path, name))
    for name in map(os.fsdecode, objects.packs):
        os.symlink(f"/proc/self/fd/{objects.pack_fd}/{name}", os.path.join(path, "pack", name))
