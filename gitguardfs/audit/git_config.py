"""Reading git's configuration with git's own parser, without running anything.

Each file is opened and read here, and given to ``git config --file -``, which looks for no
repository, follows no include and starts no program. Includes are followed by our own code, and
only to files that the agent cannot write.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gitguardfs.audit.walk import Unread, read_path, resolved

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
SECONDS = 20
"""After which git is taken to hang."""
MAX_FILES = 100
"""Included files that are read for one repository: more are nobody's by hand."""
EXPLICIT = "explicit"
"""The value of safe.bareRepository with which git goes by no bare repository unasked."""
_LIST = ("config", "-z", "--list", "--show-origin", "--no-includes")
_FILE = "file:"
_QUIET = {
    "LC_ALL": "C",
    "GIT_DIR": os.devnull,  # looks for no repository
    "GIT_TRACE2": "0",  # the user's configuration may name files for traces
    "GIT_TRACE2_EVENT": "0",
    "GIT_TRACE2_PERF": "0",
}
_NO_OTHERS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


@dataclass(frozen=True)
class Entry:
    """One value of a configuration."""

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
    """The program, and where the configuration of the user is who runs it."""

    program: str
    home: str
    config_home: str | None = None
    """The user's XDG_CONFIG_HOME."""

    def entries_of(self, content: bytes, origin: str) -> list[Entry]:
        """Return what a file of configuration says. Raises Unread if git cannot parse it."""
        said = self._run((*_LIST, "--file", "-"), _NO_OTHERS, content)
        return [Entry(origin, one.key, one.value) for one in parse(said)]

    def of_user(self) -> list[Entry]:
        """Return what the user and the system have set for every repository. Raises Unread."""
        more = {"XDG_CONFIG_HOME": self.config_home} if self.config_home else {}
        return parse(self._run(_LIST, more, b""))

    def with_included(
        self, entries: Sequence[Entry], is_agents: Callable[[str], bool]
    ) -> list[Entry]:
        """Return the entries, and those of each file that they include, on whatever condition.

        Files that ``is_agents`` holds for are not read. Raises Unread.
        """
        found = list(entries)
        read = {resolved(entry.origin) for entry in entries}
        for entry in found:  # grows meanwhile: a file may include others
            if not entry.is_include or not entry.value:
                continue
            named = self.path(entry.value, entry.origin)
            path = resolved(named)
            if path in read or is_agents(named):
                continue
            if len(read) > MAX_FILES:
                raise Unread(f"more than {MAX_FILES} files")
            read.add(path)
            try:
                found += self.entries_of(read_path(path), named)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise Unread(f"{path}: {error.strerror}") from None
            except Unread as error:
                raise Unread(f"{path}: {error}") from None
        return found

    def bare_repositories(self, is_agents: Callable[[str], bool] = lambda _: False) -> str:
        """Return the user's safe.bareRepository; "" if it is not set. Raises Unread.

        git takes it from no repository. What is set on a condition may not hold.
        """
        own = [entry for entry in self.of_user() if not entry.key.startswith("includeif.")]
        entries = self.with_included(own, is_agents)
        said = {entry.value or "" for entry in entries if entry.key == "safe.barerepository"}
        return max(said, key=lambda value: value != EXPLICIT, default="")

    def path(self, value: str, origin: str) -> str:
        """Return the file that the value of a path, found in the file ``origin``, means."""
        if value == "~" or value.startswith("~/"):
            value = self.home + value[1:]
        elif value.startswith("~"):
            value = os.path.expanduser(value)
        return os.path.normpath(os.path.join(os.path.dirname(origin), value))

    def _run(self, arguments: Sequence[str], more: dict[str, str], content: bytes) -> bytes:
        try:
            done = subprocess.run(
                [self.program, *arguments],
                env={"PATH": SEARCH_PATH, "HOME": self.home, **_QUIET, **more},
                cwd="/",
                input=content,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unread("git config does not answer") from None
        except OSError as error:
            raise Unread(f"{self.program}: {error.strerror}") from None
        if done.returncode != 0:
            said = os.fsdecode(done.stderr).strip().splitlines()
            raise Unread(said[-1] if said else f"git config ends with {done.returncode}")
        return done.stdout


def parse(listing: bytes) -> list[Entry]:
    """Return the entries of ``git config -z --list --show-origin``.

    Raises Unread if the listing is not of that form.
    """
    fields = [os.fsdecode(field) for field in listing.split(b"\0")]
    if fields.pop() != "" or len(fields) % 2 != 0:
        raise Unread("git config says what is not understood")
    entries = []
    for origin, said in zip(fields[::2], fields[1::2], strict=True):
        key, has_value, value = said.partition("\n")
        path = origin.removeprefix(_FILE) if origin.startswith(_FILE) else ""
        entries.append(Entry(path, key, value if has_value else None))
    return entries
