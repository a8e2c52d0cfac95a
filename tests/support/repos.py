"""Real git repositories for the tests: a project with every kind of metadata in it."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

HOST_UID = 501
HOST_GID = 20
"""The owner of a project on the host (macOS gives its first user these two)."""

MAP = "501/1000:@20/@1000"
"""The host's owner seen as the agent, in the spelling of bindfs and of gitguardfs."""

SECRET = "ghp-do-not-let-the-agent-read-this"
"""Part of the remote's URL in .git/config, and of every other text that must not be read."""

PAYLOAD = ("config", "config.worktree", "commondir", "hooks")
"""What git reads in a repository and then may run."""

REPOSITORIES = (".", "nested", "linked", "split")
"""Directories of the project in which git on the host has to keep working."""


def git_environment() -> dict[str, str]:
    """Return an environment for git with no configuration but the repository's."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.logAllRefUpdates",
        "GIT_CONFIG_VALUE_0": "false",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "Host",
        "GIT_AUTHOR_EMAIL": "host@example.org",
        "GIT_COMMITTER_NAME": "Host",
        "GIT_COMMITTER_EMAIL": "host@example.org",
    }


def git(directory: Path, *arguments: str) -> str:
    """Run git on the host as the owner of the files."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env=git_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        user=HOST_UID,
        group=HOST_GID,
        extra_groups=[],
    )
    if done.returncode != 0:
        raise AssertionError(f"git {arguments} in {directory}: {done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def as_host() -> Iterator[None]:
    """Run the body with the host owner's effective ids, so that files belong to the owner."""
    os.setegid(HOST_GID)
    os.seteuid(HOST_UID)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def make_project(path: Path) -> None:
    """Make a repository with each form of metadata that a checkout can hold.

    ======================  =========================================================
    ``.git``                the project's own, with a secret in its config
    ``nested``              a repository of its own inside the project
    ``linked/.git``         a file: a worktree of the project, by a relative path
    ``split/.git``          a file ``gitdir: ../store``; ``store`` is the repository
    ``hollow/.git``         an empty directory
    ``symlinked/.git``      a symlink whose text is a secret
    ``module``              an empty directory, a gitlink in the project's index
    ``attic/bare.git``      a bare repository
    ``deep/pkg/inner``      a repository further down
    ``half``, ``begun``     two parts of a bare repository each, with hooks and a config
    ======================  =========================================================
    """
    path.mkdir(mode=0o755)
    os.chown(path, HOST_UID, HOST_GID)
    init = ("init", "--quiet", "--template=", "--initial-branch=main")
    git(path, *init)
    git(path, "config", "remote.origin.url", f"https://user:{SECRET}@example.org/project")
    with as_host():
        for name, text in {
            "README.md": "# Project\n",
            "src/main.py": "print('hello')\n",
            ".gitignore": "/*\n!/README.md\n!/.gitignore\n!/src/\n!/module\n",
        }.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
        for name in ("hollow/.git", "symlinked", "module", "attic", "deep/pkg"):
            (path / name).mkdir(parents=True)
        (path / "symlinked/.git").symlink_to(f"/srv/{SECRET}/repository")
    git(path, "add", "README.md", "src", ".gitignore")
    git(path, "commit", "--quiet", "--message=first")
    commit = git(path, "rev-parse", "HEAD").strip()
    git(path, "update-index", "--add", "--cacheinfo", f"160000,{commit},module")
    git(path, "commit", "--quiet", "--message=module")
    git(path, *init, "deep/pkg/inner")
    _make_halves(path)
    git(path, *init, "nested")
    with as_host():
        (path / "nested/file").write_text("inside\n")
    git(path / "nested", "add", "file")
    git(path / "nested", "commit", "--quiet", "--message=first")
    git(path, *init, "--separate-git-dir=store", "split")
    git(path, *init, "--bare", "attic/bare.git")
    git(path / "attic/bare.git", "config", "remote.origin.url", f"https://{SECRET}@example.org/")
    git(path, "worktree", "add", "--quiet", "--detach", "linked")
    for name in (".", "nested"):
        git(path / name, "repack", "-adq")  # few files: a project is copied for every attack
    with as_host():
        # Relative, so that a copy of the project does not point back at the original.
        (path / "split/.git").write_text("gitdir: ../store\n")
        (path / "linked/.git").write_text("gitdir: ../.git/worktrees/linked\n")
        (path / ".git/worktrees/linked/gitdir").write_text("../../../linked/.git\n")
    for attribute in (f"user.{SECRET}", "user.known"):
        os.setxattr(path / ".git", attribute, b"value")


def _make_halves(path: Path) -> None:
    """Make directories that the host is about to complete, as ``cp -r`` and ``tar`` do."""
    for name in ("half", "begun"):
        git(path, "init", "--quiet", "--template=", "--bare", name)
        with as_host():
            (path / name / "hooks/old").mkdir(parents=True)
            for file in ("hooks/post-update", "hooks/pre-push.sample", "config.worktree"):
                (path / name / file).write_text("#!/bin/sh\n")
    (path / "half/HEAD").unlink()
    shutil.rmtree(path / "begun/refs")


def copy_project(original: Path, copy: Path) -> Path:
    """Copy a project with its owners, times and extended attributes."""
    subprocess.run(["cp", "-a", "--", original, copy], check=True)
    return copy


def check_git_works(project: Path) -> None:
    """git status and git fsck work in the project's repositories, on the host."""
    for name in REPOSITORIES:
        git(project / name, "status", "--short")
    git(project, "fsck", "--strict")
    git(project / "attic/bare.git", "fsck", "--strict")


@dataclass(frozen=True)
class Recorded:
    """The state of an object of the source; two are equal if nothing was changed."""

    mode: int
    uid: int
    gid: int
    links: int
    inode: int
    modified: int
    changed: int
    content: bytes | tuple[str, ...]


def metadata(project: Path) -> dict[str, Recorded]:
    """Record everything git would take for a repository's metadata, below ``project``.

    That is each ``.git`` and each directory that holds HEAD beside refs or commondir,
    with all below it; where there are two parts of a repository, what git reads beside them.
    An object that appears, disappears or changes makes a difference.
    """
    found: dict[str, Recorded] = {}

    def walk(directory: Path, inside: bool) -> None:
        names = sorted(os.listdir(directory))
        inside = inside or (
            "HEAD" in names
            and not stat.S_ISDIR(os.lstat(directory / "HEAD").st_mode)
            and ("refs" in names or "commondir" in names)
        )
        if inside:
            record(directory)
        is_half = len({"HEAD", "refs", "objects"} & {*names}) > 1
        for name in names:
            path = directory / name
            guarded = inside or name == ".git" or (is_half and name in PAYLOAD)
            if guarded:
                record(path)
            if path.is_dir() and not path.is_symlink():
                walk(path, guarded)

    def record(path: Path) -> None:
        state = os.lstat(path)
        content: bytes | tuple[str, ...] = b""
        if stat.S_ISLNK(state.st_mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISDIR(state.st_mode):
            content = tuple(sorted(os.listdir(path)))
        elif stat.S_ISREG(state.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(project))] = Recorded(
            state.st_mode,
            state.st_uid,
            state.st_gid,
            state.st_nlink,
            state.st_ino,
            state.st_mtime_ns,
            state.st_ctime_ns,
            content,
        )

    walk(project, inside=False)
    return found


def access(project: Path) -> dict[str, tuple[int, int, int]]:
    """Record mode, user and group of each working tree: git refuses those of other users."""
    found = {name: os.stat(project / name) for name in REPOSITORIES}
    return {name: (state.st_mode, state.st_uid, state.st_gid) for name, state in found.items()}


def differences(before: dict[str, Recorded], after: dict[str, Recorded]) -> list[str]:
    """Name what differs between two records of ``metadata``, one line each."""
    lines = [f"gone: {name}" for name in before.keys() - after.keys()]
    lines += [f"new: {name}" for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            old, new = asdict(before[name]), asdict(after[name])
            lines += [f"changed: {name}: {field}" for field in old if old[field] != new[field]]
    return sorted(lines)
