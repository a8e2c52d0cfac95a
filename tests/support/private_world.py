"""A project of the human's, the agent's view of it, and the store between them; all real git.

The view is a copy of the work tree that belongs to the agent, with the virtual ``.git`` as a file.
"""

import atexit
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gitguardfs.names.local_names import LocalNames
from gitguardfs.private.repositories import PrivateRepositories
from tests.support.mounting import area
from tests.support.people import AGENT
from tests.support.repos import HOST_GID, HOST_UID, as_host, copy_project
from tests.support.repos import git as host_git

_OWN = """
import os, sys
os.umask(0)
from gitguardfs.private import store
from gitguardfs.names.local_names import LocalNames
from gitguardfs.private.repositories import PrivateRepositories
from tests.support.private_world import WorkTree
root = os.open(os.path.dirname(sys.argv[1]), os.O_PATH)
mine = PrivateRepositories(store.default(), "dev", root)
place = WorkTree(b"proj", int(sys.argv[2]), int(sys.argv[3]))
mine.prepare(place, os.open(sys.argv[1], os.O_PATH))
print(mine.text(place).decode(), end="")
"""


class WorkTree(NamedTuple):
    path: bytes
    uid: int
    gid: int


@dataclass
class World:
    """The directories: ``share`` of the human's, ``views`` of the agent's, ``store``."""

    area: Path
    name: str = "proj"
    repositories: PrivateRepositories = field(init=False)
    root: int = field(init=False)
    """A descriptor of the share."""

    def __post_init__(self) -> None:
        self.share = self.area / "share"
        self.project = self.share / self.name
        self.store = self.area / "store"
        self.view = self.area / "view"
        self.share.mkdir(mode=0o755, exist_ok=True)
        self.root = os.open(self.share, os.O_PATH)
        weakref.finalize(self, os.close, self.root)
        self.repositories = self.daemon()

    def daemon(self, *local: str) -> PrivateRepositories:
        """What a daemon that has just started uses, with these names of --local."""
        names = LocalNames(local) if local else None
        return PrivateRepositories(str(self.store), "projects", self.root, names)

    @property
    def place(self) -> WorkTree:
        return WorkTree(os.fsencode(self.name), AGENT, AGENT)

    @property
    def directory(self) -> Path:
        """The work tree's directory in the store."""
        text = self.repositories.text(self.place)
        return Path(os.fsdecode(text.removeprefix(b"gitdir: ").strip())).parent

    @property
    def copy(self) -> Path:
        return self.directory / "host.git"

    @property
    def mine(self) -> Path:
        """The agent's repository."""
        return self.directory / "agent"

    def make(self) -> None:
        """Make a repository with a branch, a tag and a remote, as the human."""
        self.project.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.share, *reversed(self.project.relative_to(self.share).parents)):
            os.chown(self.share / path, HOST_UID, HOST_GID)
        copy_project(_template(), self.project)

    def commit(self, message: str, files: dict[str, str]) -> str:
        """Commit files as the human; return the commit."""
        self.write(files)
        host_git(self.project, "add", "--all")
        host_git(self.project, "commit", "--quiet", "--allow-empty", "--message", message)
        return host_git(self.project, "rev-parse", "HEAD").strip()

    def write(self, files: dict[str, str]) -> None:
        with as_host():
            for name, text in files.items():
                (self.project / name).parent.mkdir(parents=True, exist_ok=True)
                (self.project / name).write_text(text)

    def host(self, *arguments: str) -> str:
        """Run git on the host."""
        return host_git(self.project, *arguments)

    def prepare(self, repositories: PrivateRepositories | None = None) -> None:
        """Open the virtual file, as a daemon that has not looked at the host yet."""
        fd = os.open(self.project, os.O_PATH | os.O_DIRECTORY)
        try:
            (repositories or self.daemon()).prepare(self.place, fd)
        finally:
            os.close(fd)

    def prepare_own(self) -> str:
        """Do that as the human, whose store is in the home; return the virtual file's text."""
        home = self.area / "home"
        home.mkdir(exist_ok=True)
        os.chown(home, HOST_UID, HOST_GID)
        done = subprocess.run(
            [sys.executable, "-c", _OWN, self.project, str(HOST_UID), str(HOST_GID)],
            env={**os.environ, "HOME": str(home)}, capture_output=True, text=True,
            user=HOST_UID, group=HOST_GID, extra_groups=[], cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def show(self) -> None:
        """Show the work tree as it is now in the view; what the agent published stays."""
        published = self.view / ".gitguard"
        kept = self.area / "published"
        if published.exists():
            published.rename(kept)
        shutil.rmtree(self.view, ignore_errors=True)
        ignore = shutil.ignore_patterns(".git")
        shutil.copytree(self.project, self.view, symlinks=True, ignore=ignore)
        if kept.exists():
            kept.rename(published)
        (self.view / ".git").write_bytes(self.repositories.text(self.place))
        for directory, names, files in os.walk(self.view):
            for name in (".", *names, *files):
                os.chown(Path(directory) / name, AGENT, AGENT, follow_symlinks=False)

    def agent(
        self, *arguments: str, check: bool = True, directory: Path | None = None, given: str = ""
    ) -> str:
        """Run git as the agent, in the view."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=directory or self.view,
            env={
                "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_AUTHOR_NAME": "Agent", "GIT_AUTHOR_EMAIL": "agent@example.org",
                "GIT_COMMITTER_NAME": "Agent", "GIT_COMMITTER_EMAIL": "agent@example.org",
            },
            input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=60, user=AGENT, group=AGENT, extra_groups=[],
        )  # fmt: skip
        assert not check or done.returncode == 0, f"git {arguments}: {done.stdout}"
        return done.stdout.strip()

    def objects(self) -> set[str]:
        """The objects in the copy of the host's repository."""
        listed = subprocess.run(
            ["git", f"--git-dir={self.copy}", "cat-file", "--batch-all-objects", "--batch-check"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return {line.split()[0] for line in listed.stdout.splitlines()}


@cache
def _template() -> Path:
    """The project that each world copies: git makes it once."""
    place = ExitStack()
    atexit.register(place.close)
    made = World(place.enter_context(area()))
    made.project.mkdir(parents=True)
    os.chown(made.project, HOST_UID, HOST_GID)
    made.host("init", "--quiet", "--template=", "--initial-branch=main")
    made.commit("one", {"a": "1\n", "b": "1\n", "dir/c": "1\n"})
    made.host("branch", "topic")
    made.host("tag", "-m", "first", "v1")
    made.commit("two", {"a": "2\n"})
    return made.project


@contextmanager
def world(name: str = "proj") -> Iterator[World]:
    """A project with three files, two commits, two branches and a tag."""
    with area() as path:
        made = World(path, name)
        made.make()
        yield made


@pytest.fixture
def made_project() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture
def shown_project() -> Iterator[World]:
    """That project, with the agent's repository made and its view shown."""
    with world() as made:
        made.prepare()
        made.show()
        yield made
