"""Runs git on the host, on what an agent wrote, and finds the repository of the human.

Each call has an explicit environment, a limit of time, and on Linux one of memory. git starts no
hook, fsmonitor, pager or editor, asks nothing, fetches nothing from a promisor remote and follows
no replacement of an object. It reads the repository's own configuration; the user's is read only
to find the repository (safe.directory) and to learn the user's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO

from gitguardfs.base import git
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.git import MIB, Answer, Limits
from gitguardfs.host.audit.git_config import SEARCH_PATH, Git

MINIMUM = (2, 38)
"""The first git that merges without a work tree, and that can leave bare repositories alone."""
MAIN = "agent"
"""Prefix of the agent's branches in the main work tree."""
_SETTINGS = (
    *git.SETTINGS, "safe.bareRepository=explicit", "gc.auto=0", "maintenance.auto=false",
    "advice.detachedHead=false",
    "core.alternateRefsCommand=true",  # a program, which says nothing
)  # fmt: skip
_PROGRAMS = r"^(merge\..*\.driver|hook\..*\.command)$"
"""Keys of programs that git runs by themselves, and that have names of the user's."""
_IDENTITY = re.compile(r"GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL)|EMAIL")
"""Variables of the user's that name the author of a merge."""


class GitError(UserError):
    """git failed, or exceeded a limit; the message says which command and why."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, Exit.SYSTEM)


QUICK = Limits(30)
"""For calls that need milliseconds."""
LISTING = Limits(30, file=512 * MIB)
"""For lists of objects and refs: a project may have millions."""
WRITING = Limits(120, file=64 << 30)
"""For calls that write the human's index, refs and objects: large projects need seconds."""


@dataclass(frozen=True)
class Runner:
    """Runs git in one directory, with one environment."""

    program: str
    environment: Mapping[str, str]
    directory: str = "/"

    def run(
        self,
        *arguments: str,
        settings: Collection[str] = (),
        given: bytes | BinaryIO = b"",
        limits: Limits = QUICK,
        allowed: tuple[int, ...] = (0,),
    ) -> Answer:
        """Run git with ``given`` as its input, and with more settings.

        Raises GitError if it does not end with a status in ``allowed``, or exceeds a limit.
        """
        environment = {"PATH": SEARCH_PATH, "GIT_ALLOC_LIMIT": "2g", **self.environment}
        try:
            answer = git.run(
                self.program, arguments, environment, limits,
                settings=(*_SETTINGS, *settings), directory=self.directory, given=given,
            )  # fmt: skip
        except TimeoutError:
            raise GitError(f"git {arguments[0]} took over {limits.seconds:.0f} s") from None
        if answer.code not in allowed:
            raise GitError(f"git {arguments[0]}: {answer.reason}")
        return answer

    def having(self, **variables: str) -> Runner:
        """Return a runner with more environment variables."""
        return replace(self, environment={**self.environment, **variables})


@dataclass(frozen=True)
class HostRepository:
    """The repository of the human: a checkout, a worktree of one, or a submodule."""

    git: Runner
    """Reads no configuration but the repository's."""
    users_git: Runner
    """Reads the user's configuration, too."""
    top: str
    git_dir: str
    common_dir: str
    objects: str
    object_format: str

    @property
    def agent(self) -> str:
        """Prefix of the agent's branches, as a remote's name is one.

        The human's work trees have one repository, and each has an agent's of its own.
        """
        above, name = os.path.split(self.git_dir)
        return f"{MAIN}-{name}" if above == os.path.join(self.common_dir, "worktrees") else MAIN

    @property
    def remote(self) -> str:
        """Namespace of the agent's branches."""
        return f"refs/remotes/{self.agent}/"

    @property
    def agent_tags(self) -> str:
        """Namespace of the agent's tags, which never stand for the human's."""
        return f"refs/{self.agent}/tags/"

    def commit(self, name: str) -> str | None:
        """Return the id of the commit that a name stands for; None if there is none."""
        words = ("rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}")
        return self.git.run(*words, allowed=(0, 1, 128)).text or None

    def refs(self, *prefixes: str) -> dict[str, str]:
        """Return the object ids of the refs below the prefixes, by their full names."""
        words = ("for-each-ref", "--format=%(objectname) %(refname)")
        listed = self.git.run(*words, *prefixes, limits=LISTING)
        found = (line.partition(" ") for line in listed.text.split("\n") if line)
        return {name: value for value, _, name in found}

    def remotes(self) -> set[str]:
        """Return the names of the human's remotes. Raises GitError."""
        words = ("config", "--name-only", "--get-regexp", r"^remote\..*\.(url|fetch|pushurl)$")
        keys = self.git.run(*words, allowed=(0, 1)).text.split("\n")
        return {key.rpartition(".")[0].removeprefix("remote.") for key in keys}

    def left_refs(self) -> dict[str, str]:
        """Return the agents' refs of work trees that are gone; none of a work tree but the main.

        Raises GitError.
        """
        if self.agent != MAIN:
            return {}
        found = self.refs(f"refs/remotes/{MAIN}-*/**", f"refs/{MAIN}-*/tags/**")
        remotes, trees = self.remotes(), os.path.join(self.common_dir, "worktrees")
        return {
            name: value
            for name, value in found.items()
            if (agent := name.split("/")[2 if name.startswith("refs/remotes/") else 1])
            not in remotes
            and not os.path.lexists(os.path.join(trees, agent.removeprefix(f"{MAIN}-")))
        }

    def head(self) -> str | None:
        """Return the branch that is checked out; None if HEAD is a commit."""
        words = ("symbolic-ref", "--quiet", "HEAD")
        return self.git.run(*words, allowed=(0, 1)).text.removeprefix("refs/heads/") or None

    def hooks_path(self) -> str:
        """Return the user's core.hooksPath; "" if it is not set."""
        words = ("config", "--show-scope", "--get-all", "core.hooksPath")
        found = [line.split("\t", 1) for line in self.users_git.run(*words).text.splitlines()]
        return next((one for scope, one in reversed(found) if scope != "command"), "")

    def short(self, ref: str) -> str:
        """Return the shortest name of a ref that git takes for no other."""
        return self.git.run("for-each-ref", "--format=%(refname:short)", ref).text


