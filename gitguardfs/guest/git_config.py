"""Reading git's configuration, all of it and with where it comes from, without running anything.

``git config --list`` starts no program and reads no index. The directory of a repository is given
to it, so that it neither looks for one nor minds whose it is: it would skip the configuration of
somebody else's repository in silence.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
SECONDS = 20
"""After which git is taken to hang in one repository."""
_LIST = ("config", "-z", "--list", "--show-origin", "--show-scope", "--includes")
_FILE = "file:"
MAX_FILES = 100
"""Files of conditional includes that are read for one repository: more are nobody's by hand."""


class NotRead(Exception):  # noqa: N818  # what happened
    """A configuration could not be read, or not all of it; says why."""


@dataclass(frozen=True)
class Entry:
    """One value of a configuration."""

    scope: str
    """system, global, local, worktree, or command."""
    origin: str
    """The absolute path of the file that it is in; empty if it is in none."""
    key: str
    """Section and name in small letters, and between them what the section is about."""
    value: str | None
    """None for a key without ``=``, which stands for true."""

    @property
    def is_include(self) -> bool:
        """Whether it names a file to be read as well."""
        section, _, name = self.key.rpartition(".")
        return name == "path" and section.partition(".")[0] in ("include", "includeif")


@dataclass(frozen=True)
class Git:
    """The program, and the home directory of the user who runs it."""

    program: str
    home: str

    def of_repository(self, directory: str) -> list[Entry]:
        """Return what holds in the repository whose ``.git``, or which, is ``directory``.

        Also what files hold that are included on a condition that is not met now. Raises NotRead,
        also if the repository's own file is not among those that were read.
        """
        there = (f"--git-dir={directory}", "--no-pager")
        around = os.path.dirname(directory)
        entries = self._list(there, around)
        read = {os.path.realpath(entry.origin) for entry in entries if entry.origin}
        if os.path.realpath(os.path.join(directory, "config")) not in read:
            # That of a worktree or a submodule is elsewhere.
            said = self._run((*there, "rev-parse", "--git-path", "config"), around)
            own = os.path.join(around, os.fsdecode(said.removesuffix(b"\n")))
            if os.path.realpath(own) not in read:
                raise NotRead(f"{own} is not among the files that git reads")
        return self._with_others(entries)

    def of_user(self) -> list[Entry]:
        """Return what holds for this user in every repository. Raises NotRead."""
        return self._with_others(self._list((), "/"))

    def path(self, value: str, origin: str) -> str:
        """Return the file that the value of a path, found in the file ``origin``, means."""
        if value == "~" or value.startswith("~/"):
            value = self.home + value[1:]
        elif value.startswith("~"):
            value = os.path.expanduser(value)
        return os.path.normpath(os.path.join(os.path.dirname(origin), value))

    def _with_others(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries, and those of files that are named and were not read."""
        read = {entry.origin for entry in entries}
        found = list(entries)
        for entry in found:  # grows meanwhile: a file may name others
            if not entry.is_include or not entry.value:
                continue
            path = self.path(entry.value, entry.origin)
            if path in read or not os.path.lexists(path):
                continue
            if len(read) > MAX_FILES:
                raise NotRead(f"more than {MAX_FILES} files")
            read.add(path)
            found += [
                Entry(entry.scope, one.origin, one.key, one.value)
                for one in self._list((), "/", ("--file", path))
            ]
        return found

    def _list(self, before: Sequence[str], cwd: str, after: Sequence[str] = ()) -> list[Entry]:
        return parse(self._run((*before, *_LIST, *after), cwd), cwd)

    def _run(self, arguments: Sequence[str], cwd: str) -> bytes:
        try:
            done = subprocess.run(
                [self.program, *arguments],
                env={"PATH": SEARCH_PATH, "LC_ALL": "C", "HOME": self.home},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotRead("git config does not answer") from None
        if done.returncode != 0:
            said = os.fsdecode(done.stderr).strip().splitlines()
            raise NotRead(said[-1] if said else f"git config ends with {done.returncode}")
        return done.stdout


def parse(listing: bytes, cwd: str) -> list[Entry]:
    """Return the entries of ``git config -z --list --show-origin --show-scope``, run in ``cwd``.

    Raises NotRead if the listing is not of that form.
    """
    fields = [os.fsdecode(field) for field in listing.split(b"\0")]
    if fields.pop() != "" or len(fields) % 3 != 0:
        raise NotRead("git config says what is not understood")
    entries = []
    for scope, origin, said in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        key, has_value, value = said.partition("\n")
        path = origin.removeprefix(_FILE) if origin.startswith(_FILE) else None
        where = os.path.normpath(os.path.join(cwd, path)) if path else ""
        entries.append(Entry(scope, where, key, value if has_value else None))
    return entries
