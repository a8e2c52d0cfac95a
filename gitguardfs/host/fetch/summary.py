"""Summarises a bundle: commits, changed files, and warnings for the human.

git runs in the quarantine, where no configuration and no attributes name a program. All texts are
the agent's: they are escaped and cut. A tree of a few hundred bytes can stand for millions of
files, so time and memory are bounded; then the summary says that it has none.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gitguardfs.base.errors import counted, shown
from gitguardfs.base.git import MIB, Limits
from gitguardfs.host.fetch.bundle import HEADS
from gitguardfs.host.fetch.git import GitError, HostRepository, Runner
from gitguardfs.host.fetch.quarantine import Quarantine
from gitguardfs.names import dotgit, links

SECONDS = 10.0
"""The time for all branches together."""
MEMORY = 1024 * MIB
MAX_BRANCHES = 20
"""Of how many branches the commits and files are listed."""
MAX_COMMITS = 20
MAX_FILES = 1000
MAX_LINKS = 100
"""Of how many symlinks the text is read."""
WIDTH = 100
"""The most characters of a subject or a name that are shown."""
EMPTY_TREE = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
NOTABLE = {
    ".git": "some disks take this name for .git",
    ".gitmodules": "names repositories that git fetches",
    ".gitattributes": "chooses the filters and merge drivers that git runs",
    ".github": "runs on GitHub once it is pushed",
    ".gitlab-ci.yml": "runs on GitLab once it is pushed",
    ".husky": "hooks that run on this machine",
    ".githooks": "hooks that run on this machine",
    ".pre-commit-config.yaml": "hooks that run on this machine",
    "lefthook.yml": "hooks that run on this machine",
    ".lefthook.yml": "hooks that run on this machine",
    ".envrc": "runs in your shell",
    ".vscode": "settings and tasks that an editor runs",
    ".devcontainer": "commands that an editor runs",
}
"""By name of a file or directory, why a change of it is worth a look."""
_LINK, _MODULE = b"120000", b"160000"


@dataclass(frozen=True)
class Commit:
    """A commit of the agent's."""

    id: str
    author: str
    subject: str


@dataclass(frozen=True)
class File:
    """A changed file."""

    path: str
    added: int | None
    """Lines; None for a binary file."""
    deleted: int | None


@dataclass(frozen=True)
class Branch:
    """A branch of the agent's, compared with one of the human's."""

    name: str
    commit: str
    before: str | None
    """The commit that it was at the last fetch."""
    base: str | None
    """The human's branch of that name, or HEAD; None if there is no commit yet."""
    ahead: int | None = None
    behind: int | None = None
    commits: tuple[Commit, ...] = ()
    """The newest, which the human's branch does not have."""
    files: tuple[File, ...] = ()
    changed: int | None = None
    """The number of changed files, listed or not."""
    warnings: tuple[str, ...] = ()
    left_out: str = ""
    """Why the summary is not whole."""


class _Budget:
    """Shares out the time between the branches."""

    def __init__(self, git: Runner) -> None:
        self._git = git
        self._end = time.monotonic() + SECONDS

    def run(self, *arguments: str, given: bytes = b"", allowed: tuple[int, ...] = (0,)) -> bytes:
        # Half of what is left, so that no branch takes it all from the others.
        limits = Limits(max((self._end - time.monotonic()) / 2, 0.1), MEMORY)
        return self._git.run(*arguments, given=given, limits=limits, allowed=allowed).output


def summarise(quarantine: Quarantine, repository: HostRepository) -> list[Branch]:
    """Return the fetched branches: changed ones first, among those the ones the human also has."""
    refs = repository.refs(repository.remote, HEADS)
    hooks = repository.hooks_path()
    head = repository.commit("HEAD")
    budget = _Budget(quarantine.git)
    branches = []
    for name, commit in quarantine.header.named(HEADS).items():
        own = refs.get(HEADS + name)
        base = name if own else "HEAD" if head else None
        branches.append(
            (Branch(name, commit, refs.get(repository.remote + name), base), own or head),
        )
    branches.sort(key=lambda one: (one[0].commit == one[0].before, one[0].base != one[0].name))
    found = []
    for number, (branch, base_id) in enumerate(branches):
        if number >= MAX_BRANCHES:
            found.append(replace(branch, left_out="one of too many branches to summarise"))
            continue
        found.append(_compared(budget, branch, base_id, repository, hooks))
    return found


def _compared(
    budget: _Budget, branch: Branch, base: str | None, repository: HostRepository, hooks: str
) -> Branch:
    """Return the branch with as much of its summary as the limits allow, the warnings first."""
    new = [branch.commit, f"^{base}"] if base else [branch.commit]
    start = EMPTY_TREE[repository.object_format]

    def warnings() -> dict[str, Any]:
        entries = _entries(budget, start, branch.commit)
        return {"warnings": tuple(_warnings(budget, entries, repository.top, hooks))}

    def counts() -> dict[str, Any]:
        behind = int(budget.run("rev-list", "--count", base, f"^{branch.commit}")) if base else 0
        return {"ahead": int(budget.run("rev-list", "--count", *new)), "behind": behind}

    def files() -> dict[str, Any]:
        found = _files(budget, start, branch.commit)
        return {"files": tuple(found[:MAX_FILES]), "changed": len(found)}

    def commits() -> dict[str, Any]:
        newest = budget.run("rev-list", f"--max-count={MAX_COMMITS}", *new).split()
        return {"commits": tuple(map(_commit, newest, _contents(budget, newest)))}

    try:
        if base:
            fork = budget.run("merge-base", base, branch.commit, allowed=(0, 1))
            start = fork.decode().strip() or start
    except GitError as error:
        return replace(branch, left_out=f"too large to summarise: {error.message}")
    for part in (warnings, counts, files, commits):
        try:
            branch = replace(branch, **part())
        except GitError as error:
            branch = replace(branch, left_out=f"too large to summarise: {error.message}")
    return branch


