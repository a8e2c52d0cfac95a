"""What agents are told about a guarded tree: the text for AGENTS.md, by its options. Pure."""

from __future__ import annotations

import os
import textwrap

from gitguardfs.names.local_names import DEPS, DIRECTORIES
from gitguardfs.names.rules import GitMode

_HEADING = "# Rules of this machine\n\n"
_LINE = 99
"""Characters of a line of the text, at most."""
_CLOSED = """\
You work on a tree that a human shares with you, in which `.git` is closed: `git` commands fail
here, and that is intended. Do not try to get around it. Change files only. When a step is done,
say what you changed and suggest a commit message; the human reviews, commits and pushes. Clone
dependencies, and put build directories that use git, outside of this tree, for example below
`~/build`. File watchers must poll.
"""
_READ_ONLY = """\
You work on a tree that a human shares with you, in which `.git` can be read: `git log`,
`git diff` and `git blame` work here. `git` commands that write fail, and that is intended. Do not
try to get around it. Change files only. When a step is done, say what you changed and suggest a
commit message; the human reviews, commits and pushes. Clone dependencies, and put build
directories that use git, outside of this tree, for example below `~/build`. File watchers must
poll.
"""
_PRIVATE = """\
You work on a tree that a human shares with you, with a git repository of your own: `.git` here is
a file that leads to it. Commit freely, in small steps, with messages that say why. You cannot
push, and need not: the human takes your commits with `gitguard fetch`. `git fetch host` brings
what the human has committed, as `host/BRANCH`; `git sync` also moves your branch there, if it has
no commits of its own. Make new worktrees below `~/wt` (`git worktree add ~/wt/topic`), or below
`.worktrees` or `.claude/worktrees` where these are this machine's own. In them only `git sync`
brings what is new. Elsewhere in this tree `git init`, `git clone`, `git worktree add` and `git
submodule update --init` fail, and that is intended: use `~/build`. File watchers must poll.
"""
_OPEN = """\
You work on a tree that a human shares with you. `.git` is the human's own, and open: run only the
`git` commands that you are asked to run, and never `git push`. File watchers must poll.
"""
_RULES = {
    GitMode.DENY: _CLOSED,
    GitMode.LIST: _CLOSED,
    GitMode.HIDE: _CLOSED,
    GitMode.READONLY: _READ_ONLY,
    GitMode.PRIVATE: _PRIVATE,
    GitMode.OFF: _OPEN,
}

_DEPS = [os.path.join(one.below, name).decode() for name, one in DIRECTORIES.items()]


def text(mode: GitMode, local: tuple[str, ...]) -> str:
    """Return the whole text for a view with a mode and with values of ``--local``."""
    return _HEADING + about_git(mode) + (f"\n{about_local(local)}" if local else "")


def about_local(globs: tuple[str, ...]) -> str:
    """Return the paragraph about the directories that are the guest's own."""
    names: list[str] = []
    for glob in globs:
        names += _DEPS if glob == DEPS else [glob]
    listed = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
    paragraph = (
        f"Directories called {listed} are this machine's own: install dependencies and build here;"
        " those of the human are not shown, and yours are not on the human's disk."
    )
    return textwrap.fill(paragraph, _LINE, break_on_hyphens=False, break_long_words=False) + "\n"


def about_git(mode: GitMode) -> str:
    """Return the paragraph about git for a view with a mode."""
    return _RULES[mode]
