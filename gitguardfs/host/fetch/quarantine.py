"""Unpacks a bundle into a repository of its own, checks it there, and takes it from there.

git before 2.46 checks nothing when it fetches from a bundle. So the pack goes to index-pack, which
checks every object as receive.fsckObjects does. Only then does the human's repository fetch from
the quarantine, with the same checks. After a refusal the human's repository has no new object.

The quarantine sees all objects of the human's, also those to which no branch leads any more. What
the bundle does not hold itself has to be in reach of the human's branches: an agent that knows the
id of a stash, or of a secret that was taken out of the history, could have it merged otherwise.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from gitguardfs.base.errors import shown
from gitguardfs.base.git import MIB, Limits
from gitguardfs.host.fetch.bundle import HEADS, TAGS, Header, Refused
from gitguardfs.host.fetch.git import LISTING, GitError, HostRepository, Runner, isolated
from gitguardfs.names import dotgit

ATTRIBUTES = "gitattributesSymlink"
CHECKS = ("badFilemode", ATTRIBUTES, "gitmodulesParse")
"""Checks that git only mentions by default (git-fsck(1)); an agent needs none of these forms."""
OWN = ("refs/heads", "refs/tags", "refs/remotes", "refs/agent/tags", "refs/agent-*/tags/**")
"""The refs that make a commit the human's; stashes and refs of tools do not."""
_ATTRIBUTES = dotgit.pattern_of(b".gitattributes")
MAX_OBJECTS = 1 << 20
OBJECTS = ("--objects", "--no-object-names")
NEW = "in the guest: git sync writes a new one"
SECONDS = 30
"""The least time that git gets to unpack a bundle; it gets a second more for each MiB."""
UNPACKED = 8
"""All new objects together may be as many times as long as a bundle: deltas stand for anything."""
_CONFIG = """\
[core]
	logAllRefUpdates = false
	fsync = none
[pack]
	threads = 1
	window = 0
"""
"""Of the quarantine: no search for deltas, which could take any time and memory."""


@dataclass(frozen=True)
class Quarantine:
    """A bare repository with a bundle's objects, which borrows the human's."""

    path: str
    git: Runner
    header: Header
    limits: Limits
    checks: Collection[str]

    def take(self, repository: HostRepository, branches: Collection[str] | None) -> None:
        """Fetch branches into the human's repository; all, the tags, and no others if None.

        Raises GitError.
        """
        heads, tags = repository.remote, repository.agent_tags
        if branches is None:
            wanted = ["--prune", self.path, f"+{HEADS}*:{heads}*", f"+{TAGS}*:{tags}*"]
        else:
            wanted = [self.path, *(f"+{HEADS}{one}:{heads}{one}" for one in branches)]
        checks = [f"fetch.fsck.{one}=error" for one in self.checks]
        settings = (
            "fetch.fsckObjects=true", *checks, "fetch.writeCommitGraph=false",
            "fetch.pruneTags=false", "fetch.unpackLimit=1",  # a pack is shorter than files
        )  # fmt: skip
        words = ("fetch", "--quiet", "--no-tags", "--no-auto-gc", "--no-recurse-submodules")
        try:
            with _tidied(os.path.join(repository.objects, "pack")):
                repository.git.run(
                    *words, "--no-write-fetch-head", *wanted, settings=settings, limits=self.limits
                )
        except GitError as error:
            hints = {
                "exists; cannot create":  # a branch that was renamed
                    "gitguard fetch without BRANCH removes what the agent has renamed or deleted",
                "invalid index-pack output":  # it has reached its limit
                    "it takes too much room in your repository; --limit SIZE allows more",
            }  # fmt: skip
            hint = next((hints[one] for one in hints if one in error.message), "")
            raise GitError(error.message, hint) from None


@contextmanager
def _tidied(directory: str) -> Iterator[None]:
    """Remove git's unfinished files after a failure: git gc does so only after weeks."""
    before = _begun(directory)
    try:
        yield
    except BaseException:
        for name in _begun(directory) - before:
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))
        raise


def _begun(directory: str) -> set[str]:
    with suppress(OSError):  # a repository without packs may have no such directory
        return {name for name in os.listdir(directory) if name.startswith("tmp_")}
    return set()


