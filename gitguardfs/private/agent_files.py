"""The texts in the agent's repository: configuration, notes, and the two scripts.

Of the host's configuration only values are taken over, and of these only what says how files and
texts are written. Not who the human is: the agent commits under its own name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gitguardfs.names.local_names import LocalNames
from gitguardfs.private import store
from gitguardfs.private.host_repository import Config
from gitguardfs.private.reader import Source

REMOTE = b"host"
HOOK = "reference-transaction"
SYNC = "gitguard-sync"
NOTES = "GITGUARD"
_WORK_TREES = (b".worktrees", b"**/.claude/worktrees")
"""Patterns for directories in which agents make work trees, if these are the guest's own."""
_BOOLEAN = re.compile(rb"(?i)true|false|yes|no|on|off|0|1|")
_WORD = re.compile(rb"[A-Za-z0-9._:+-]{1,64}")
_TAKEN = {
    b"core.filemode": _BOOLEAN,
    b"core.symlinks": _BOOLEAN,
    b"core.ignorecase": _BOOLEAN,
    b"core.precomposeunicode": _BOOLEAN,
    b"core.sparsecheckout": _BOOLEAN,
    b"core.sparsecheckoutcone": _BOOLEAN,
    b"core.autocrlf": re.compile(rb"(?i)true|false|yes|no|on|off|0|1|input"),
    b"core.eol": re.compile(rb"(?i)lf|crlf|native"),
    b"i18n.commitencoding": _WORD,
    b"i18n.logoutputencoding": _WORD,
    b"i18n.filesencoding": _WORD,
}
"""The keys that are taken over, with a pattern for the values of each."""
_LFS = {
    b"filter.lfs.clean": b"git-lfs clean -- %f",
    b"filter.lfs.smudge": b"git-lfs smudge -- %f",
    b"filter.lfs.process": b"git-lfs filter-process",
    b"filter.lfs.required": b"true",
}
"""Settings of ``git lfs install --local``."""
_ABOUT = """This is the agent's own git repository of a project that a human works on as well.
The files of the work tree are shared, live. The human's .git is not here, and nothing changes it.

Commit, branch, stash and rebase as you like. Of the host's branches this repository has:
  host/BRANCH   what the human has committed; `git fetch host` brings what is new
  git sync      fetches, and moves your branch on to the human's if you have no commits of your own

You cannot push. Each commit is also written to .gitguard/agent.bundle in the work tree. The human
takes your commits from there, with `gitguard fetch`. A hook does that: hooks/reference-transaction.
Where a tool has set core.hooksPath, as husky does, `git sync` does it.

`git init`, `git clone` and `git worktree add` work outside of the project only, and in directories
of this machine's own, as .worktrees or .claude/worktrees may be:
  git worktree add ~/wt/TOPIC
In such a work tree only `git sync` brings what is new, not `git fetch host`.
"""


def config(host: Config, source: Source, remote: str) -> bytes:
    """Return the agent's configuration: ``remote`` is the path of the copy of the host's."""
    extensions = []
    if source.object_format != b"sha1":
        extensions.append(_line(b"objectFormat", source.object_format))
    if source.is_partial:
        extensions.append(_line(b"partialClone", REMOTE))
    lines = [
        b"[core]",
        _line(b"repositoryFormatVersion", b"1" if extensions else b"0"),
        _line(b"bare", b"true" if host.get(b"core.bare", b"").lower() == b"true" else b"false"),
        _line(b"logAllRefUpdates", b"true"),
        # Inode numbers and times of change differ from the host's, whose index is used.
        _line(b"checkStat", b"minimal"),
        _line(b"trustCtime", b"false"),
    ]
    if extensions:
        lines += [b"[extensions]", *extensions]
    for key, form in _TAKEN.items():
        if key in host and form.fullmatch(host[key]):
            lines += _setting(key, host[key])
    if all(host.get(key) == value for key, value in _LFS.items()):
        for key, value in _LFS.items():
            lines += _setting(key, value)
    lines += [
        b'[remote "%s"]' % REMOTE,
        _line(b"url", remote.encode(errors="surrogateescape")),
        _line(b"fetch", b"+refs/heads/*:refs/remotes/%s/*" % REMOTE),
        _line(b"prune", b"true"),
        # git refuses to read the repository of another user, unless the command line allows it.
        _line(b"uploadPack", b"git -c safe.directory=* upload-pack"),
        # What git says is not there when it is told to push.
        _line(b"pushUrl", b"you-cannot-push-but-commit-and-the-human-runs-gitguard-fetch"),
        *([_line(b"promisor", b"true")] if source.is_partial else []),
        b"[alias]",
        _line(b"sync", b'!sh "$(git rev-parse --git-common-dir)/%s"' % SYNC.encode()),
    ]
    branch = source.head.branch.removeprefix(b"refs/heads/")
    if branch:
        lines += [
            b'[branch "%s"]' % _escaped(branch),
            _line(b"remote", REMOTE),
            _line(b"merge", source.head.branch),
        ]
    return b"\n".join([*lines, b""])


def _setting(key: bytes, value: bytes) -> list[bytes]:
    section, _, name = key.rpartition(b".")
    first, _, below = section.partition(b".")
    return [b'[%s "%s"]' % (first, below) if below else b"[%s]" % first, _line(name, value)]


def _line(name: bytes, value: bytes) -> bytes:
    return b'\t%s = "%s"' % (name, _escaped(value))


def _escaped(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def refs(source: Source) -> dict[bytes, bytes]:
    """Return the agent's first refs: the branch that is checked out, the host's ones, the tags."""
    found = {}
    for name, value in source.refs.items():
        if name.startswith(b"refs/tags/"):
            found[name] = value
        else:
            found[b"refs/remotes/%s/%s" % (REMOTE, name.removeprefix(b"refs/heads/"))] = value
    if source.head.branch in source.refs:
        found[source.head.branch] = source.refs[source.head.branch]
    return found


def exclude(host: bytes, local: LocalNames | None) -> bytes:
    """Return the content of ``info/exclude``: the host's, and the directories with work trees.

    ``git add .`` would take each work tree for a submodule.
    """
    own = [place for place in _WORK_TREES if local and local.marker(os.path.basename(place))]
    return b"".join((host.rstrip(b"\n") + b"\n" if host else b"", *(b"%s/\n" % at for at in own)))


def notes(why_empty: str, limited: int, former: Sequence[str]) -> bytes:
    """Return the notes for the agent.

    ``limited`` says how many commits came, 0 for all; ``former`` are the directories of projects
    that were at this path before.
    """
    more = "".join(
        "\nAnother project, or another history of this one, was here before. Your repository of it:"
        f"\n  {one}/{store.AGENT}\n"
        for one in former
    )
    if why_empty:
        more += f"\nThis repository started empty: the human's repository {why_empty}\n"
    if limited:
        more += (
            f"\nThe human's repository is large: only the last {limited} commits of each branch"
            " are here.\n"
        )
    return (_ABOUT + more).encode(errors="surrogateescape")


def script(name: str) -> bytes:
    """Return a script: HOOK publishes the agent's commits, SYNC is ``git sync``. Raises OSError."""
    from gitguardfs.base.installation import text  # not at the start: it imports a lot

    file = {HOOK: HOOK, SYNC: "sync"}[name]
    return text(f"private/files/{file}.sh").encode()
