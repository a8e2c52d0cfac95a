"""The daemon's descriptors are bounded, do not leak, and a slow call holds up nobody else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.errorfs import CONTENT, Slow, slowfs
from tests.support.mounting import Mounted, area, gitguardfs, until
from tests.support.people import as_user

LIMIT_NOFILE = 1024
DIRECTORIES = 2000
FILES = 15
HELD = 200
DEPTH = 400
SLACK = 10
"""Descriptors by which the daemon may differ after work: worker threads, an event poll."""


@contextmanager
def _tmpfs(path: Path, *options: str) -> Iterator[Path]:
    path.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(["mode=755", *options]), "tmpfs", path], check=True
    )
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def _content(directory: int, file: int) -> bytes:
    return b"%d/%d" % (directory, file)


def _make_files(source: Path) -> None:
    for d in range(DIRECTORIES):
        directory = os.open(_made(source / f"d{d}"), os.O_RDONLY)
        for f in range(FILES):
            file = os.open(f"f{f}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=directory)
            if f % 10 == 0:
                os.write(file, _content(d, f))
            os.close(file)
        os.close(directory)


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _walk(mounted: Mounted) -> int:
    """Look at everything, read every tenth file. Returns the most descriptors of the daemon."""
    most = 0
    for d in range(DIRECTORIES):
        directory = f"{mounted.path}/d{d}"
        names = os.listdir(directory)
        assert len(names) == FILES
        for name in names:
            size = os.lstat(f"{directory}/{name}").st_size
            f = int(name[1:])
            if f % 10 == 0:
                with open(f"{directory}/{name}", "rb") as file:
                    content = file.read()
                assert content == _content(d, f)
                assert size == len(content)
        if d % 20 == 0:
            most = max(most, mounted.descriptors())
    return most


def test_thirty_thousand_files_fit_into_a_thousand_descriptors() -> None:
    with area() as here, _tmpfs(here / "source") as source:
        _make_files(source)
        with gitguardfs(source, here / "view", limit_nofile=LIMIT_NOFILE) as mounted:
            with ExitStack() as held:
                # From every tenth directory, so that they are far apart in the walk.
                files = [
                    held.enter_context(open(mounted.path / f"d{d * 10}/f0", "rb"))
                    for d in range(HELD)
                ]
                most = _walk(mounted)
                assert most < LIMIT_NOFILE
                for d, file in enumerate(files):
                    assert file.read() == _content(d * 10, 0), "an open file has become another one"
            assert _walk(mounted) < LIMIT_NOFILE, "the second time, all of it cached"


def test_work_in_directories_whose_descriptors_were_dropped_hits_the_right_files() -> None:
    """Many more directories than descriptors, all entered before any is worked in."""
    with area() as here, _tmpfs(here / "source") as source:
        count = 400
        for d in range(count):
            (source / f"d{d}").mkdir()
            (source / f"d{d}/old").write_text(f"old {d}")
        with gitguardfs(source, here / "view", limit_nofile=128) as mounted:
            view = mounted.path
            held = [os.open(view / f"d{d}", os.O_RDONLY | os.O_DIRECTORY) for d in range(count)]
            try:
                for d, directory in enumerate(held):
                    with open(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=directory), "w") as f:
                        f.write(f"new {d}")
                    os.rename("old", "renamed", src_dir_fd=directory, dst_dir_fd=directory)
                    os.mkdir("sub", dir_fd=directory)
                    os.symlink("new", "link", dir_fd=directory)
                    os.link("new", "hard", src_dir_fd=directory, dst_dir_fd=directory)
                assert mounted.descriptors() < 128
            finally:
                for directory in held:
                    os.close(directory)
        for d in range(count):
            names = sorted(os.listdir(source / f"d{d}"))
            assert names == ["hard", "link", "new", "renamed", "sub"]
            assert (source / f"d{d}/new").read_text() == f"new {d}"
            assert (source / f"d{d}/renamed").read_text() == f"old {d}"


def test_paths_deeper_than_the_descriptor_limit_are_usable() -> None:
    with area() as here, _tmpfs(here / "source") as source:
        with gitguardfs(source, here / "view", limit_nofile=128) as mounted:
            _descend(mounted.path, _make_level)
            _descend(mounted.path, _check_level)
            # Upwards again: each `..` and each file is a node whose descriptor is long gone.
            _descend(mounted.path, _make_level_again)
            assert mounted.descriptors() < 128
        _descend(source, _check_level)
        _remove_deep(source)


def _descend(top: Path, visit: Callable[[int, int], None]) -> None:
    directory = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for level in range(DEPTH):
        visit(directory, level)
        deeper = os.open("directory", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        os.close(directory)
        directory = deeper
    os.close(directory)


def _make_level(directory: int, level: int) -> None:
    os.mkdir("directory", dir_fd=directory)
    with open(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory), "w") as file:
        file.write(str(level))


def _check_level(directory: int, level: int) -> None:
    with open(os.open("file", os.O_RDONLY, dir_fd=directory)) as file:
        assert file.read() == str(level)
    assert sorted(os.listdir(directory)) == ["directory", "file"]


def _make_level_again(directory: int, level: int) -> None:
    up = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    try:
        if level:
            assert os.stat("directory", dir_fd=up).st_ino == os.fstat(directory).st_ino
    finally:
        os.close(up)
    _check_level(directory, level)


def _remove_deep(source: Path) -> None:
    subprocess.run(["rm", "-rf", source / "directory"], check=True)


def _mixed_work(directory: str) -> None:
    for turn in range(30):
        top = f"{directory}/t{turn}"
        os.mkdir(top)
        for f in range(20):
            with open(f"{top}/f{f}", "w") as file:
                file.write("text")
            os.rename(f"{top}/f{f}", f"{top}/g{f}")
            os.link(f"{top}/g{f}", f"{top}/h{f}")
            os.symlink(f"g{f}", f"{top}/s{f}")
            os.chmod(f"{top}/g{f}", 0o600)
            os.truncate(f"{top}/g{f}", 2)
            with open(f"{top}/s{f}") as file:
                assert file.read() == "te"
        for name in os.listdir(top):
            if name.startswith("g"):
                os.unlink(f"{top}/{name}")
    with ExitStack() as held:
        for turn in range(30):
            file = held.enter_context(open(f"{directory}/unlinked{turn}", "w+"))
            os.unlink(file.name)
            file.write("still here")
    for missing in range(100):
        assert not os.path.exists(f"{directory}/missing{missing}")
    for name in (".Git", ".git/config", ".GIT/x"):
        try:
            os.mkdir(f"{directory}/{name}")
        except (PermissionError, FileNotFoundError):
            continue
        raise AssertionError(f"{name} was made")


def test_descriptors_are_given_back_when_the_kernel_forgets() -> None:
    with area() as here:
        (here / "source").mkdir(mode=0o777)
        (here / "source").chmod(0o777)
        (here / "source/.git").mkdir()
        with gitguardfs(here / "source", here / "view") as mounted:
            os.listdir(mounted.path)
            start = mounted.descriptors()
            as_user(_mixed_work, str(mounted.path))
            assert mounted.descriptors() > start + SLACK, "nothing is cached: nothing is tested"

            def dropped() -> bool:
                # 2: dentries and inodes; the kernel then forgets our nodes.
                Path("/proc/sys/vm/drop_caches").write_text("2")
                return mounted.descriptors() <= start + SLACK

            until(dropped, "the daemon closes what the kernel has forgotten")
            assert len(os.listdir(mounted.path)) == 30, "and goes on"


# ---------------------------------------------------------------------------- Slow sources


@pytest.fixture
def slow() -> Iterator[tuple[Slow, Mounted]]:
    with area() as here:
        with slowfs(here / "source", here / "gate") as source:
            with gitguardfs(source.path, here / "view", "--cache-timeout", "0") as mounted:
                try:
                    yield source, mounted
                finally:
                    source.release()


READ = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
SYNC = "import os, sys; fd = os.open(sys.argv[1], os.O_RDWR); os.fsync(fd); print('synced')"


def _start(program: str, *arguments: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE
    )


def _ordinary_work(directory: str, turn: int) -> None:
    assert "slow" in os.listdir(directory)
    assert os.stat(f"{directory}/slow").st_size == len(CONTENT)
    with open(f"{directory}/quick") as file:
        assert file.read() == "quick\n"
    with open(f"{directory}/new{turn}", "w+") as file:
        file.write("text")
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        assert file.read() == "text"
    os.unlink(f"{directory}/new{turn}")


@pytest.mark.parametrize(("program", "said"), [(READ, CONTENT), (SYNC, b"synced\n")])
def test_a_call_that_waits_holds_up_nobody_else(
    slow: tuple[Slow, Mounted], program: str, said: bytes
) -> None:
    source, mounted = slow
    waiting = [_start(program, mounted.path / "slow") for _ in range(5 if program == READ else 1)]
    until(source.somebody_waits, "a call is waiting")
    for turn in range(20):
        as_user(_ordinary_work, str(mounted.path), turn)
    assert all(each.poll() is None for each in waiting), "nobody waited: nothing is tested"
    source.release()
    for each in waiting:
        assert each.communicate(timeout=30)[0] == said


def test_a_process_that_waits_can_be_killed(slow: tuple[Slow, Mounted]) -> None:
    source, mounted = slow
    reader = _start(READ, mounted.path / "slow")
    until(source.somebody_waits, "a read is waiting")
    reader.kill()
    reader.communicate(timeout=30)
    as_user(_ordinary_work, str(mounted.path), 0)
    source.release()
    with open(mounted.path / "slow", "rb") as file:
        assert file.read() == CONTENT
