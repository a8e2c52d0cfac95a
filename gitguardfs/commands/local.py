"""The command ``gitguard local``: lists, removes and moves directories of the guest's own."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import click

from gitguardfs.base import columns, quote
from gitguardfs.base.constants import LOCAL_STORE
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.findings import ScanProgress
from gitguardfs.base.size import as_size
from gitguardfs.commands.command_line import JSON, CommandGroup
from gitguardfs.guest import local_changing as changing
from gitguardfs.guest import local_listing as listing
from gitguardfs.guest.local_listing import Own, Share, State

EPILOG = """\b
With --local the view keeps node_modules and the like on the guest's disk.
They are found by their path in the share; what the host renames loses them:
  agent$ npm ci                        makes app/node_modules on that disk
  host$ mv app shop                    its place is gone: nothing is deleted
  root# gitguard local list            size, last use, state and path of each
  root# gitguard local move app shop   shop has what app had
  root# gitguard local prune           removes those whose place is gone
Paths are those of the view, absolute or relative to it. mv and rm in the view
move and remove what is in use. docs/local-directories.md says more.

\b
Exit codes: 0 done, 2 wrong usage, 3 anything else.
"""
_STORE = click.option(
    "--local-store",
    "place",
    metavar="DIR",
    default=LOCAL_STORE,
    show_default=True,
    help="The store that gitguardfs --local-store names.",
)
_LIST = "gitguard local list shows what there is"
_REMOVABLE = (State.GONE, State.UNMOUNTED, State.EMPTY, State.HIDDEN, State.UNNAMED, State.CLOSED)
"""States in which nobody sees a directory, so that it may be removed if it is named."""
_MOVABLE = (State.GONE, State.HIDDEN, State.UNNAMED, State.CLOSED)
"""States, known from a mounted view, in which a directory may be moved."""
_ENDS = {
    State.UNMOUNTED: "mount the view first",
    State.EMPTY: "look whether the host's directory is there",
    State.UNKNOWN: "gitguard doctor says whether the view answers",
}


@click.group(name="local", cls=CommandGroup, epilog=EPILOG)
def command() -> None:
    """List, remove and move the directories that --local keeps on the guest's disk."""


@command.command("list", short_help="List the directories.")
@_STORE
@JSON
def list_(place: str, as_json: bool) -> None:
    """List the directories: size, day of the last use, state, and path in the view."""
    with ExitStack() as stack:
        found = _all(_opened(stack, place))
        sizes = _sizes(found)
    if as_json:
        rows = [
            {
                "share": own.share.name,
                "view": own.share.view,
                "path": own.path,
                "bytes": size,
                "used": _day(own),
                "state": own.state.name.lower(),
                "store": own.share.path,
            }
            for own, size in zip(found, sizes, strict=True)
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    _show(found, sizes)
    click.echo(f"{_number(found)}, {as_size(sum(sizes))}, in {shown(place)}")


@command.command(short_help="Remove those whose place is gone.")
@click.argument("paths", metavar="[PATH...]", nargs=-1)
@_STORE
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def prune(paths: tuple[str, ...], place: str, yes: bool) -> None:
    """Remove the directories whose place is gone.

    Shows them first, and asks. While a view is not mounted, nothing says whose place is gone: then
    give the PATH of a directory, or of one above it.
    """
    with ExitStack() as stack:
        found = _all(_opened(stack, place))
        wanted = _named(found, paths) if paths else _gone(found)
        if not wanted:
            click.echo("there is nothing to remove")
            return
        _show(wanted, _sizes(wanted))
        if not yes:
            if not sys.stdin.isatty():
                hint = "gitguard local prune --yes removes it"
                raise UserError("nothing was removed", hint, Exit.SYSTEM)
            click.confirm(f"Remove {_number(wanted)}?", abort=True, err=True)
        for share in {one.share: None for one in wanted}:
            changing.remove_rests(share)
        # The host may have put a place back while the question stood there.
        for one in listing.with_states(wanted):
            if one.state in (_REMOVABLE if paths else (State.GONE,)):
                if changing.remove(one):
                    click.echo(f"removed {shown(one.path)}")
            else:
                click.echo(f"left: {shown(one.path)}: {one.state.value}", err=True)


@command.command(short_help="Move what the host's rename has left behind.")
@click.argument("old", metavar="FROM")
@click.argument("new", metavar="TO")
@_STORE
def move(old: str, new: str, place: str) -> None:
    """Move what was left behind at FROM to TO, after the host has renamed FROM to TO.

    FROM is a directory that is gone, with all that the guest had of its own in and below it; or
    one of the guest's own, such as app/node_modules. All is moved at once, or nothing.
    """
    with ExitStack() as stack:
        found = _all(_opened(stack, place))
        share, from_, moved = _source(found, old)
        to = listing.path_in(share, new)
        where = shown(share.shown(from_))
        if not to or not from_:
            raise UserError(f"{new} is no path below {share.view}", _LIST)
        for one in moved:
            _check_movable(one)
        is_own = moved[0].names == from_
        if is_own and from_[-1] != to[-1]:
            raise UserError(f"{old} and {new} have not the same name", "rename it in the view")
        _check_target(found, share, to, is_own)
        try:
            changing.move(share, from_, to, is_own)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise _occupied(share.shown(to)) from None
            raise
    click.echo(f"moved {_number(moved)}: {where} -> {shown(share.shown(to))}")


def _opened(stack: ExitStack, place: str) -> list[Share]:
    if os.geteuid() != 0:
        raise UserError("only root sees the store", "run it with sudo", Exit.SYSTEM)
    return listing.shares(stack, place)


def _all(shares: Iterable[Share]) -> list[Own]:
    return [own for share in shares for own in listing.owns(share)]


def _sizes(found: Iterable[Own]) -> list[int]:
    """Return the bytes that each takes; a file with several names counts once."""
    progress = ScanProgress(sys.stderr)
    seen: set[int] = set()
    try:
        return [listing.size_of(own, seen, progress.say) for own in found]
    finally:
        progress.line.clear()


def _show(found: Sequence[Own], sizes: Sequence[int]) -> None:
    rows = [
        (f"{as_size(size):>8}", _day(one), one.state.value, shown(one.path))
        for one, size in zip(found, sizes, strict=True)
    ]
    for line in columns.table(rows, columns.width_of(sys.stdout)):
        click.echo(line)


def _day(own: Own) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(own.used))


