"""Directories that a VM shares: the project, and those of ``vm up --share``.

A value of ``--share`` is a directory, and ``:ro`` behind it if the guest may only read there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gitguardfs.base import walk
from gitguardfs.base.constants import AGENT_HOME, SHARES
from gitguardfs.base.errors import UserError, shown, warn
from gitguardfs.base.paths import checksum, is_inside
from gitguardfs.host.share.directory import SECRETS, existing_directory

PROJECT_TAG = "project"
READ_ONLY, WRITABLE = ":ro", ":rw"
REPOSITORY_TAG = "repository"
FORGET = "gitguard vm up --share '' forgets all of them"
MOST = 16
"""Each is a device on the guest's PCI bus, which has 32 places; other devices take about ten."""


@dataclass(frozen=True)
class Share:
    """A directory of this machine that the guest has, guarded."""

    directory: str
    tag: str
    """Its mount tag; another in each share of a VM."""
    view: str
    """The path in the guest where the agent sees it."""
    is_writable: bool = True

    @property
    def mount(self) -> str:
        """The path in the guest where it is mounted raw, closed to the agent."""
        return f"{SHARES}/{self.tag}"


def of_vm(project: str, values: Iterable[str]) -> tuple[Share, ...]:
    """Return the share of the project, and then those of the values of ``--share``.

    Tags do not depend on other shares, since the guest keeps the agent's repositories by them. If
    two views would have the same path, the later one has a checksum at its end.
    """
    found = [Share(project, PROJECT_TAG, view_of(project))]
    for directory, is_writable in map(parsed, values):
        mark = checksum(directory)
        view = view_of(directory)
        while any(view == one.view for one in found):
            view = f"{view}-{mark}"
        found.append(Share(directory, f"share-{mark}", view, is_writable))
    return tuple(found)


def view_of(directory: str) -> str:
    """Return the path of a view in the guest: the name, with unusual characters replaced.

    Every tool that handles the path would have to quote control characters and the like.
    """
    name = re.sub(r"[^\w.+@ -]", "_", os.path.basename(directory)).strip()
    if not name.strip(".") or name.startswith("-"):
        name = f"project{name}"
    return f"{AGENT_HOME}/projects/{name}"


def parsed(value: str) -> tuple[str, bool]:
    """Return the directory of a value, and whether the guest may write there."""
    for ending, is_writable in ((READ_ONLY, False), (WRITABLE, True)):
        if value.endswith(ending):
            return value.removesuffix(ending), is_writable
    return value, True


def spelled(directory: str, is_writable: bool) -> str:
    """Return the value for a directory; ``:rw`` keeps an end of its name from meaning something."""
    if not is_writable:
        return directory + READ_ONLY
    return directory + (WRITABLE if directory.endswith((READ_ONLY, WRITABLE)) else "")


def absolute(value: str, base: str) -> str:
    """Return a value as the user gave it with an absolute path, from the directory ``base``.

    Raises UserError for one without a directory.
    """
    directory, is_writable = parsed(value)
    if not directory or "\0" in directory:
        raise UserError(f"--share {value!r} names no directory", "for example --share ~/data:ro")
    return spelled(os.path.join(base, os.path.expanduser(directory)), is_writable)


