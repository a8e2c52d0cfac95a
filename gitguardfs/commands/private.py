"""The command ``gitguard private``: lists and deletes the agent's own repositories."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import ExitStack

import click

from gitguardfs.base import columns
from gitguardfs.base.constants import FSTYPE, PRIVATE_STORE
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.store_directory import remove_tree
from gitguardfs.commands.command_line import JSON, CommandGroup, in_project
from gitguardfs.linux import mountinfo, safe_open
from gitguardfs.options import accounts
from gitguardfs.private import store
from gitguardfs.private.share import Unusable, read

EPILOG = """\b
With --git=private the agent has a git repository of its own, in the place of
the human's .git, which it neither reads nor changes:
  agent$ git commit -am "fix"           as in any repository
  agent$ git sync                       moves on to what the human committed
  human$ gitguard fetch                 on the host: takes the agent's commits
  root# gitguard private list           where the repositories are
  root# gitguard private reset ~/proj   the agent starts anew from the human's
  root# gitguard private remove ~/proj  also the copy of the human's branches
PROJECT is its path in the guest or in the share, or its directory in the
store. docs/private-git-store.md of the source says what is kept there.

\b
Exit codes: 0 done, 2 wrong usage, 3 anything else.
"""
LOCK_SECONDS = 30.0
_STORE = click.option(
    "--store",
    "store_path",
    metavar="DIR",
    default=None,
    help="The store that gitguardfs --private-store names. Default: your own; root's is"
    f" {PRIVATE_STORE}.",
)
_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.group(name="private", cls=CommandGroup, epilog=EPILOG)
def command() -> None:
    """List and delete the agent's own repositories, in the guest."""


@command.command("list", short_help="List the repositories.")
@_STORE
@JSON
def list_(store_path: str | None, as_json: bool) -> None:
    """List the repositories: the share, the path in it, the agent, and where they lie.

    A project that the human moved has one for each place. "former" is one at whose path there is
    another project now, with a repository of its own. None is ever deleted unasked.
    """
    found = store.entries(store_path or store.default())
    if as_json:
        rows = [
            {
                "share": one.share,
                "path": os.fsdecode(one.work_tree),
                "uid": one.uid,
                "reset": one.is_reset,
                "former": one.is_former,
                "directory": one.path,
            }
            for one in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    listed = []
    for one in found:
        agent = accounts.find(str(one.uid)).name + (" (reset)" if one.is_reset else "")
        agent += " (former)" if one.is_former else ""
        listed.append((shown(one.share), shown(one.work_tree), agent, one.path))
    for line in columns.table(listed, columns.width_of(sys.stdout)):
        click.echo(line)


@command.command(short_help="Delete the agent's repository, with its commits.")
@in_project()
@_STORE
@_YES
def reset(project: str, store_path: str | None, yes: bool) -> None:
    """Delete the agent's repository. The next use makes one anew, from what the human has.

    Commits that the human has not fetched are lost, but for .gitguard/agent.bundle in the project.
    """
    _delete(project, store_path, yes, "the agent's repository", store.AGENT)


@command.command(short_help="Delete the agent's repository and the copy of the human's branches.")
@in_project()
@_STORE
@_YES
def remove(project: str, store_path: str | None, yes: bool) -> None:
    """Delete the agent's repository and the copy of the human's branches.

    If the project is still there, the next use makes both anew. The human's own repository on the
    host is never touched.
    """
    _delete(
        project, store_path, yes, "the agent's repository and the copy of the human's branches", ""
    )


def _delete(path: str, store_path: str | None, yes: bool, what: str, name: str = "") -> None:
    """Delete a work tree's directory in the store, or ``name`` in it."""
    found = _found(path, store_path or store.default())
    _check_nothing_mounted(found)
    where = f"{shown(found.work_tree)} in {shown(found.share)}"
    if not yes:
        question = f"Delete {what} of {where}, with every commit that was not fetched?"
        click.confirm(question, abort=True, err=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(store.locked(found.path, LOCK_SECONDS))
        except TimeoutError:
            raise UserError(
                f"a daemon has been fetching into {found.path} for {LOCK_SECONDS:g} s",
                "try again later",
                Exit.SYSTEM,
            ) from None
        remove_tree(os.path.join(found.path, name).rstrip("/"))


def _check_nothing_mounted(one: store.Entry) -> None:
    """Raise UserError if somebody has mounted something in a work tree's directory.

    The agent may do so in its repository. What is mounted, and what lies below it, would stay.
    """
    top = os.path.realpath(one.path)
    found = [m for m in mountinfo.listed() if f"{m.path}/".startswith(f"{top}/")]
    if not found:
        return
    whose = accounts.find(str(found[-1].owner or 0)).name
    unmount = "umount -i -l" if os.geteuid() == 0 else "fusermount3 -u -z"
    raise UserError(
        f"{whose} has a file system ({shown(found[-1].fstype)}) mounted at {shown(found[-1].path)}",
        "; ".join(f"{unmount} {shlex.quote(m.path)}" for m in reversed(found)),
        Exit.MOUNT,
    )


def _found(path: str, store_path: str) -> store.Entry:
    directory, uid = _target(path) or (os.path.abspath(path), None)

    def is_meant(one: store.Entry) -> bool:
        if uid is not None and one.uid != uid:
            return False
        in_share = not os.path.lexists(path) and os.fsencode(path) == one.work_tree
        return one.path == directory or (in_share and not one.is_former)

    found = [one for one in store.entries(store_path) if is_meant(one)]
    if len(found) == 1:
        return found[0]
    hint = "gitguard private list shows what there is"
    if found:
        hint = "give one of " + ", ".join(shlex.quote(one.path) for one in found)
    problem = "several repositories" if found else "no repository"
    raise UserError(f"the store {store_path} has {problem} of {path}", hint, Exit.SYSTEM)


def _target(path: str) -> tuple[str, int] | None:
    """Return the directory of the store that the virtual ``.git`` of a project names, and its user.

    A file of that name elsewhere than in a view of ours may be anybody's: None.
    """
    try:
        fd = safe_open.open_directory(path, os.geteuid() == 0)
    except OSError:
        return None
    try:
        top = next(iter(mountinfo.stack_of(fd)), None)
        if top is None or top.fstype != FSTYPE or top.owner not in (0, os.geteuid()):
            return None
        text = read(fd, b".git") or b""
        uid = os.stat(b".git", dir_fd=fd).st_uid
    except (OSError, Unusable):
        return None
    finally:
        os.close(fd)
    target = os.fsdecode(text.removeprefix(b"gitdir: ").rstrip(b"\n"))
    return (os.path.dirname(target), uid) if text.startswith(b"gitdir: ") else None
