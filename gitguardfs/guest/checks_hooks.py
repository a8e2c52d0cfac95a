"""Does git on the host run hooks that the agent can write (``core.hooksPath``)?"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from gitguardfs.guest import probes
from gitguardfs.guest.checks import SEARCH_PATH, Result, finding, ok
from gitguardfs.guest.probes import Lost, User

ENTRIES = 1_000_000
"""Names that the search looks at: a directory with many projects and all they depend on."""
SECONDS = 120.0
"""How long the search may take: git is asked in each repository, some hundred a second."""
CALL_SECONDS = 20
"""After which git is taken to hang in one repository."""
NAMED = 5
"""How many of what was found, or was not looked at, are named."""
KEY = "core.hooksPath"
TITLE = "git takes its hooks from where the agent cannot write"
HINT = f"git config --unset {KEY}, or guard the directory with --protect"

GIT_SAYS, GIT_HAS_NONE, GIT_FAILS = 0, 1, 128
"""Exit codes of git-config(1): where it fails, as on a broken repository, it runs no hook."""


@dataclass
class Searched:
    """What a search of the shared directory has found."""

    values: dict[str, str] = field(default_factory=dict)
    """Repositories, or the directory itself if it has none, and their ``core.hooksPath``."""
    unasked: list[str] = field(default_factory=list)
    """Directories that could not be listed, and repositories in which git gave no answer."""
    names: int = 0
    complete: bool = True

    def answer(self) -> dict[str, Any]:
        """It as JSON."""
        return asdict(self)


def check(user: User, directory: str | None, search_path: str) -> Result:
    """Ask git in every repository of the shared directory; without one, for all repositories."""
    id, title = "host.hooks", TITLE
    git = shutil.which("git", path=search_path)
    if git is None:
        return ok(id, title, "no git here")
    home = home_of(user)
    try:
        if directory is None:
            value = probes.apart(ask, git, "/", home, user=user, limit=CALL_SECONDS + 5)
            return judge_everywhere(value or "")
        found = probes.apart(search, git, directory, home, user=user, limit=SECONDS + 60)
        searched = Searched(**found)
    except (Lost, OSError, TypeError) as error:
        hint = f"git config --show-origin --get-all {KEY}, in each repository"
        return finding(id, title, f"could not be checked: {error}", hint)
    return judge(searched, directory, home)


def home_of(user: User) -> str:
    """The user's home, for git's configuration."""
    home = os.path.expanduser(f"~{user.name}")
    return home if home.startswith("/") else "/"


def judge_everywhere(value: str) -> Result:
    """What the user's own configuration comes to; one that is relative leads into work trees."""
    id, title = "host.hooks", TITLE
    if value and not value.startswith(("/", "~")):
        return finding(id, title, f"every repository: {KEY} = {value}", HINT)
    return ok(id, title)


def judge(searched: Searched, directory: str, home: str) -> Result:
    """What the repositories' ``core.hooksPath`` come to, and what was not looked at."""
    id, title = "host.hooks", TITLE
    found = [
        f"{place}: {KEY} = {value}"
        for place, value in searched.values.items()
        if in_work_tree(value, place, directory, home)
    ]
    if found:
        return finding(id, title, _some(found), HINT)
    if not searched.complete:
        said = f"could not all be checked: only the first {searched.names} names were looked at"
        return finding(id, title, said, "gitguard doctor --host for each directory in it")
    if searched.unasked:
        said = f"could not be checked: {_some(searched.unasked)}"
        return finding(id, title, said, f"git config --show-origin --get-all {KEY}, there")
    return ok(id, title)


def _some(said: list[str]) -> str:
    more = f" and {len(said) - NAMED} more" if len(said) > NAMED else ""
    return ", ".join(said[:NAMED]) + more


def in_work_tree(value: str, repository: str, shared: str, home: str) -> bool:
    """Whether core.hooksPath leads into the shared directory, but not into a ``.git`` there."""
    if value == "~" or value.startswith("~/"):
        value = home + value[1:]
    path = os.path.normpath(os.path.join(repository, value))
    shared = os.path.normpath(shared)
    if os.path.commonpath([path, shared]) != shared:
        return False
    return ".git" not in os.path.relpath(path, shared).split("/")


# Run as the user


def ask(git: str, place: str, home: str) -> str | None:
    """The ``core.hooksPath`` that git uses in ``place``; OSError if it does not answer."""
    try:
        done = subprocess.run(
            [git, "-C", place, "config", "--get", KEY],
            env={"PATH": SEARCH_PATH, "LC_ALL": "C", "HOME": home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"git config in {place} does not answer") from None
    if done.returncode == GIT_SAYS:
        return os.fsdecode(done.stdout).removesuffix("\n")
    if done.returncode in (GIT_HAS_NONE, GIT_FAILS):
        return None
    raise OSError(f"git config in {place} ends with {done.returncode}")


def search(
    git: str, top: str, home: str, entries: int = ENTRIES, seconds: float = SECONDS
) -> dict[str, Any]:
    """Ask in ``top`` and in each directory below it that has a ``.git``; a ``Searched``'s answer.

    What this user may not list is no place where he has git run; symlinks are not followed.
    """
    searched = Searched()
    deadline = time.monotonic() + seconds
    queue = [top]
    while queue:
        directory = queue.pop()
        is_repository = directory == top
        try:
            for entry in _entries(directory):
                searched.names += 1
                if searched.names > entries or time.monotonic() > deadline:
                    searched.complete = False
                    return searched.answer()
                if entry.name == ".git":
                    is_repository = True
                elif entry.is_dir(follow_symlinks=False):
                    queue.append(entry.path)
            value = ask(git, directory, home) if is_repository else None
        except OSError:
            searched.unasked.append(directory)
        else:
            if value:
                searched.values[directory] = value
    return searched.answer()


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        listing = os.scandir(directory)
    except (PermissionError, FileNotFoundError):
        return
    with listing:
        yield from listing
