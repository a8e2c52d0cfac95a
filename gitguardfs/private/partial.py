"""Chooses the objects to copy of a partial clone: all commits, and no directory that lacks a file.

git changes a work tree file by file, and takes the old one away before it finds that the new one's
object is missing. A commit whose top directory is missing it refuses before that.
"""

from __future__ import annotations

from collections.abc import Iterator

from gitguardfs.private import git
from gitguardfs.private.git import GitFailed
from gitguardfs.private.reader import Source

SECONDS = 600.0
"""For each git command: as long as a whole copy may take."""
LOOKED_AT = 1000
"""Of how many commits the files come over, if they are there: the checked-out one, the branches and
tags, and the newest others."""
COMMAND = "git fetch --refetch --no-filter"
"""The host's command that fetches all missing objects."""
MAX_BYTES = 1 << 30
"""How much the directories may have that are looked at; a list of 10,000 files has half a MiB."""
_AT_ONCE = 32 << 20
_DIRECTORY, _MODULE = b"40000", b"160000"

Tree = tuple[tuple[bytes, ...], tuple[bytes, ...]]
"""The directories and the files in a directory, by their objects."""


def chosen(path: str, source: Source) -> tuple[set[bytes], bool]:
    """Return the objects of a reader, at ``path``, that are to be copied, and whether some lack.

    Of the checked-out commit it is what is there: the human's work tree may be sparse. Raises
    GitFailed, OSError.
    """

    def ask(*words: str, given: set[bytes] | list[bytes]) -> bytes:
        content = b"".join(one + b"\n" for one in given)
        return git.run(
            words, directory=path, limit=SECONDS, content=content, keep=source.descriptors
        )  # fmt: skip

    tips = list(source.all_refs.values())
    listed = ("rev-list", "--objects", "--no-object-names", "--stdin")
    every = ask(*listed, "--missing=print", given=tips)
    if b"?" not in every:
        return set(every.split()), False
    del every  # the names of millions
    found = set(ask(*listed, "--filter=tree:0", "--missing=allow-any", given=tips).split())
    newest = ask("rev-list", f"--max-count={LOOKED_AT}", "--stdin", given=tips).split()
    words = ("rev-list", "--no-walk=unsorted", "--no-commit-header", "--format=%T", "--stdin")
    first = [source.commit] if source.commit else []
    commits = list(dict.fromkeys([*first, *tips[:LOOKED_AT], *newest]))
    roots = ask(*words, given=commits).split()
    trees: dict[bytes, Tree | None] = {}
    known: dict[bytes, bytes] = {}
    left = MAX_BYTES

    def read(wanted: set[bytes]) -> Iterator[tuple[bytes, Tree | None]]:
        nonlocal left
        batch: list[bytes] = []
        size = 0
        rest = ask("cat-file", "--batch-check", given=wanted).splitlines()
        while rest:
            name, _, *length = rest.pop().split()
            batch.append(name)
            size += int(length[0]) if length else 0
            if rest and size < _AT_ONCE:
                continue
            left -= size
            if left < 0:
                raise GitFailed(f"has too large directories for a partial clone: {COMMAND}")
            yield from _trees(ask("cat-file", "--batch", given=batch), len(name) // 2, known)
            batch, size = [], 0

    wanted = set(roots)
    while wanted:
        new = dict(read(wanted))
        trees |= new
        wanted = {one for tree in new.values() if tree for one in tree[0]} - trees.keys()
    files = {one for tree in trees.values() if tree for one in tree[1]}
    answers = ask("cat-file", "--batch-check", given=files).splitlines()
    there = {line.split()[0] for line in answers if not line.endswith(b" missing")}
    lacking = {
        name for name, tree in trees.items() if tree is None or not there.issuperset(tree[1])
    }
    while more := {name for name, tree in trees.items()
                   if tree and name not in lacking
                   and not lacking.isdisjoint(tree[0])}:  # fmt: skip
        lacking |= more
    rest = [root for root in roots if root not in lacking]
    if first:
        rest.append(roots[0])
    while rest:
        name = rest.pop()
        tree = trees[name]
        if tree is None:
            raise GitFailed("lacks directories")
        if name not in found:
            found.update([name], there.intersection(tree[1]))
            rest += tree[0]
    return found, True


def _trees(
    listing: bytes, length: int, known: dict[bytes, bytes]
) -> Iterator[tuple[bytes, Tree | None]]:
    """Yield what ``git cat-file --batch`` says of directories; None for one that is missing.

    Most versions of a directory have the same entries: ``known`` keeps each name once.
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
            one = listing[at : at + length].hex().encode()
            at += length
            if mode != _MODULE:
                (directories if mode == _DIRECTORY else files).append(known.setdefault(one, one))
        at = end + 1
        yield name, (tuple(directories), tuple(files))
