"""Reads git's configuration with git's own parser; none of the programs that it names is run.

This module opens and reads each file and passes its content to ``git config --file -``. That
command looks for no repository, follows no include and starts no program. This module follows
includes itself, and only to files that the agent cannot write.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from gitguardfs.base import git
from gitguardfs.base.paths import lies_in
from gitguardfs.base.walk import Unread, read_path, resolved
from gitguardfs.options import accounts

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
SECONDS = 20
"""How long ``git config`` may take: it needs milliseconds, so by then it hangs."""
MAX_FILES = 100
"""The most files that are read for one repository: users have fewer."""
SETTINGS = re.compile(
    r"GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|PARAMETERS|KEY_\d+|VALUE_\d+)", re.ASCII
)
"""Variables by which the environment adds to the user's configuration, or replaces its files."""
FILES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
"""Those of the variables that name a file."""
VARIABLES = {
    "GIT_SSH_COMMAND": "core.sshcommand",
    "GIT_SSH": "core.sshcommand",
    "GIT_PROXY_COMMAND": "core.gitproxy",
    "GIT_EXTERNAL_DIFF": "diff.external",
    "GIT_EDITOR": "core.editor",
    "VISUAL": "core.editor",
    "EDITOR": "core.editor",
    "GIT_SEQUENCE_EDITOR": "sequence.editor",
    "GIT_PAGER": "core.pager",
    "PAGER": "core.pager",
    "GIT_ASKPASS": "core.askpass",
    "SSH_ASKPASS": "core.askpass",
    "GIT_TEMPLATE_DIR": "init.templatedir",
}
"""Variables that git uses instead of a key of its configuration."""
EXPLICIT = "explicit"
"""The safe.bareRepository with which git uses a bare repository only if GIT_DIR names it."""
_LIST = ("config", "-z", "--list", "--show-origin", "--no-includes")
_FILE = "file:"


@dataclass(frozen=True)
class ConfigEntry:
    """One value of a configuration."""

    origin: str
    """The absolute path of its file; empty if it is from the environment (``SETTINGS``)."""
    key: str
    """Section and name in lower case, with the subsection between them as it is."""
    value: str | None
    """None for a key without ``=``, which stands for true."""

    @property
    def is_include(self) -> bool:
        """Return whether the entry includes another file."""
        section, _, name = self.key.rpartition(".")
        return name == "path" and section.partition(".")[0] in ("include", "includeif")


def _in_path(directories: str, project: str) -> Iterator[str]:
    """Yield each git in PATH that nobody else and no file of the project has a say in.

    Not taken are the scripts and links of version managers, as asdf and mise have them: a file of
    the project, where git runs, tells them what to run.
    """
    trees = _work_trees(project)
    for directory in directories.split(":"):
        program = os.path.realpath(os.path.join(directory, "git"))
        if (
            directory.startswith("/")
            and os.path.basename(program) == "git"
            and not any(lies_in(os.path.join(directory, "git"), tree) for tree in trees)
            and all(map(_is_ours, (directory, os.path.dirname(program), program)))
            and os.access(program, os.X_OK)
            and _start_of(program, 2) not in (b"", b"#!")
        ):
            yield program


def _is_ours(path: str) -> bool:
    """Return whether only root and this user can write there."""
    try:
        st = os.stat(path)
    except OSError:
        return False
    others = 0o002 if accounts.is_alone_in(st.st_gid) else 0o022
    return st.st_uid in (0, os.geteuid()) and not st.st_mode & others


def _work_trees(path: str) -> list[str]:
    """Return the directories above a path that hold a ``.git``, and those above what it leads to.

    So a linked work tree stands for the main one, too.
    """
    found: list[str] = []
    places = [os.path.realpath(path)]
    for place in places:
        for tree in map(str, (Path(place), *Path(place).parents)):
            dotgit = os.path.join(tree, ".git")
            if tree not in found and os.path.lexists(dotgit):
                found.append(tree)
                text = _start_of(dotgit, 4096).removeprefix(b"gitdir:").strip(b" \n\0")
                leads = os.fsdecode(text.split(b"\0")[0]) or dotgit
                places.append(os.path.realpath(os.path.join(tree, leads)))
    return found