def _commit(name: bytes, content: bytes) -> Commit:
    """Parse a commit object: git log would convert the agent's encoding."""
    head, _, message = content.partition(b"\n\n")
    author = next((one for one in head.split(b"\n") if one.startswith(b"author ")), b"")
    name_of_author = author.removeprefix(b"author ").partition(b" <")[0]
    return Commit(
        name.decode(), cut(name_of_author), cut(message.lstrip(b"\n").partition(b"\n")[0])
    )


@dataclass(frozen=True)
class _Entry:
    mode: bytes
    object: bytes
    path: bytes


_DIFF = (
    "diff-tree", "-r", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-textconv",
    "--no-color",
)  # fmt: skip


def _entries(budget: _Budget, start: str, end: str) -> list[_Entry]:
    fields = iter(budget.run(*_DIFF, "--raw", start, end, "--").split(b"\0")[:-1])
    found = []
    for one, path in zip(fields, fields, strict=True):
        _, mode, _, value, _ = one.split(b" ")
        found.append(_Entry(mode, value, path))
    return found


def _files(budget: _Budget, start: str, end: str) -> list[File]:
    listed = budget.run(*_DIFF, "--numstat", start, end, "--").split(b"\0")[:-1]
    changes = (one.split(b"\t", 2) for one in listed)
    return [File(cut(path), _number(added), _number(deleted)) for added, deleted, path in changes]


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() else None


def _warnings(budget: _Budget, entries: list[_Entry], top: str, hooks: str) -> Iterator[str]:
    """Yield warnings for the human: one line a kind, so that no kind hides another."""
    kinds: dict[str | bytes, list[str]] = {}
    for kind, text in _every_warning(budget, entries, top, hooks):
        kinds.setdefault(kind, []).append(text)
    for first, *others in kinds.values():
        yield f"{first} (and {len(others)} more of that kind)" if others else first


def _every_warning(
    budget: _Budget, entries: list[_Entry], top: str, hooks: str
) -> Iterator[tuple[str | bytes, str]]:
    own_hooks = os.path.relpath(os.path.join(top, os.path.expanduser(hooks)), top) if hooks else ""
    of_hooks = os.fsencode(own_hooks).split(b"/") if own_hooks else []
    known = {dotgit.any_spelling(name.encode()): name for name in NOTABLE}
    for entry in entries:
        if not entry.mode.strip(b"0"):
            continue  # deleted
        parts = entry.path.split(b"/")
        for part in parts:
            name = ".git" if dotgit.is_dotgit(part) else known.get(dotgit.any_spelling(part))
            if name:
                yield name, f"{cut(entry.path)}: {NOTABLE[name]}"
                break
        else:
            if of_hooks and parts[: len(of_hooks)] == of_hooks:
                why = "core.hooksPath leads there, git runs it on this machine"
                yield "hooks", f"{cut(entry.path)}: {why}"
        if entry.mode == _MODULE:
            yield _MODULE, f"{cut(entry.path)}: a submodule"
    symlinks = [entry for entry in entries if entry.mode == _LINK]
    try:
        texts = list(_contents(budget, [entry.object for entry in symlinks[:MAX_LINKS]]))
    except GitError:
        texts = []
    for entry, text in zip(symlinks, texts, strict=False):
        steps = links.steps_of(text)
        if steps is None or steps.up > entry.path.count(b"/"):
            yield _LINK, f"{cut(entry.path)}: a symlink out of the project, to {cut(text)}"
    if unread := len(symlinks) - len(texts):
        yield "unread", f"{counted(unread, 'symlink')} that were not read"


def _contents(budget: _Budget, names: list[bytes]) -> Iterator[bytes]:
    """Yield the contents of objects. Raises GitError if one is missing."""
    given = b"".join(name + b"\n" for name in names)
    listed = io.BytesIO(budget.run("cat-file", "--batch", given=given) if given else b"")
    while head := listed.readline():
        _, kind, *size = head.split()
        if not size:
            raise GitError(f"git cat-file: an object is {kind.decode()}")
        yield listed.read(int(size[0]) + 1)[:-1]


def cut(text: bytes | str) -> str:
    """Return a text of the agent's for a terminal: escaped, and ``WIDTH`` characters at most."""
    safe = shown(text[: WIDTH * 4])
    return safe if len(safe) <= WIDTH else f"{safe[: WIDTH - 3]}..."


def age(written: float, now: float) -> str:
    """Return the age of a bundle in words."""
    seconds = int(now - written)
    if seconds < -60:
        return "in the future, so the clocks differ"
    units = {"day": 86400, "hour": 3600, "minute": 60}
    for name, length in units.items():
        if seconds >= length:
            count = seconds // length
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "less than a minute ago"
