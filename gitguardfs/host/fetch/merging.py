"""Takes a branch of the agent's into the human's branch, without writing a file of the work tree.

The files are there already: agent and human share the work tree. So ``git merge`` always refuses
(it would overwrite local changes). Here history and index move, and the files stay as they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from tempfile import TemporaryDirectory

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.fetch.bundle import HEADS
from gitguardfs.host.fetch.git import WRITING, GitError, HostRepository

MAX_CONFLICTS = 20
UNDER_WAY = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or git am",
    "sequencer": "a cherry-pick or revert",
    "BISECT_LOG": "a bisect",
}
"""Unfinished operations by the file or ref that git keeps meanwhile."""


class Outcome(Enum):
    """The outcome of a merge."""

    UP_TO_DATE = "up to date"
    FAST_FORWARD = "fast-forward"
    MERGED = "merged"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Merge:
    """The result of a merge."""

    branch: str
    into: str
    """The human's branch; HEAD if none is checked out."""
    outcome: Outcome
    commit: str | None
    """The human's branch afterwards."""
    conflicts: tuple[str, ...] = ()
    unsigned: bool = False
    """Whether the user signs commits, and the merge is not signed."""


def check_ready(repository: HostRepository) -> None:
    """Raise UserError if something is staged or an operation is under way."""
    for name, what in UNDER_WAY.items():
        is_there = os.path.lexists(os.path.join(repository.git_dir, name))
        if is_there or (name.isupper() and repository.commit(name)):
            raise UserError(
                f"{what} is under way in {repository.top}",
                "finish it first; git status says how",
                Exit.SYSTEM,
            )
    staged = repository.git.run(
        "diff", "--cached", "--quiet", "--no-ext-diff", "--ita-visible-in-index", allowed=(0, 1)
    )
    if staged.code:
        raise UserError(
            f"changes are staged in {repository.top}",
            "git commit them, or git reset, which keeps the files",
            Exit.SYSTEM,
        )


def merge(repository: HostRepository, branch: str, theirs: str) -> Merge:
    """Merge a branch that was fetched, with the commit ``theirs``, into HEAD.

    Raises UserError, GitError.
    """
    check_ready(repository)
    git = repository.git
    head = repository.head()
    ref, into = (HEADS + head, head) if head else ("HEAD", "HEAD")
    ours = repository.commit(ref)
    if ours is not None and is_within(repository, theirs, ours):
        return Merge(branch, into, Outcome.UP_TO_DATE, ours)
    if ours is None or is_within(repository, ours, theirs):
        _move(repository, ref, ours, theirs, f"gitguard fetch --merge {branch}: Fast-forward")
        return Merge(branch, into, Outcome.FAST_FORWARD, theirs)
    done = git.run(
        "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs,
        settings=["merge.renormalize=false"], limits=WRITING, allowed=(0, 1),
    )  # fmt: skip
    tree, *names = done.output.rstrip(b"\0").split(b"\0")
    if done.code:
        conflicts = tuple(shown(name) for name in names[:MAX_CONFLICTS])
        return Merge(branch, into, Outcome.CONFLICT, ours, conflicts)
    try:
        commit = repository.users_git.run(
            "commit-tree", tree.decode(), "-p", ours, "-p", theirs,
            "-m", f"Merge {repository.agent}/{branch} into {into}",
        ).text  # fmt: skip
    except GitError as error:
        raise UserError(error.message, "git config user.name and user.email", Exit.SYSTEM) from None
    _move(repository, ref, ours, commit, f"gitguard fetch --merge {branch}: Merge")
    signs = repository.users_git.run("config", "--bool", "commit.gpgSign", allowed=(0, 1)).text
    return Merge(branch, into, Outcome.MERGED, commit, unsigned=signs == "true")


def by_hand(agents: str, git: str) -> Iterator[str]:
    """Yield instructions for a merge in spite of conflicts; ``git`` is the command of git."""
    yield "The files on the disk hold the work of both. To take them as they are:"
    yield f"  {git} merge -s ours --no-commit {agents}"
    yield f"  {git} add -A :/ ':(top,exclude).gitguard' && {git} diff --cached    # look, edit"
    yield f"  {git} commit"
    yield "To merge the commits instead, in a directory of its own:"
    yield f'  it=$(mktemp -d) && {git} worktree add --detach "$it" && cd "$it"'
    yield f"  git merge {agents}    # resolve, git add, git commit"
    yield f'  cd - && {git} reset "$(git -C "$it" rev-parse HEAD)"'
    yield f'  {git} worktree remove "$it"; {git} diff    # git restore FILE takes the merged one'


def is_within(repository: HostRepository, older: str, newer: str) -> bool:
    """Return whether ``older`` is an ancestor of ``newer``, or the same. Raises GitError."""
    words = ("merge-base", "--is-ancestor", older, newer)
    return repository.git.run(*words, allowed=(0, 1)).code == 0


def _move(repository: HostRepository, ref: str, ours: str | None, commit: str, why: str) -> None:
    """Move a branch, which HEAD has to be on, and the index to a commit, or neither.

    git sees an empty work tree meanwhile: where it compares a file with the index, it would run
    the filter that the agent's .gitattributes chooses. What the index knew of the other files
    stays, and so does its own time, by which git knows which of them to compare again. Raises
    UserError, GitError.
    """
    index = os.path.realpath(os.path.join(repository.git_dir, "index"))
    with (
        _locked(index),
        TemporaryDirectory(prefix="gitguard-", dir=os.path.dirname(index)) as directory,
    ):
        check_ready(repository)  # something may have been staged meanwhile
        new, empty = os.path.join(directory, "index"), os.path.join(directory, "empty")
        os.mkdir(empty)
        changed = None
        with suppress(FileNotFoundError):
            shutil.copyfile(index, new)
            changed = os.stat(index).st_mtime_ns
        git = replace(repository.git, directory=empty)
        git.having(GIT_INDEX_FILE=new, GIT_WORK_TREE=empty).run(
            "reset", "--quiet", "--no-refresh", "--no-recurse-submodules", commit, "--", ".",
            settings=["core.untrackedCache=false", "core.splitIndex=false"], limits=WRITING,
        )  # fmt: skip
        if changed is not None:
            os.utime(new, ns=(changed, changed))
        _check_on(repository, ref)
        # The user's configuration has the name for the reflog.
        repository.users_git.run(
            "update-ref", "--no-deref", "-m", why, ref, commit, ours or "0" * len(commit),
            limits=WRITING,
        )  # fmt: skip
        os.replace(new, index)


@contextmanager
def _locked(index: str) -> Iterator[None]:
    lock = f"{index}.lock"
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        hint = "another git, or an editor, is at work there: try again"
        raise UserError(f"{lock}: {error.strerror}", hint, Exit.SYSTEM) from None
    try:
        yield
    finally:
        os.unlink(lock)


def _check_on(repository: HostRepository, ref: str) -> None:
    """Raise UserError if another branch is checked out meanwhile."""
    head = repository.head()
    if ref != (HEADS + head if head else "HEAD"):
        raise UserError(
            f"{shown(head or 'a commit')} is checked out now, not {ref.removeprefix(HEADS)}",
            "nothing was changed; fetch again",
            Exit.SYSTEM,
        )