def _start_of(path: str, size: int) -> bytes:
    """Return the first bytes of a file; none of what is no file, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Git:
    """The program git, and where the configuration of its user is."""

    program: str
    home: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """The user's environment variables."""

    @property
    def settings(self) -> dict[str, str]:
        """The variables that git takes configuration from (``SETTINGS``)."""
        return {key: value for key, value in self.environment.items() if SETTINGS.fullmatch(key)}

    @property
    def programs(self) -> dict[str, str]:
        """The variables that name programs (``VARIABLES``), and PATH."""
        names = ("PATH", *VARIABLES)
        return {key: value for key, value in self.environment.items() if key in names}

    @property
    def users_environment(self) -> dict[str, str]:
        """The variables by which git finds all of the user's configuration."""
        config_home = self.environment.get("XDG_CONFIG_HOME")
        more = {"XDG_CONFIG_HOME": config_home} if config_home else {}
        return {"HOME": self.home, **self.settings, **more}

    @classmethod
    def installed(
        cls, environment: Mapping[str, str], home: str = "/", search_path: str = SEARCH_PATH
    ) -> Git | None:
        """Return the git of a user with this environment; None if there is none to be trusted."""
        return next(cls.candidates(environment, ".", search_path, home), None)

    @classmethod
    def candidates(
        cls, environment: Mapping[str, str], project: str, search_path: str, home: str = "/"
    ) -> Iterator[Git]:
        """Yield each git of a user with this environment that is to be trusted, the best first.

        Those in ``search_path`` come before those in PATH that no work tree around ``project``
        holds. ``home`` is the user's if the environment does not give it.
        """
        given = environment.get("HOME", "")
        of_system = (shutil.which("git", path=one) for one in search_path.split(":"))
        for program in chain(
            filter(None, of_system), _in_path(environment.get("PATH", ""), project)
        ):
            yield cls(program, given if given.startswith("/") else home, dict(environment))

    @property
    def users_files(self) -> tuple[str, ...]:
        """The paths at which git looks for the user's configuration."""
        if "GIT_CONFIG_GLOBAL" in self.settings:
            return ()  # check_environment judges that
        config_home = self.environment.get("XDG_CONFIG_HOME") or os.path.join(self.home, ".config")
        return (
            os.path.join(self.home, ".gitconfig"), os.path.join(config_home, "git/config")
        )  # fmt: skip

    def entries_of(self, content: bytes, origin: str) -> list[ConfigEntry]:
        """Return the entries of a configuration file. Raises Unread if git cannot parse it."""
        listing = self._run((*_LIST, "--file", "-"), git.NO_CONFIG, content)
        return [ConfigEntry(origin, one.key, one.value) for one in parse(listing)]

    def of_user(self) -> list[ConfigEntry]:
        """Return the entries of the user's configuration, the system's and ``settings``.

        Raises Unread.
        """
        return parse(self._run(_LIST, self.users_environment, b""))

    def with_included(
        self, entries: Sequence[ConfigEntry], is_agents: Callable[[str], bool]
    ) -> list[ConfigEntry]:
        """Return the entries, and those of each file that they include under any condition.

        Skips files for which ``is_agents`` is true. Raises Unread.
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

        git ignores it in a repository's configuration. A conditional include (includeIf) is left
        out, since its condition may not hold.
        """
        own = [entry for entry in self.of_user() if not entry.key.startswith("includeif.")]
        entries = self.with_included(own, is_agents)
        values = {entry.value or "" for entry in entries if entry.key == "safe.barerepository"}
        return max(values, key=lambda value: value != EXPLICIT, default="")

    def path(self, value: str, origin: str) -> str:
        """Return the absolute path that a value in the file ``origin`` stands for."""
        if value == "~" or value.startswith("~/"):
            value = self.home + value[1:]
        elif value.startswith("~"):
            value = os.path.expanduser(value)
        return os.path.normpath(os.path.join(os.path.dirname(origin), value))

    def _run(self, arguments: Sequence[str], more: Mapping[str, str], content: bytes) -> bytes:
        # Without GIT_DIR it would look for a repository.
        environment = {"PATH": SEARCH_PATH, "HOME": self.home, "GIT_DIR": os.devnull, **more}
        try:
            done = git.run(
                self.program, arguments, environment, git.Limits(SECONDS), settings=(),
                given=content,
            )  # fmt: skip
        except TimeoutError:
            raise Unread("git config does not answer") from None
        except OSError as error:
            raise Unread(f"{self.program}: {error.strerror}") from None
        if done.code != 0:
            raise Unread(done.reason)
        return done.output


def parse(listing: bytes) -> list[ConfigEntry]:
    """Return the entries of ``git config -z --list --show-origin``.

    Raises Unread if the listing is not of that form.
    """
    fields = [os.fsdecode(field) for field in listing.split(b"\0")]
    if fields.pop() != "" or len(fields) % 2 != 0:
        raise Unread("git config printed a listing of unknown form")
    entries = []
    for origin, entry in zip(fields[::2], fields[1::2], strict=True):
        key, has_value, value = entry.partition("\n")
        path = origin.removeprefix(_FILE) if origin.startswith(_FILE) else ""
        entries.append(ConfigEntry(path, key, value if has_value else None))
    return entries
