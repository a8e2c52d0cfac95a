"""Says before a start where the agent's git will lack the user's repository, and what helps.

A guest has what is in a shared directory, and git needs more: a linked work tree its main
repository, a submodule the project around it, a subdirectory the directories above. Only files are
read here; git is not run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from stat import S_ISDIR

from gitguardfs.base import quote, walk
from gitguardfs.base.errors import UserError, ascii_shown
from gitguardfs.base.paths import is_inside, mode_at
from gitguardfs.host.share.directory import existing_directory
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.shares import READ_ONLY, REPOSITORY_TAG, Share
from gitguardfs.host.vm.state import state_of
from gitguardfs.names import dotgit
from gitguardfs.names.repository import is_repository

LEVELS = 2
"""Levels of directories below the project that are searched for repositories."""
MOST_SEARCHED, MOST_NAMED = 500, 3
"""Directories of a level that are searched, and repositories that are named; `up` waits for it."""
_GITDIR = b"gitdir:"
_LINKED = "a linked work tree"
_NOT_SHARED = "not all of which is shared"
_NO_HISTORY = "the agent's git has no history there"


@dataclass(frozen=True)
class Repository:
    """The user's repository of a directory."""

    top: str
    """The top of its work tree: the directory or one above, with the ``.git`` in it."""
    git_directory: str
    """The directory with its branches and objects."""
    kind: str = ""
    """``a linked work tree`` or ``a submodule``; "" for another work tree."""
    is_absolute: bool = False
    """Whether the ``.git`` leads to it by an absolute path, which means nothing in a guest."""

    @property
    def main(self) -> str:
        """The directory with the ``.git`` that the git directory is or lies in, else its parent."""
        parts = self.git_directory.split("/")
        for number, part in enumerate(parts):
            if dotgit.is_dotgit(os.fsencode(part)):
                return "/".join(parts[:number]) or "/"
        return os.path.dirname(self.git_directory)

    @property
    def around(self) -> str:
        """The smallest directory that has work tree and git directory."""
        return os.path.commonpath([self.top, self.main])


def repository(settings: Settings) -> Share | None:
    """Return the project's git directory, to be read, if its guard does not find it by ``.git``.

    It lies in a shared directory: no other has anything to do in a guest.
    """
    project = settings.project
    found = repository_of(project)
    if settings.git_mode != "private" or found is None or found.top != project:
        return None
    where = found.git_directory
    is_found = is_inside(where, project) and not found.is_absolute
    is_shared = any(is_inside(where, share.directory) for share in settings.shares)
    if is_found or not is_shared:
        return None
    return Share(where, REPOSITORY_TAG, view="", is_writable=False)


def line(settings: Settings) -> str:
    """Return a line if the agent's git is not to be had in the project, or not there; else ""."""
    project = settings.project
    if settings.git_mode == "deny":
        return ""
    found = repository_of(project)
    if found is None:
        return _without_repository(project)
    if settings.git_mode == "private" and found.top == project:
        if any(is_inside(found.git_directory, share.directory) for share in settings.shares):
            return ""
        helping = _sharing(found.main) if _can_be_project(found.main) else ""
        return f"{_begin(found, project)}, {_NOT_SHARED}: {_NO_HISTORY}{helping}"
    # The guard finds the main work tree of a linked one by what both say of one another.
    is_lost = found.is_absolute and (settings.git_mode == "readonly" or found.kind != _LINKED)
    share = next((one for one in settings.shares if is_inside(found.around, one.directory)), None)
    if share is not None and not is_lost:
        if share.directory == project:
            return ""
        place = os.path.join(share.view, os.path.relpath(project, share.directory))
        return f"{_begin(found, project)}: the agent's git works in {ascii_shown(place)}"
    why = "by a path that only this machine has" if share else _NOT_SHARED
    helping = _helping(found, is_shared=share is not None, is_lost=is_lost)
    return f"{_begin(found, project)}, {why}: {_NO_HISTORY}{helping}"


