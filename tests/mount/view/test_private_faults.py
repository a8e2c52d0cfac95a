"""``--git=private`` when a disk is full, and when the daemon is killed while the hook writes."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gitguardfs.linux.syscalls import MNT_DETACH, mount, umount
from tests.support.mounting import LIMIT, area, gitguardfs, until
from tests.support.people import AGENT, as_user
from tests.support.repos import HOST_GID, HOST_UID, MAP, as_host, differences, git, metadata

SIZE = "size=24m"
"""Of the small disks: a repository fits, and the rest is soon filled."""


class Project:
    """A project of the host's, the agent's view of it, and their disks."""

    def __init__(self, here: Path) -> None:
        self.here, self.source, self.store = here, here / "source", here / "store"
        self.host, self.view = self.source / "project", here / "view/project"
        self.bundle = self.host / ".gitguard/agent.bundle"

    def make(self) -> None:
        for path in (self.source, self.host):
            path.mkdir(mode=0o755, exist_ok=True)
            os.chown(path, HOST_UID, HOST_GID)
        git(self.host, "init", "--quiet", "--template=", "--initial-branch=main")
        with as_host():
            (self.host / "file").write_bytes(os.urandom(1 << 20))
        git(self.host, "add", "file")
        git(self.host, "commit", "--quiet", "-m", "first")

    @contextmanager
    def mounted(self, *expected: str) -> Iterator[int]:
        """Show the view; yields the daemon's process id."""
        options = ["--map", MAP, "--git", "private", "--private-store", str(self.store)]
        with gitguardfs(self.source, self.view.parent, *options, expected=expected) as view:
            yield view.process.pid

    def agent(self, *arguments: str, fails: bool = False) -> str:
        """Run git in the view, as the agent; return what it prints."""
        done = self.start(*arguments)
        said = done.communicate(timeout=LIMIT)[0]
        assert (done.returncode != 0) == fails, f"git {arguments}: {done.returncode}\n{said}"
        return said

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        who = ("-c", "user.name=Agent", "-c", "user.email=agent@example.org")
        return subprocess.Popen(
            ["git", *who, *arguments], cwd=self.view, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"},
            user=AGENT, group=AGENT, extra_groups=[],
        )  # fmt: skip

    def change(self, size: int) -> None:
        """Change the file, as the agent."""
        as_user((self.view / "file").write_bytes, os.urandom(size))


@pytest.fixture
def project() -> Iterator[Project]:
    with area() as here:
        yield Project(here)


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    mount("tmpfs", path, "tmpfs", data=f"mode=755,{SIZE}")
    try:
        yield
    finally:
        umount(path, MNT_DETACH)


@contextmanager
def full(path: Path, leaving: int = 0) -> Iterator[None]:
    """Fill a disk, but for some bytes."""
    filling = path / "filling"
    with open(filling, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    os.truncate(filling, filling.stat().st_size - leaving)
    try:
        yield
    finally:
        filling.unlink()


def test_the_guests_disk_is_full(project: Project) -> None:
    project.make()
    before = metadata(project.host)
    with small_disk(project.store), project.mounted("not fetched: .*No space left"):
        with full(project.store):
            assert "No space left on device" in project.agent("status", fails=True)
        assert project.agent("status", "--porcelain") == "", "the next open makes it"
        project.change(2 << 20)
        with full(project.store, leaving=1 << 20):
            assert "No space left" in project.agent("commit", "-am", "mine", fails=True)
            assert "first" in project.agent("log", "--oneline")
        assert not project.bundle.exists()
        project.agent("fsck", "--strict")
        project.agent("commit", "--quiet", "-am", "mine")
        assert project.bundle.exists()
    assert not differences(before, metadata(project.host))


def test_the_hosts_disk_is_full(project: Project) -> None:
    with small_disk(project.source):
        project.make()
        before = metadata(project.host)
        with project.mounted():
            project.change(2 << 20)
            with full(project.source, leaving=1 << 20):
                said = project.agent("commit", "-am", "mine")
                assert "your commits are safe here, and not yet in .gitguard" in said
            assert not list((project.host / ".gitguard").glob("agent.bundle*"))
            project.agent("commit", "--quiet", "--allow-empty", "-m", "again")
        heads = git(project.host, "bundle", "list-heads", str(project.bundle))
        assert "refs/heads/main" in heads
        assert not differences(before, metadata(project.host))


def test_the_daemon_is_killed_while_the_hook_writes(project: Project) -> None:
    project.make()
    before = metadata(project.host)
    with pytest.raises(AssertionError, match="ended with -9"):
        with project.mounted() as pid:
            project.agent("commit", "--quiet", "--allow-empty", "-m", "published")
            published = project.bundle.read_bytes()
            project.change(64 << 20)
            committing = project.start("commit", "-am", "large")
            until(lambda: len(os.listdir(project.bundle.parent)) > 2, "the hook writes")
            os.kill(pid, 9)
            committing.communicate(timeout=LIMIT)
    assert project.bundle.read_bytes() == published, "the old one stays whole"
    assert not differences(before, metadata(project.host))
    with project.mounted():
        project.agent("fsck", "--strict")
        assert "large" in project.agent("log", "-1", "--format=%s")
        project.agent("commit", "--quiet", "--allow-empty", "-m", "next")
        heads = git(project.host, "bundle", "list-heads", str(project.bundle))
        assert project.agent("rev-parse", "HEAD").strip() in heads
    assert [path.name for path in project.bundle.parent.glob("agent*")] == ["agent.bundle"]
    assert not differences(before, metadata(project.host))