@contextmanager
def quarantined(
    repository: HostRepository, header: Header, copy: BinaryIO, directory: str, limit: int
) -> Iterator[Quarantine]:
    """Yield a quarantine in ``directory`` with the objects of the bundle. Raises Refused.

    ``limit`` is the largest size of a bundle.
    """
    path = os.path.join(directory, "quarantine.git")
    git = isolated(repository.git.program, path)
    if header.object_format != repository.object_format:
        raise Refused(f"its objects are {header.object_format}, not {repository.object_format}")
    git.run(
        "init", "--quiet", "--bare", "--template=", f"--object-format={header.object_format}", path
    )
    with open(os.path.join(path, "config"), "a", encoding="utf-8") as config:
        config.write(_CONFIG)
    os.makedirs(os.path.join(path, "objects/info"), exist_ok=True)
    with open(os.path.join(path, "objects/info/alternates"), "wb") as alternates:
        alternates.write(os.fsencode(repository.objects) + b"\n")
    shallow = os.path.join(repository.common_dir, "shallow")
    if os.path.exists(shallow):
        shutil.copyfile(shallow, os.path.join(path, "shallow"))
    humans = [*repository.refs(*OWN).values(), *filter(None, [repository.commit("HEAD")])]
    _check_prerequisites(git, header, humans)
    size = os.fstat(copy.fileno()).st_size
    limits = Limits(SECONDS + size / MIB, file=2 * size + 512 * MIB)
    checks: Collection[str] = CHECKS
    linked = None
    try:
        sent, bases = _unpack(git, path, copy, header, limits, checks)
    except Refused as error:
        if ATTRIBUTES not in error.message:
            raise
        linked = error
        checks = tuple(one for one in CHECKS if one != ATTRIBUTES)
        sent, bases = _unpack(git, path, copy, header, limits, checks)
    _check_tips(git, header)
    new = _check_objects(git, header, humans, limit * UNPACKED)
    # The human's own is in each tree that the agent has changed; git does not follow it.
    if linked and not _new_links(git, header, humans) <= _own_links(repository):
        raise linked
    _check_reach(git, header, humans, (new - sent) | bases)
    lines = "".join(f"create {name} {value}\n" for name, value in header.refs.items())
    git.run("update-ref", "--stdin", given=lines.encode())
    # git packs again what is new, without the deltas on objects that the human has.
    limits = Limits(limits.seconds, file=2 * size + limit)
    yield Quarantine(path, git, header, limits, checks)


def _check_prerequisites(git: Runner, header: Header, humans: Collection[str]) -> None:
    """Raise Refused for a commit that the bundle builds on, and no branch of the human's has."""
    for name, kind in _kinds(git, header.prerequisites).items():
        if kind != "commit":
            raise Refused(
                f"it builds on commit {name[:12]}, which this repository does not have", NEW
            )
    if header.prerequisites:
        words = [*header.prerequisites, *(f"^{one}" for one in humans)]
        beyond = {one.decode() for one in _listed(git, *words)}
        for name in beyond.intersection(header.prerequisites):
            why = f"it builds on commit {name[:12]}, to which no branch of yours leads now"
            raise Refused(why, NEW)


def _new_links(git: Runner, header: Header, humans: Collection[str]) -> set[tuple[bytes, bytes]]:
    """Return path and text of each symlink for .gitattributes that a commit of the agent's brings.

    A merge brings what none of its parents has. Raises GitError.
    """
    commits = _listed(git, *header.refs.values(), *(f"^{one}" for one in humans))
    words = ("diff-tree", "--stdin", "--no-commit-id", "--root", "-c", "-r", "-z", "--no-abbrev")
    given = b"".join(b"%s\n" % one for one in commits)
    fields = iter(git.run(*words, given=given, limits=LISTING).output.split(b"\0")[:-1])
    found = set()
    for entry, path in zip(fields, fields, strict=True):
        words_of = entry.lstrip(b":").split(b" ")  # modes of the parents, mode, objects likewise
        parents = entry.count(b":")
        if words_of[parents] == b"120000" and _is_attributes(path):
            found.add((path, words_of[2 * parents + 1]))
    return found


def _own_links(repository: HostRepository) -> set[tuple[bytes, bytes]]:
    """Return path and text of the symlinks for .gitattributes on the human's branches.

    Raises GitError.
    """
    found = set()
    for tip in {*repository.refs(HEADS).values(), *filter(None, [repository.commit("HEAD")])}:
        words = ("ls-tree", "-r", "-z", "--full-tree", tip)
        for entry in repository.git.run(*words, limits=LISTING).output.split(b"\0"):
            kind, _, path = entry.partition(b"\t")
            if kind.startswith(b"120000 ") and _is_attributes(path):
                found.add((path, kind.split(b" ")[2]))
    return found