def merged(before: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """Return the values of both, the last one for each directory. Raises UserError."""
    found = dict(map(parsed, (*before, *more)))
    for directory in found:
        if not os.path.isabs(directory):
            raise UserError(f"--share {directory!r} is no absolute path", "begin it with / or ~/")
    if len(found) > MOST:
        raise UserError(f"--share names {len(found)} directories", f"at most {MOST} can be shared")
    return tuple(spelled(*one) for one in found.items())


def resolved(values: Iterable[str], *writable: str) -> tuple[str, ...]:
    """Return values that the user gives, with symlinks resolved; "" stays.

    Raises UserError if one does not exist, or leads through a symlink in a directory of
    ``writable`` or of the values, where the agent could lead it elsewhere.
    """
    values = tuple(values)
    given = (directory for directory, may in map(parsed, filter(None, values)) if may)
    places = (*writable, *map(os.path.realpath, given))
    return tuple(value and _resolved(value, places) for value in values)


def _resolved(value: str, places: tuple[str, ...]) -> str:
    directory, is_writable = parsed(value)
    real = existing_directory(directory, f"; {READ_ONLY} at the end lets the guest only read it")
    refuse_led(f"--share {shown(directory)}", directory, places)
    return spelled(real, is_writable)


def refuse_led(what: str, path: str, places: Iterable[str]) -> None:
    """Raise UserError if a symlink in one of ``places`` leads an absolute path out of there.

    The agent writes there, and could have made it. ``what`` begins the message.
    """
    *links, real = walk.trail(path)
    for place in places:
        if not is_inside(real, place) and any(is_inside(link, place) for link in links):
            raise UserError(
                f"{what} leads through {shown(place)}, where the agent could change it, to"
                f" {shown(real)}",
                "use that path, if you mean it",
            )


def present(values: Iterable[str]) -> tuple[str, ...]:
    """Return the remembered values whose directories exist. Warn of the others."""
    found = []
    for value in values:
        directory, _ = parsed(value)
        try:
            os.lstat(directory)
        except (FileNotFoundError, NotADirectoryError):
            warn(f"{directory} is gone, and not shared until it is back; {FORGET}")
            continue
        except OSError:  # the check says why
            pass
        found.append(value)
    return tuple(found)


def kept(old: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Return the values of ``new`` with which no more is shared than with ``old``.

    A directory that has become writable is kept as it was.
    """
    before = dict(map(parsed, old))
    both = {directory: may for directory, may in map(parsed, new) if directory in before}
    return tuple(spelled(directory, may and before[directory]) for directory, may in both.items())


def check(shares: tuple[Share, ...], private: Collection[str]) -> None:
    """Raise UserError if a VM must not share one of these directories, or not beside another.

    The first is the project. ``private`` are gitguardfs's own directories, with what other VMs
    start from and keep.
    """
    for share in shares[1:]:
        directory = share.directory
        real = existing_directory(directory, f", or start without it: {FORGET}")
        if real != directory:
            raise UserError(
                f"the shared directory {shown(directory)} leads to {shown(real)} now",
                f"{FORGET}; then share what you want by its own path",
            )
        for own in map(os.path.realpath, private):
            if is_inside(own, real) or is_inside(real, own):
                raise UserError(
                    f"--share {shown(real)} would share {shown(own)}, on which your VMs rely",
                    "share another directory",
                )
        _check_no_secrets(real)
        for other in shares:
            if other is not share and is_inside(real, other.directory):
                _check_in(share, other)


def _check_no_secrets(directory: str) -> None:
    """Raise UserError for a directory that holds a place of this user's keys and passwords.

    Such a place counts also if it is not there yet, and where it leads by a symlink.
    """
    home = os.path.expanduser("~")
    for name in SECRETS:
        place = os.path.join(home, name)
        real = os.path.realpath(place)
        if is_inside(place, directory) or is_inside(real, directory) or is_inside(directory, real):
            raise UserError(
                f"--share {shown(directory)} would share your keys or passwords (~/{name})",
                "share a directory further down",
            )


def _check_in(share: Share, outer: Share) -> None:
    """Raise UserError unless ``share`` lets the guest do more than ``outer``, which holds it."""
    if share.is_writable and not outer.is_writable:
        return
    inner, holder = shown(share.directory), shown(outer.directory)
    if inner == holder:
        raise UserError(f"--share {inner} is the project", "leave it out; it is shared already")
    how = "writable" if outer.is_writable else "to read"
    raise UserError(
        f"--share {inner} lies in {holder}, which is shared already, {how}", "leave one of them out"
    )