def _number(found: Sequence[Own]) -> str:
    return "1 directory" if len(found) == 1 else f"{len(found) or 'no'} directories"


def _gone(found: Iterable[Own]) -> list[Own]:
    """Return the directories whose place is gone; say which views could not be asked."""
    unsure: dict[tuple[Share, State], int] = defaultdict(int)
    for one in found:
        if one.state in _ENDS:
            unsure[one.share, one.state] += 1
    for (share, state), number in unsure.items():
        text = f"left: {number} of {share.view}: {state.value} ({_ENDS[state]})"
        click.echo(shown(text), err=True)
    return [one for one in found if one.state is State.GONE]


def _named(found: Sequence[Own], paths: Sequence[str]) -> list[Own]:
    """Return the directories at and below the paths.

    Raises UserError if there are none, or one is in use.
    """
    wanted: dict[Own, None] = {}
    for path in paths:
        here = _at(found, path)
        if not here:
            raise _nothing(path)
        for one in here:
            if one.state not in _REMOVABLE:
                hint = _ENDS.get(one.state) or f"rm -rf {quote.shell([one.path])}"
                raise UserError(f"{one.path}: {one.state.value}", hint, Exit.SYSTEM)
            wanted[one] = None
    return list(wanted)


def _at(found: Iterable[Own], path: str) -> list[Own]:
    names = ((own, listing.path_in(own.share, path)) for own in found)
    return [own for own, at in names if at is not None and own.is_at_or_below(at)]


def _nothing(path: str) -> UserError:
    return UserError(f"the guest has no directory of its own at {path}", _LIST, Exit.SYSTEM)


def _source(found: Iterable[Own], path: str) -> tuple[Share, tuple[bytes, ...], list[Own]]:
    """Return the share, the path in it, and the directories to move. Raises UserError."""
    moved = _at(found, path)
    if not moved:
        raise _nothing(path)
    share = moved[0].share
    if any(one.share is not share for one in moved):
        raise UserError(f"several views have directories at {path}", "give the whole path")
    from_ = listing.path_in(share, path) or ()
    exact = [one for one in moved if one.names == from_]
    return share, from_, exact or moved


def _check_movable(one: Own) -> None:
    if one.state not in _MOVABLE:
        hint = _ENDS.get(one.state) or "mv in the view moves it"
        raise UserError(f"{one.path}: {one.state.value}", hint, Exit.SYSTEM)


def _check_target(found: Iterable[Own], share: Share, to: tuple[bytes, ...], is_own: bool) -> None:
    """Raise UserError unless ``to`` has a place in the view, and the guest nothing there."""
    if any(one.share is share and one.is_at_or_below(to) for one in found):
        raise _occupied(share.shown(to))
    place, name = (to[:-1], to[-1]) if is_own else (to, b".")
    [own] = listing.with_states([Own(share, place, name, 0.0, State.UNKNOWN)])
    if own.state is not State.UNNAMED:
        what = "there is no such directory" if own.state is State.GONE else own.state.value
        hint = _ENDS.get(own.state, "TO is where the host has moved it to")
        raise UserError(f"{share.shown(place)}: {what}", hint, Exit.SYSTEM)


def _occupied(path: str) -> UserError:
    hint = f"remove that first: rm -rf {quote.shell([path])}"
    return UserError(f"the guest has directories of its own at {path}", hint, Exit.SYSTEM)
