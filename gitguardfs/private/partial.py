"""Chooses the objects to copy of a partial clone: all commits, and no directory that lacks a file.

git changes a work tree file by file, and removes an old file before it finds that the new one's
object is missing. If a commit's top directory is missing, git refuses the checkout and removes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from gitguardfs.private import git
from gitguardfs.private.git import SECONDS, GitFailed
from gitguardfs.private.reader import Source

LOOKED_AT = 1000
"""Number of commits whose files are copied, if present: the checked-out one, the branches and tags,
and the newest others."""
COMMAND = "git fetch --refetch --no-filter"
"""The host's command that fetches all missing objects."""
MAX_BYTES = 1 << 30
"""Most bytes of directories that are read; a directory of 10,000 files has half a MiB."""
_AT_ONCE = 32 << 20
_DIRECTORY, _MODULE = b"40000", b"160000"

Tree = tuple[tuple[bytes, ...], tuple[bytes, ...]]
"""The directories and the files in a directory, by their objects."""
Ask = Callable[[tuple[str, ...], Collection[bytes]], bytes]
"""Runs git with lines of input."""


def chosen(path: str, source: Source, copied: set[bytes]) -> tuple[set[bytes], bool]:
    """Return the objects to copy from the reader at ``path``, and whether files are missing.

    ``copied`` are the objects that the copy has. All present objects of the checked-out commit are
    chosen: the human's work tree may be sparse. Raises GitFailed, OSError.
    """

    def ask(words: tuple[str, ...], given: Collection[bytes]) -> bytes:
        content = b"".join(one + b"\n" for one in given)
        return git.run(
            words, directory=path, limit=SECONDS, content=content, keep=source.descriptors
        )  # fmt: skip

    tips = list(source.all_refs.values())
    listed = ("rev-list", "--objects", "--no-object-names", "--stdin")
    every = ask((*listed, "--missing=print"), tips)
    if b"?" not in every:
        return set(every.split()), False
    del every  # the names of millions
    found = set(ask((*listed, "--filter=tree:0", "--missing=allow-any"), tips).split())
    newest = ask(("rev-list", f"--max-count={LOOKED_AT}", "--stdin"), tips).split()
    words = ("rev-list", "--no-walk=unsorted", "--no-commit-header", "--format=%T", "--stdin")
    first = [source.commit] if source.commit else []
    roots = ask(words, list(dict.fromkeys([*first, *tips[:LOOKED_AT], *newest]))).split()
    own = set(roots[: len(first)])
    new = own | (set(roots) - copied)
    trees = _read(ask, new)
    files = {one for tree in trees.values() if tree for one in tree[1]}
    answers = ask(("cat-file", "--batch-check"), files).splitlines()
    there = {line.split()[0] for line in answers if not line.endswith(b" missing")}
    rest = [*new.difference(_lacking(trees, there)), *own]
    while rest:
        name = rest.pop()
        tree = trees[name]
        if tree is None:
            raise GitFailed("lacks directories")
        if name not in found:
            found.update([name], there.intersection(tree[1]))
            rest += tree[0]
    return found, True


def _read(ask: Ask, roots: set[bytes]) -> dict[bytes, Tree | None]:
    """Return the directories at and below ``roots``; None for one that is missing."""
    trees: dict[bytes, Tree | None] = {}
    names: dict[bytes, bytes] = {}
    left, wanted = MAX_BYTES, roots
    while wanted:
        sizes = [line.split() for line in ask(("cat-file", "--batch-check"), wanted).splitlines()]
        read = dict[bytes, Tree | None]()
        while sizes:
            batch, size = list[bytes](), 0
            while sizes and size < _AT_ONCE:
                name, _, *length = sizes.pop()
                batch.append(name)
                size += int(length[0]) if length else 0
            left -= size
            if left < 0:
                raise GitFailed(f"has too large directories for a partial clone: {COMMAND}")
            read |= _parsed(ask(("cat-file", "--batch"), batch), names)
        trees |= read
        wanted = {one for tree in read.values() if tree for one in tree[0]} - trees.keys()
    return trees


def _parsed(listing: bytes, names: dict[bytes, bytes]) -> Iterator[tuple[bytes, Tree | None]]:
    """Yield the directories in an answer of ``git cat-file --batch``.

    Most versions of a directory have the same entries: ``names`` keeps each name once.
    """
    at = 0
    while at < len(listing):
        end = listing.index(b"\n", at)
        name, kind, *size = listing[at:end].split(b" ")
        at = end + 1
        if not size:
            yield name, None
            continue
        end = at + int(size[0])
        directories, files = list[bytes](), list[bytes]()
        while kind == b"tree" and at < end:
            mode = listing[at : listing.index(b" ", at)]
            at = listing.index(b"\0", at) + 1
            one = listing[at : at + len(name) // 2].hex().encode()
            at += len(name) // 2
            if mode != _MODULE:
                (directories if mode == _DIRECTORY else files).append(names.setdefault(one, one))
        at = end + 1
        yield name, (tuple(directories), tuple(files))


def _lacking(trees: dict[bytes, Tree | None], there: set[bytes]) -> set[bytes]:
    """Return the directories below which a file or a directory is missing."""
    found = {name for name, tree in trees.items() if tree is None or not there.issuperset(tree[1])}
    while more := {
        name
        for name, tree in trees.items()
        if tree and name not in found and not found.isdisjoint(tree[0])
    }:
        found |= more
    return found
