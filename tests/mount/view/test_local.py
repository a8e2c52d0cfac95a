"""Directories of the guest's own in a view: ``--local``."""

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gitguardfs.linux.reserved_blocks import AMPLE
from tests.conformance.tools import fallocate, renameat2
from tests.support.mounting import LIMIT, Mounted, area, bound, command, gitguardfs, until
from tests.support.people import AGENT, as_user
from tests.support.repos import (
    HOST_GID,
    HOST_UID,
    MAP,
    as_host,
    differences,
    make_project,
    metadata,
)
from tests.support.repos import git as host_git

RENAME_EXCHANGE = 2
JAVASCRIPT_LIMIT = 2**53


@dataclass
class World:
    """A project of the host's with packages in it, and the agent's view of it."""

    here: Path
    mounted: Mounted

    @property
    def host(self) -> Path:
        return self.here / "host/app"

    @property
    def view(self) -> Path:
        return self.mounted.path / "app"

    @property
    def store(self) -> Path:
        return self.here / "store"

    def own(self) -> set[str]:
        """Return what the store holds, without what stands for directories of the share."""
        (tree,) = self.store.glob("*/tree")
        found = (path.relative_to(tree) for path in tree.rglob("*") if "=" in str(path))
        return {str(path) for path in found}

    def make(self, name: str, text: str = "the guest's\n") -> None:
        """Make a file in the view, and the directories above it, as the agent."""

        def work() -> None:
            path = self.view / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

        as_user(work)


@contextmanager
def made(
    *options: str, local: tuple[str, ...] = ("deps",), seal: str = "--seal"
) -> Iterator[World]:
    """The share is a mount, and sealed, as users have it; the host's side is beside it."""
    with area() as here:
        host = here / "host"
        host.mkdir()
        os.chown(host, HOST_UID, HOST_GID)
        with as_host():
            (host / "app").mkdir()
            (host / "app/package.json").write_text("{}\n")
        given = [f"--local={name}" for name in local]
        given += ["--map", MAP, f"--local-store={here}/store", *options]
        with (
            bound(host, here / "source") as source,
            gitguardfs(source, here / "view", seal, *given) as mounted,
        ):
            yield World(here, mounted)


@pytest.fixture
def world() -> Iterator[World]:
    with made() as ready:
        yield ready


@pytest.fixture
def unsealed() -> Iterator[World]:
    with made(seal="--no-seal") as ready:
        yield ready


def fails(number: int, call: Callable[..., Any], *arguments: Any) -> None:
    """Check that the agent's call fails with ``number``."""
    with pytest.raises(OSError) as raised:
        as_user(call, *arguments)
    assert errno.errorcode[raised.value.errno or 0] == errno.errorcode[number]


def host_makes(path: Path, text: str = "the host's\n") -> None:
    with as_host():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# Whose is what


def test_both_sides_have_their_own_at_one_path(world: World) -> None:
    host_makes(world.host / "node_modules/left/index.js")
    assert "node_modules" not in os.listdir(world.view)
    fails(errno.ENOENT, os.stat, world.view / "node_modules")
    world.make("node_modules/right/index.js")
    assert os.listdir(world.view / "node_modules") == ["right"]
    assert os.listdir(world.host / "node_modules") == ["left"]
    assert sorted(os.listdir(world.view)) == ["node_modules", "package.json"]
    assert world.own() == {
        "+app/=node_modules", "+app/=node_modules/right", "+app/=node_modules/right/index.js"
    }  # fmt: skip
    host_makes(world.host / "node_modules/left/more.js")
    assert os.listdir(world.view / "node_modules") == ["right"]


def test_they_belong_to_the_user_who_makes_them(world: World) -> None:
    """Also where the ids of the share are mapped."""
    world.make("node_modules/a")
    as_user(os.chmod, world.view / "node_modules/a", 0o640)
    for path in (world.view / "node_modules/a", next(world.store.glob("*/tree/+app/*/a"))):
        stat = path.stat()
        assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o777) == (AGENT, AGENT, 0o640)
    assert (world.store.stat().st_mode & 0o777, world.store.stat().st_uid) == (0o700, 0)
    fails(errno.EACCES, os.listdir, world.store)
    other = AGENT + 1
    with pytest.raises(PermissionError):
        as_user((world.view / "node_modules/b").write_text, "", uid=other)