def _begin(found: Repository, project: str) -> str:
    """Return the beginning of the line: what the project is of its repository."""
    name, top, main = map(ascii_shown, (project, found.top, found.main))
    if found.kind:
        where = "is" if found.top == project else f"lies in {top},"
        return f"git: {name} {where} {found.kind} of {main}"
    if found.git_directory != os.path.join(found.top, ".git"):
        return f"git: {name} belongs to {ascii_shown(found.git_directory)}"
    return f"git: {name} lies in the repository {top}"


def _helping(found: Repository, is_shared: bool, is_lost: bool) -> str:
    """Return the end of the line: what has to be the project, and how ``.git`` has to lead there.

    ``is_lost``: a guest does not find the git directory by its path, even if it is shared.
    """
    path = f"a relative path in {ascii_shown(os.path.join(found.top, '.git'))}"
    if is_shared:
        return f"; with it: {path}"
    if _can_be_project(found.around):
        return f"; with it: {_up(found.around)}" + (f", and {path}" if is_lost else "")
    has_work_tree = os.path.join(found.main, ".git") == found.git_directory
    if found.kind and has_work_tree and _can_be_project(found.main):
        return f"; in the main work tree it has: {_up(found.main)}"
    return ""


def _sharing(directory: str) -> str:
    words = ["gitguard", "vm", "up", "--share", f"{directory}{READ_ONLY}"]
    return f"; with it: {quote.shell_printable(words)}"


def _up(project: str) -> str:
    return quote.shell_printable(["gitguard", "vm", "up", "--project", project])


def _without_repository(project: str) -> str:
    below = list(_repositories_below(project))
    if not below:
        return ""  # as its user knows
    names = ", ".join(map(ascii_shown, below[:MOST_NAMED]))
    more = f" and {len(below) - MOST_NAMED} more" if len(below) > MOST_NAMED else ""
    one = _up(os.path.join(project, below[0]))
    return (
        f"git: {ascii_shown(project)} is in no repository; the agent's git works in {names}{more}."
        f" To share one alone: {one}"
    )


def _can_be_project(directory: str) -> bool:
    with suppress(UserError):
        state_of(existing_directory(directory))
        return True
    return False


def repository_of(directory: str) -> Repository | None:
    """Return the repository to which git would take a resolved directory to belong; None if none.

    A ``.git`` that cannot be read counts as an ordinary one: git itself will say why.
    """
    above = directory
    while True:
        place = os.path.join(above, ".git")
        try:
            mode = os.lstat(place).st_mode
            if not S_ISDIR(mode) or is_repository(partial(mode_at, place)):
                return _repository_at(above, place)
        except FileNotFoundError:
            pass
        except (OSError, walk.Unread):
            return Repository(above, place)
        if above == os.path.dirname(above):
            return None
        above = os.path.dirname(above)


def _repository_at(top: str, place: str) -> Repository:
    """Return the repository whose ``.git`` is at ``place``. Raises OSError, Unread."""
    own = os.path.realpath(place)
    is_absolute = (walk.readlink(place) or "").startswith("/")
    if os.path.isfile(own):
        text = walk.read_path(own)
        if not text.startswith(_GITDIR):
            return Repository(top, place)
        named = text.removeprefix(_GITDIR).lstrip(b" ")
        own, is_absolute = _leads_to(top, named), named.startswith(b"/")
    with suppress(FileNotFoundError):
        common = _leads_to(own, walk.read_path(os.path.join(own, "commondir")))
        return Repository(top, common, _LINKED, is_absolute)
    return Repository(top, own, "a submodule" if "/.git/modules/" in own else "", is_absolute)


def _leads_to(directory: str, text: bytes) -> str:
    path = os.fsdecode(text.rstrip(b"\r\n").partition(b"\0")[0])
    return os.path.realpath(os.path.join(directory, path))


def _repositories_below(directory: str) -> Iterator[str]:
    """Yield repositories below a directory, relative to that, by level and name."""
    level = [""]
    for _ in range(LEVELS):
        inner: list[str] = []
        for above in level[:MOST_SEARCHED]:
            with suppress(OSError), os.scandir(os.path.join(directory, above)) as listing:
                inner += [
                    os.path.join(above, entry.name)
                    for entry in listing
                    if entry.is_dir(follow_symlinks=False)
                ]
        level = []
        for path in sorted(inner):
            if os.path.lexists(os.path.join(directory, path, ".git")):
                yield path
            else:
                level.append(path)