def find_repository(directory: str, environment: Mapping[str, str]) -> HostRepository:
    """Return the repository that a directory lies in. Raises UserError, GitError."""
    here = _newest_enough(environment, os.path.abspath(directory))
    users = here.environment
    found = here.run(
        "rev-parse", "--path-format=absolute", "--is-bare-repository", "--git-dir",
        "--git-common-dir", "--git-path", "objects", "--show-object-format", allowed=(0, 128),
    )  # fmt: skip
    if found.code != 0:
        hint = "name the project: gitguard fetch --project DIR"
        if "dubious ownership" in found.reason:
            hint = "run gitguard fetch as the user who owns the project"
        raise UserError(f"{directory}: {found.reason}", hint, Exit.SYSTEM)
    is_bare, *lines = found.text.split("\n")
    if is_bare == "true" or len(lines) != 4:
        why = "is a bare repository" if is_bare == "true" else "has a newline in its path"
        raise UserError(f"{directory} {why}", "gitguard fetch needs a work tree", Exit.SYSTEM)
    git_dir, common_dir, objects, object_format = lines
    top = here.run("rev-parse", "--path-format=absolute", "--show-toplevel").text
    paths = {"GIT_DIR": git_dir, "GIT_WORK_TREE": top}
    return HostRepository(
        _without_programs(Runner(here.program, {**git.NO_CONFIG, **paths}, top)),
        _without_programs(Runner(here.program, {**users, **paths}, top)),
        top, git_dir, common_dir, objects, object_format,
    )  # fmt: skip


def _without_programs(runner: Runner) -> Runner:
    """Return a runner with which each merge driver is a conflict, and no hook has a command.

    The agent's .gitattributes chooses drivers, and a driver may be a program in the work tree.
    core.hooksPath switches off the hooks that are files, but not those of the configuration.
    Raises GitError.
    """
    found = runner.run("config", "--name-only", "-z", "--get-regexp", _PROGRAMS, allowed=(0, 1))
    keys = [os.fsdecode(key) for key in found.output.split(b"\0") if key]
    given = int(runner.environment.get("GIT_CONFIG_COUNT") or 0)
    variables = {"GIT_CONFIG_COUNT": str(given + len(keys))}
    for number, key in enumerate(keys, given):
        name = key.removesuffix("command") + "enabled" if key.startswith("hook.") else key
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": "false"}
    return runner.having(**variables)


def isolated(program: str, git_dir: str) -> Runner:
    """Return a runner for a repository of our own that reads nothing of the user's."""
    return Runner(program, {**git.NO_CONFIG, "GIT_DIR": git_dir})


def _newest_enough(environment: Mapping[str, str], directory: str) -> Runner:
    """Return a runner for the first git that is not too old. Raises UserError, GitError."""
    why = UserError(
        f"there is no git in {SEARCH_PATH}, and none in PATH that others cannot change",
        "install git there, or put the directory of git itself into PATH: no script, and"
        " nothing in the project",
        Exit.SYSTEM,
    )
    for number, one in enumerate(Git.candidates(environment, directory, SEARCH_PATH)):
        users = one.users_environment
        users |= {name: value for name, value in environment.items() if _IDENTITY.fullmatch(name)}
        runner = Runner(one.program, users, directory)
        try:
            _check_version(runner)
        except UserError as error:
            why = why if number else error
        else:
            return runner
    raise why


def _check_version(runner: Runner) -> None:
    said = runner.run("version").text
    match = re.search(r"(\d+)\.(\d+)", said)
    if match is None or (int(match[1]), int(match[2])) < MINIMUM:
        needed = ".".join(map(str, MINIMUM))
        raise UserError(
            f"{runner.program} is {shown(said)}", f"gitguard fetch needs git {needed}", Exit.SYSTEM
        )