def _is_attributes(path: bytes) -> bool:
    name = path.rpartition(b"/")[2]
    return dotgit.matches(_ATTRIBUTES, name) or dotgit.may_be_short_name(name)


def _unpack(
    git: Runner,
    path: str,
    copy: BinaryIO,
    header: Header,
    limits: Limits,
    checks: Collection[str],
) -> tuple[set[bytes], set[bytes]]:
    """Unpack; return the bundle's objects, and the human's on which its deltas are based."""
    count = int.from_bytes(os.pread(copy.fileno(), 4, header.length + 8), "big")
    if count > MAX_OBJECTS:
        raise Refused(f"it has more than {MAX_OBJECTS} objects")
    os.lseek(copy.fileno(), header.length, os.SEEK_SET)
    strict = ",".join(f"{one}=error" for one in checks)
    words = ("index-pack", "--stdin", "--fix-thin", f"--strict={strict}", "--threads=1")
    try:
        name = git.run(*words, given=copy, limits=limits).text.partition("\t")[2]
    except GitError as error:
        raise Refused(error.message) from None
    format_word = f"--object-format={header.object_format}"
    with open(os.path.join(path, f"objects/pack/pack-{name}.idx"), "rb") as index:
        lines = [
            line.split()
            for line in git.run(
                "show-index", format_word, given=index, limits=LISTING
            ).output.splitlines()
        ]
    # git writes the bases to the end of the pack.
    names = [line[1] for line in sorted(lines, key=lambda line: int(line[0]))]
    return set(names[:count]), set(names[count:])


def _check_tips(git: Runner, header: Header) -> None:
    """Raise Refused unless each branch is a commit, and each tag leads to one."""
    kinds = _kinds(git, header.refs.values())
    peeled = _kinds(git, [f"{one}^{{commit}}" for one in header.named(TAGS).values()])
    for name, value in header.refs.items():
        kind = kinds[value]
        if name.startswith(TAGS) and kind == "tag":
            kind = peeled[f"{value}^{{commit}}"]
        if kind != "commit":
            raise Refused(f"{name} leads to no commit ({shown(kind)})")


def _check_objects(git: Runner, header: Header, humans: Collection[str], limit: int) -> set[bytes]:
    """Return the objects that no branch of the human's has yet.

    Raises Refused if one is missing, or if they are longer than ``limit`` all together.
    """
    names = [*header.refs.values(), *(f"^{one}" for one in humans)]
    try:
        new = _listed(git, *names, options=OBJECTS)
        given = b"".join(b"%s\n" % one for one in new)
        sizes = git.run("cat-file", "--batch-check=%(objectsize)", given=given, limits=LISTING)
    except GitError as error:
        raise Refused(error.message) from None
    if sum(map(int, sizes.output.split())) > limit:
        raise Refused(f"it unpacks to more than {limit // MIB} MiB", "--limit SIZE allows more")
    return set(new)


def _check_reach(git: Runner, header: Header, humans: Collection[str], used: set[bytes]) -> None:
    """Raise Refused if an object that is used is in no commit of the human's branches.

    git bases deltas on what the commits have on which the bundle builds; all others take longer.
    """
    for starts, more in ((header.prerequisites, ["--no-walk"]), (humans, [])):
        if used and starts:
            options = (*OBJECTS, "--missing=allow-any", *more)  # of a partial clone
            used = used.difference(_listed(git, *starts, options=options))
    for name in used:
        why = f"it uses object {name[:12].decode()} of yours, to which no branch of yours leads now"
        raise Refused(why, NEW)


def _listed(git: Runner, *names: str, options: Collection[str] = ()) -> list[bytes]:
    """Return the objects that ``git rev-list`` prints for these names. Raises GitError."""
    given = "".join(f"{one}\n" for one in names).encode()
    return git.run("rev-list", *options, "--stdin", given=given, limits=LISTING).output.split()


def _kinds(git: Runner, names: Collection[str]) -> dict[str, str]:
    """Return the types of objects by their names; ``missing`` for one that is not there."""
    given = "".join(f"{one}\n" for one in names).encode()
    lines = git.run("cat-file", "--batch-check=%(objecttype)", given=given).text.splitlines()
    found = (line.rpartition(" ")[2] for line in lines)
    return dict(zip(names, found, strict=True))