def test_one_tree_for_programs(world: World) -> None:
    """One device, inode numbers that JavaScript tells apart, ``..`` and getcwd of the view."""
    world.make("packages/x/node_modules/dep/lib/index.js")
    (world.view / "packages/x/node_modules/link").symlink_to("../../../package.json")
    assert (world.view / "packages/x/node_modules/link").read_text() == "{}\n"
    paths = [world.mounted.path, *world.mounted.path.rglob("*")]
    stats = [path.lstat() for path in paths]
    assert len({stat.st_dev for stat in stats}) == 1
    assert len({stat.st_ino for stat in stats}) == len(paths)
    assert max(stat.st_ino for stat in stats) < JAVASCRIPT_LIMIT
    deep = world.view / "packages/x/node_modules/dep/lib"
    said = subprocess.run(
        ["sh", "-c", "pwd -P; cd ../../../../..; pwd -P; find . -xdev -name index.js"],
        cwd=deep, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.split() == [
        str(deep), str(world.view), "./packages/x/node_modules/dep/lib/index.js"
    ]  # fmt: skip
    assert os.path.realpath("..", strict=True) is not None
    listed = {entry.name: entry.inode() for entry in os.scandir(deep.parent.parent)}
    assert listed == {path.name: path.lstat().st_ino for path in deep.parent.parent.iterdir()}
    top = {entry.name: entry.inode() for entry in os.scandir(world.view / "packages/x")}
    assert top == {"node_modules": deep.parent.parent.stat().st_ino}


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_what_is_no_directory_is_shown_as_it_is(world: World, kind: str) -> None:
    path = world.host / "node_modules"
    if kind == "file":
        host_makes(path)
    else:
        host_makes(world.host / "elsewhere/x")
        with as_host():
            path.symlink_to("elsewhere")
    assert "node_modules" in os.listdir(world.view)
    fails(errno.EEXIST, os.mkdir, world.view / "node_modules")
    assert (world.view / "node_modules").is_symlink() == (kind == "symlink")
    as_user(os.rename, world.view / "node_modules", world.view / "n")
    assert os.path.lexists(world.host / "n")
    as_user(os.rename, world.view / "n", world.view / "node_modules")
    as_user(os.mkdir, world.view / "share")
    pair = (str(world.view / "node_modules"), str(world.view / "share"))
    fails(errno.EXDEV, renameat2, *pair, RENAME_EXCHANGE)  # it would hide the directory
    as_user(os.unlink, world.view / "node_modules")
    assert not os.path.lexists(path)
    world.make("node_modules/a")
    assert not path.exists()


def test_the_host_puts_a_file_where_a_directory_of_the_guest_is(world: World) -> None:
    world.make("node_modules/a")
    host_makes(world.host / "node_modules")
    until((world.view / "node_modules").is_file, "the file is shown")
    assert os.listdir(world.view).count("node_modules") == 1
    (world.host / "node_modules").unlink()
    until((world.view / "node_modules/a").exists, "the directory is shown again")


def test_a_name_that_a_directory_has(world: World) -> None:
    """One of the guest's own, or one of the host's that is not shown."""
    host_makes(world.host / "node_modules/x")
    for _ in range(2):
        path = world.view / "node_modules"
        fails(errno.EEXIST, os.symlink, "x", path)
        fails(errno.EEXIST, os.mkfifo, path)
        fails(errno.EEXIST, os.link, world.view / "package.json", path)
        fails(errno.EISDIR, os.rename, world.view / "package.json", path)
        fails(errno.EEXIST, os.open, path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        world.make("node_modules/a")
    fails(errno.EISDIR, os.unlink, world.view / "node_modules")
    fails(errno.EEXIST, os.mkdir, world.view / "node_modules")
    assert os.listdir(world.host / "node_modules") == ["x"]


def test_markers_decide_about_ordinary_names(world: World) -> None:
    """``target`` is the guest's beside a Cargo.toml, and ``venv`` unless it is the host's work."""
    world.make("docs/target/a")
    assert (world.host / "docs/target/a").exists()
    host_makes(world.host / "Cargo.toml")
    host_makes(world.host / "target/debug/the-hosts")
    until(lambda: "Cargo.toml" in os.listdir(world.view), "it is listed")
    world.make("target/debug/the-guests")
    assert os.listdir(world.host / "target/debug") == ["the-hosts"]
    assert os.listdir(world.view / "target/debug") == ["the-guests"]
    as_user(os.rename, world.view / "Cargo.toml", world.view / "moved.toml")
    assert os.listdir(world.view / "target/debug") == ["the-guests"], "made, so it stays"

    host_makes(world.host / "venv/source.py")
    until((world.view / "venv/source.py").exists, "an ordinary directory called venv")
    world.make("venv/new.py")
    assert (world.host / "venv/new.py").exists()
    host_makes(world.host / "b/venv/pyvenv.cfg")
    until(lambda: "b" in os.listdir(world.view), "it is there")
    assert os.listdir(world.view / "b") == []
    world.make("c/venv/pyvenv.cfg")
    assert os.listdir(world.host / "c") == []


# Across the border, and moves above it


def test_nothing_crosses_the_border_but_by_a_copy(world: World) -> None:
    world.make("node_modules/a/file")
    world.make("node_modules/b/file")
    world.make("share/file")
    view = world.view
    fails(errno.EXDEV, os.rename, view / "node_modules", view / "other")
    fails(errno.EXDEV, os.rename, view / "node_modules/a", view / "a")
    fails(errno.EXDEV, os.rename, view / "share", view / "node_modules/share")
    fails(errno.EXDEV, os.rename, view / "share", view / ".venv")
    fails(errno.EXDEV, os.rename, view / "share/file", view / "node_modules/file")
    fails(errno.EXDEV, os.link, view / "node_modules/a/file", view / "linked")
    fails(errno.EXDEV, os.link, view / "package.json", view / "node_modules/linked")
    for one, other in (
        ("share", "node_modules"), ("node_modules", "share"), ("node_modules/a", "share"),
        ("share/file", "node_modules/a/file"), ("node_modules/a/file", "share/file"),
    ):  # fmt: skip
        with pytest.raises(OSError) as raised:
            renameat2(str(view / one), str(view / other), RENAME_EXCHANGE)
        assert raised.value.errno == errno.EXDEV, (one, other)
    before = world.own()
    as_user(lambda: shutil.move(view / "node_modules/a", view / "a"))
    assert (world.host / "a/file").read_text() == "the guest's\n"
    as_user(lambda: shutil.move(view / "a", view / "node_modules/a"))
    assert world.own() == before
    assert sorted(os.listdir(world.host)) == ["package.json", "share"]


def test_a_directory_takes_them_along(world: World) -> None:
    view = world.view
    world.make("a/b/node_modules/x")
    world.make("a/file")
    as_user(os.mkdir, view / "empty")
    shell = os.open(view / "a/b/node_modules", os.O_PATH)
    as_user(os.rename, view / "a", view / "empty")
    assert (view / "empty/b/node_modules/x").read_text() == "the guest's\n"
    assert os.stat("x", dir_fd=shell).st_size
    as_user(os.mkdir, view / "deep")
    as_user(os.rename, view / "empty", view / "deep/c")
    assert "+app/+deep/+c/+b/=node_modules/x" in world.own()
    assert os.stat("x", dir_fd=shell).st_size
    os.close(shell)
    world.make("two/b/.venv/y")
    renameat2(str(view / "deep/c"), str(view / "two"), RENAME_EXCHANGE)
    assert {"+app/+deep/+c/+b/=.venv/y", "+app/+two/+b/=node_modules/x"} < world.own()
    as_user(os.rename, view / "package.json", view / "two/package.json")
    assert (view / "two/b/node_modules/x").exists()
    as_user(os.rename, view / "two/b", view / "two/c")
    fails(errno.ENOTEMPTY, os.rename, view / "deep/c", view / "two/c")


def test_a_directory_that_the_host_moves_leaves_them_behind(world: World) -> None:
    world.make("a/node_modules/x")
    world.make("b/c")
    with as_host():
        (world.host / "a").rename(world.host / "moved")
    until(lambda: "moved" in os.listdir(world.view), "the guest sees it")
    assert os.listdir(world.view / "moved") == []
    world.make("moved/node_modules/new")
    as_user(os.rename, world.view / "moved", world.view / "a")
    assert os.listdir(world.view / "a/node_modules") == ["new"]
    assert "+app/+moved/=node_modules/x" in world.own(), "nothing is deleted"


def test_a_directory_that_holds_one_is_not_empty(world: World) -> None:
    world.make("a/node_modules/x")
    fails(errno.ENOTEMPTY, os.rmdir, world.view / "a")
    fails(errno.ENOTEMPTY, os.rmdir, world.view / "a/node_modules")
    as_user(shutil.rmtree, world.view / "a")
    (tree,) = world.store.glob("*/tree")
    assert os.listdir(tree) == []
    assert os.listdir(world.host) == ["package.json"]
    host_makes(world.host / "b/node_modules/x")
    until(lambda: "b" in os.listdir(world.view), "it is there")
    fails(errno.ENOTEMPTY, os.rmdir, world.view / "b")
    assert (world.host / "b/node_modules/x").exists()


# The guard


def test_nothing_guarded_becomes_reachable_by_such_a_name() -> None:
    with made(local=("deps", "*.git", ".git*", "hooks", "refs")) as world:
        make_project(world.here / "host/project")
        project = world.view.parent / "project"
        before = metadata(world.here / "host/project")
        for name in (".git/node_modules", ".git/new", "src/.git", "src/.GIT", "src/.git."):
            fails(errno.EACCES, os.mkdir, project / name)
        for name in (".git", "nested/.git", ".git/hooks", ".git/config"):
            fails(errno.EACCES, os.rename, project / name, project / "node_modules")
        as_user(os.mkdir, project / "node_modules")
        for name in (".git", "nested/.git", ".git/hooks", ".git/config"):
            with pytest.raises(PermissionError):
                renameat2(str(project / name), str(project / "node_modules"), RENAME_EXCHANGE)
            fails(errno.EACCES, os.rename, project / "node_modules", project / name)
        as_user(os.symlink, "../.git/hooks", project / "node_modules/link")
        fails(errno.EACCES, os.listdir, project / "node_modules/link/")
        fails(errno.EACCES, os.link, project / ".git/config", project / "node_modules/config")
        fails(errno.EACCES, (project / "node_modules/../.git/config").read_text)
        fails(errno.EACCES, (project / "node_modules/link/pre-commit").write_text, "#!/bin/sh\n")
        assert not differences(before, metadata(world.here / "host/project"))


def test_rules_for_names_come_first() -> None:
    with made("--deny=node_modules", "--hide=.venv", "--protect=.tox") as world:
        for name in ("node_modules", ".venv", ".tox"):
            fails(errno.EACCES, os.mkdir, world.view / name)
        for name in ("node_modules", ".tox"):
            host_makes(world.host / name / "x")
        until(lambda: ".tox" in os.listdir(world.view), "it is listed")
        fails(errno.EACCES, os.listdir, world.view / "node_modules")
        assert (world.view / ".tox/x").read_text() == "the host's\n"
        world.make(".nox/node_modules/.venv/x")
        assert sorted(os.listdir(world.host)) == [".tox", "node_modules", "package.json"]


def test_a_repository_that_can_be_read_is_whole() -> None:
    with made("--git=readonly", local=("objects", "refs")) as world:
        make_project(world.here / "host/project")
        project = world.view.parent / "project"
        for name in (".git/objects", ".git/refs"):
            there = os.listdir(world.here / "host/project" / name)
            assert there
            assert sorted(as_user(os.listdir, project / name)) == sorted(there)


def test_below_them_no_rule_holds(world: World) -> None:
    """They never reach the host: a package may have a repository, links and names of any kind."""
    package = world.view / "node_modules/package"
    world.make("node_modules/package/file")

    def work() -> None:
        home = {"HOME": "/nonexistent", "PATH": os.environ["PATH"]}
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (
            ("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x"),
            ("clone", "-q", "--bare", ".", "../bare"),
        ):  # fmt: skip
            subprocess.run(["git", *words], cwd=package, env=home, check=True)
        (package / "out").symlink_to("/etc/passwd")
        os.rename(package / ".git/hooks", package / "hooks")
        os.link(package / ".git/HEAD", package / "HEAD")
        (package / "refs").mkdir()

    as_user(work)
    assert os.readlink(package / "out") == "/etc/passwd"


@pytest.mark.parametrize("is_made", [True, False])
def test_descriptors_are_given_back_when_the_kernel_forgets(world: World, is_made: bool) -> None:
    """One directory stays in use, and can still be worked in."""
    packages = [world.view / f"many/p{number}" for number in range(200)]
    world.make("used/node_modules/file")
    for package in packages:
        world.make(f"many/{package.name}/{'src' if is_made else 'node_modules'}/file")
    used = os.open(world.view / "used/node_modules", os.O_RDONLY)
    try:
        forgotten(world.mounted, 40)
        for package in packages:
            if is_made:
                (package / "node_modules").mkdir()
            else:
                assert "node_modules" in os.listdir(package)
        assert world.mounted.descriptors() > 200, "nothing is cached: nothing is tested"
        forgotten(world.mounted, 40)
        world.view.joinpath("used").rename(world.view / "moved")
        assert os.listdir(used) == ["file"]
        os.mkdir("more", dir_fd=used)
    finally:
        os.close(used)
    assert sorted(os.listdir(world.view / "moved/node_modules")) == ["file", "more"]


def forgotten(mounted: Mounted, limit: int) -> None:
    """Let the kernel forget what nobody uses; wait until ``limit`` descriptors are left."""

    def dropped() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("2")
        return mounted.descriptors() <= limit

    until(dropped, "the daemon closes what the kernel has forgotten")


def test_without_a_guard() -> None:
    with made("--git=off", local=("deps", ".git*")) as world:
        world.make(".git/config")
        world.make("node_modules/.git/config")
        assert sorted(os.listdir(world.host)) == [".git", "package.json"]


def test_tracked_files_below_such_a_name_are_not_taken_for_deleted() -> None:
    """A commit of the agent's must not delete them: the view does not show them."""
    with area() as store, made("--git=private", f"--private-store={store}/git") as world:
        host = world.here / "host/project"
        hidden = ["node_modules/a/index.js", "a [1]/.venv/x", "rust/target/x"]
        with as_host():
            for name in (*hidden, "rust/Cargo.toml", "target/shown"):
                (host / name).parent.mkdir(parents=True, exist_ok=True)
                (host / name).write_text("1\n")
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        for words in (("init", "-b", "main"), ("add", "."), (*who, "commit", "--message", "x")):
            host_git(host, *words)
        project = world.view.parent / "project"

        def git(*words: str) -> str:
            done = as_user(
                partial(subprocess.run, cwd=project, text=True, capture_output=True),
                ["git", *who, *words],
            )
            assert done.returncode == 0, done.stderr
            return str(done.stdout)

        assert git("status", "--porcelain") == ""
        as_user((project / "target/shown").write_text, "2\n")
        as_user(os.mkdir, project / "node_modules")
        as_user((project / "node_modules/mine").write_text, "3\n")
        as_user(os.mkdir, project / "node_modules/a")
        as_user((project / "node_modules/a/index.js").write_text, "the guest's\n")
        git("add", "--update")
        git("commit", "--quiet", "--message", "agent")
        assert git("diff", "--name-only", "HEAD~").split() == ["target/shown"]
        git("reset", "--quiet", "--hard", "host/main")
        with as_host():
            (host / "node_modules/a/index.js").write_text("4\n")
        host_git(host, *who, "commit", "--all", "--message", "y")
        until(lambda: git("sync") and git("log", "-1", "--format=%s") == "y\n", "the fetch")
        assert git("status", "--porcelain") == "?? node_modules/mine\n"
        git("checkout", "--quiet", "HEAD~")
        git("checkout", "--quiet", "main")
        assert as_user((project / "node_modules/a/index.js").read_text) == "the guest's\n"
        as_user(shutil.rmtree, project / "node_modules")
        assert git("status", "--porcelain") == ""
        git("sparse-checkout", "disable")
        assert [(project / name).read_text() for name in hidden] == ["4\n", "1\n", "1\n"]
        assert git("status", "--porcelain") == ""


# Faults


def test_a_full_disk_of_the_guest_leaves_the_share_alone() -> None:
    with area() as disk:
        subprocess.run(["mount", "-n", "-t", "tmpfs", "-o", "size=1M,nr_inodes=64", "t", disk])
        try:
            with made(f"--local-store={disk}/store") as world:
                world.make("node_modules/x")
                fails(errno.ENOSPC, (world.view / "node_modules/x").write_bytes, bytes(2 << 20))
                as_user((world.view / "file").write_bytes, bytes(2 << 20))
                as_user(os.unlink, world.view / "node_modules/x")
                for number in range(100):
                    try:
                        world.make(f"d{number}/node_modules/x")
                    except OSError as error:
                        assert error.errno == errno.ENOSPC
                        break
                else:
                    pytest.fail("the disk was not full")
                as_user(shutil.rmtree, world.view / "d0")
                world.make("again/node_modules/x")
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


def grow(directory: Path, kind: str) -> None:
    """Let something take blocks of the disk until it is full. Raises OSError."""
    for path in (directory / f"{number:04}" for number in range(4096)):
        if kind == "write":
            path.write_bytes(bytes(1 << 16))
        elif kind == "mkdir":
            path.mkdir()
        elif kind == "symlink":
            path.symlink_to("x" * 1000)
        elif kind == "xattr":
            path.touch()
            os.setxattr(path, "user.text", os.fsencode(path.name * 150))
        elif kind == "link":
            os.link(directory / "file", path.with_name(path.name * 60))
        elif kind == "fallocate":
            with path.open("wb") as file:
                fallocate(file.fileno(), 0, 0, 1 << 16)
        elif kind == "copy":
            with (directory / "fill").open("rb") as source, path.open("wb") as file:
                assert os.copy_file_range(source.fileno(), file.fileno(), 1 << 16)
        elif kind == "rename":
            os.rename(path, path.with_name(path.name * 60))


def touch_many(directory: Path, count: int) -> None:
    for number in range(count):
        (directory / f"{number:04}").touch()


KINDS = ["write", "fallocate", "copy", "mkdir", "symlink", "xattr", "link", "rename"]


@contextmanager
def reserving(mib: int) -> Iterator[tuple[Path, float]]:
    """A disk that reserves a fifth for root: at least so many of its blocks have to stay free."""
    with area() as here:
        image, disk = here / "image", here / "disk"
        image.touch()
        os.truncate(image, mib << 20)
        make = ["mkfs.ext4", "-q", "-m", "20", "-b", "1024", "-N", "8192", "-I", "256", image]
        subprocess.run(make, check=True)
        disk.mkdir()
        subprocess.run(["mount", "-n", "-o", "loop", image, disk], check=True)
        try:
            found = os.statvfs(disk)
            yield disk, (found.f_bfree - found.f_bavail) * 0.95
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_disk_reserves_for_root_stays_for_root(kind: str) -> None:
    with (
        reserving(16) as (disk, reserved),
        made(f"--local-store={disk}/store", "--xattr=rw") as world,
    ):
        world.make("node_modules/file")
        if kind == "rename":
            as_user(touch_many, world.view / "node_modules", 2000)
        room = os.statvfs(disk).f_bavail * 1024
        world.make("node_modules/fill", "x" * (room - 100_000))
        fails(errno.ENOSPC, grow, world.view / "node_modules", kind)
        assert os.statvfs(disk).f_bfree > reserved
        owners = {path.lstat().st_uid for path in (world.view / "node_modules").iterdir()}
        assert owners == {AGENT}
        if kind == "write":
            (world.view / "node_modules/0000").unlink()
            world.make("d/node_modules/x")
            (made_now,) = disk.glob("store/*/tree/+app/+d")
            assert made_now.stat().st_uid == 0


def test_one_call_takes_none_of_that_either() -> None:
    """There is ample space before, and fallocate(2) takes more than that."""
    with reserving(3000) as (disk, reserved), made(f"--local-store={disk}/store") as world:
        world.make("node_modules/file")
        room = os.statvfs(disk).f_bavail * 1024
        assert room > AMPLE
        with (world.view / "node_modules/file").open("wb") as file:
            fails(errno.ENOSPC, fallocate, file.fileno(), 0, 0, room + (100 << 20))
        assert os.statvfs(disk).f_bfree > reserved


def test_a_rename_that_would_leave_them_behind_fails() -> None:
    with area() as disk:
        subprocess.run(["mount", "-n", "-t", "tmpfs", "-o", "size=1M,nr_inodes=24", "t", disk])
        try:
            with made(f"--local-store={disk}/store") as world:
                world.make("a/node_modules/x")
                world.make("b/c/d/file")
                for number in range(24):
                    with suppress(OSError):
                        world.make(f"node_modules/{number}")
                fails(errno.ENOSPC, os.rename, world.view / "a", world.view / "b/c/d/e")
                assert (world.view / "a/node_modules/x").exists()
                as_user(shutil.rmtree, world.view / "node_modules")
                longest = world.view / ("n" * 255)
                fails(errno.ENAMETOOLONG, os.rename, world.view / "a", longest)
                as_user(os.mkdir, longest)
                with pytest.raises(OSError) as raised:
                    renameat2(str(longest), str(world.view / "a"), RENAME_EXCHANGE)
                assert raised.value.errno == errno.ENAMETOOLONG
                as_user(os.rename, world.view / "a", world.view / "b/c/d/e")
                assert (world.view / "b/c/d/e/node_modules/x").exists()
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("mode", ["deny", "off"])
def test_a_shell_in_a_directory_that_the_host_has_moved(mode: str) -> None:
    """What the guest has at the former place is another directory's by now."""
    with made(f"--git={mode}") as world:
        world.make("a/x/node_modules/of-the-new-a")
        shell = os.open(world.view / "a", os.O_PATH)
        with as_host():
            (world.host / "a").rename(world.host / "b")
            (world.host / "a/x").mkdir(parents=True)
        os.rename("x", "y", src_dir_fd=shell, dst_dir_fd=shell)
        os.mkdir("node_modules", dir_fd=shell)
        os.close(shell)
        until((world.view / "a/x/node_modules/of-the-new-a").exists, "it is where it was")
        assert "+app/+b/=node_modules" in world.own()


def test_a_store_that_cannot_be_made_is_told() -> None:
    with area() as here:
        (here / "file").touch()
        for name in ("source", "view"):
            (here / name).mkdir()
        refused = subprocess.run(
            command(here / "source", here / "view", "--local=deps", f"--local-store={here}/file/x"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert refused.returncode == 2
        assert "cannot keep directories in" in refused.stderr
        assert "choose another --local-store" in refused.stderr
        assert "Traceback" not in refused.stderr
        deep = here / "source" / ("d" * 120) / ("\u0436" * 60)
        deep.mkdir(parents=True)
        options = ("--local=deps", f"--local-store={here}/store")
        with gitguardfs(deep, here / "view", *options) as mounted:
            (mounted.path / "node_modules").mkdir()
        (file,) = (here / "store").glob("*/view")
        assert file.stat().st_mode & 0o777 == 0o600


def test_after_a_crash_they_are_there(unsealed: World) -> None:
    unsealed.make("node_modules/x")
    unsealed.mounted.process.send_signal(signal.SIGKILL)
    unsealed.mounted.process.wait()
    subprocess.run(["umount", "-i", "-l", unsealed.mounted.path], check=True)
    unsealed.mounted.process.returncode = 0
    options = ["--local=deps", "--map", MAP, f"--local-store={unsealed.store}"]
    with gitguardfs(unsealed.here / "source", unsealed.here / "again", *options) as again:
        assert (again.path / "app/node_modules/x").read_text() == "the guest's\n"
        assert os.listdir(again.path / "app/node_modules") == ["x"]
        refused = subprocess.run(
            command(unsealed.here / "source", unsealed.mounted.path, "-f", *options),
            capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip
        assert refused.returncode == 2
        assert "another view" in refused.stderr
        assert "--local-store" in refused.stderr


def test_only_root_has_them() -> None:
    with area() as here:
        refused = subprocess.run(
            command(here, here, "--local", "deps"),
            capture_output=True, text=True, check=False, user=AGENT, group=AGENT, extra_groups=[],
        )  # fmt: skip
        assert refused.returncode == 1
        assert "--local needs root" in refused.stderr


# Random changes, beside a model


NAMES = st.lists(st.sampled_from(["a", "b", "node_modules", ".venv"]), min_size=1, max_size=4)
CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["mkdir", "rmdir", "file", "symlink", "unlink"]), NAMES, st.none()
        ),
        st.tuples(st.sampled_from(["rename", "link", "exchange"]), NAMES, NAMES),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def field() -> Iterator[World]:
    with made("--cache-timeout=0", local=("node_modules", ".venv")) as ready:
        yield ready


def border(place: Path, is_directory: bool) -> bool:
    """Return whether the object that is, or would be, at a place is the guest's own."""
    above = place.parts[:-1]
    own = ("node_modules", ".venv")
    return any(name in own for name in above) or (is_directory and place.name in own)


def changed(root: Path, kind: str, one: Path, other: Path | None) -> str:
    """Make a change below ``root``; return the name of its error."""
    try:
        match kind:
            case "mkdir":
                (root / one).mkdir()
            case "rmdir":
                (root / one).rmdir()
            case "file":
                os.close(os.open(root / one, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            case "symlink":
                (root / one).symlink_to("nowhere")
            case "unlink":
                (root / one).unlink()
            case "rename" if other:
                (root / one).rename(root / other)
            case "link" if other:
                os.link(root / one, root / other, follow_symlinks=False)
            case "exchange" if other:
                renameat2(str(root / one), str(root / other), RENAME_EXCHANGE)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def tree_of(root: Path) -> set[tuple[str, bool, int]]:
    return {
        (str(path.relative_to(root)), path.is_dir(), path.is_dir() or path.lstat().st_nlink)
        for path in root.rglob("*")
    }


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=CHANGES)
def test_a_view_of_two_trees_is_one_tree_but_for_the_border(
    field: World, changes: list[tuple[str, list[str], list[str] | None]]
) -> None:
    """The model is an ordinary directory, in which moves across the border are left out."""
    view, model = field.view / "view", field.here / "model"
    view.mkdir()
    model.mkdir()
    try:
        for kind, names, others in changes:
            one, other = Path(*names), None if others is None else Path(*others)
            if other is not None and os.path.lexists(model / one):
                first = (model / one).is_dir()
                crosses = border(one, first) != border(other, first)
                if kind == "exchange" and os.path.lexists(model / other):
                    second = (model / other).is_dir()
                    crosses |= border(other, second) != border(one, second)
                    crosses |= border(one, first) != border(other, second)
                if crosses:
                    assert changed(view, kind, one, other), (kind, one, other)
                    assert tree_of(view) == tree_of(model)
                    continue
            expected = changed(model, kind, one, other)
            assert changed(view, kind, one, other) == expected, (kind, one, other)
            assert tree_of(view) == tree_of(model)
        assert not any(
            border(path.relative_to(field.host / "view"), path.is_dir())
            for path in (field.host / "view").rglob("*")
        )
    finally:
        shutil.rmtree(view)
        shutil.rmtree(model)
    (tree,) = field.store.glob("*/tree")
    assert os.listdir(tree) == []
