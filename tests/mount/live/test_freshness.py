"""The kernel caches for long while all changes are told, and what it shows is fresh nonetheless."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.fs.files import RACY_NS
from tests.mount.live.test_events import LARGE, append, tree
from tests.support.held import held
from tests.support.live import BEAT, BEGIN, WHOLE, Host, changes_in, kept, kept_files, tell
from tests.support.mounting import (
    LIMIT,
    Mounted,
    area,
    command,
    daemons,
    empty_view,
    gitguardfs,
    unmount,
    until,
)

LOOKS = {"LOOKUP", "GETATTR", "STATX", "READDIRPLUS", "READDIR"}
NAMES = ("file", "large", "removed", "absent", "sub", "sub/inner", "sub/absent", "moved")


def make_source(source: Path) -> None:
    (source / "sub").mkdir(parents=True)
    (source / "sub/inner").write_text("inner\n")
    (source / "file").write_text("one\n")
    (source / "large").write_bytes(b"a" * LARGE)
    (source / "removed").touch()


def look(top: Path) -> dict[str, object]:
    """Return what programs see of names, absent ones too, of sizes and of listings."""
    found: dict[str, object] = {}
    for name in NAMES:
        try:
            st = (top / name).lstat()
        except FileNotFoundError:
            found[name] = None
        else:
            found[name] = st.st_mode, st.st_size * (name != "sub"), st.st_mtime_ns
    for directory in ("", "sub"):
        found[f"{directory}/"] = sorted(os.listdir(top / directory))
    return found


def change(source: Path) -> None:
    append(source / "file")
    append(source / "large")
    (source / "removed").unlink()
    (source / "absent").write_text("new")
    (source / "sub/absent").mkdir()
    (source / "sub/inner").rename(source / "moved")
    (source / "sub").chmod(0o700)


def is_asked_for_nothing(mounted: Mounted) -> bool:
    """Check that the kernel asks for nothing after ten seconds. False if beats were late."""
    look(mounted.path)
    since = kept_files(mounted.path)
    time.sleep(1.1)  # what was cached for a second is forgotten
    look(mounted.path)
    before = len(mounted.requests())
    time.sleep(10)
    assert look(mounted.path) == look(mounted.source)
    news = set(mounted.requests()[before:])
    was_kept = bool(since) and kept_files(mounted.path) == since
    assert not (was_kept and news & LOOKS)
    return was_kept


LINES: list[dict[str, object]] = [
    {"changed": "file"}, {"changed": "large"}, {"gone": "removed"}, {"made": "absent"},
    {"made": "sub/absent"}, {"moved": ["sub/inner", "moved"]}, {"attributes": "sub"},
]  # fmt: skip


def test_what_is_cached_is_asked_for_no_more_and_fresh_after_a_line() -> None:
    with empty_view("-d", "--session=kernel") as mounted:
        make_source(mounted.source)
        host = Host(mounted.process.pid)
        with kept(mounted.path, host), (mounted.path / "large").open("rb") as large:
            large.read()
            until(lambda: is_asked_for_nothing(mounted), "the beats are steady for so long", 120)
            change(mounted.source)
            host.tell(*LINES)
            until(lambda: look(mounted.path) == look(mounted.source), "all is fresh")
            assert os.fstat(large.fileno()).st_size == LARGE + 4
            assert os.pread(large.fileno(), 9, LARGE) == b"two\n"
            assert tree(mounted.path) == tree(mounted.source)
        host.close()


def test_a_name_that_becomes_guarded_is_guarded_at_once() -> None:
    """Names that a rule is about are cached as ever: no line is needed for them."""
    with empty_view("--session=kernel") as mounted:
        make_source(mounted.source)
        host = Host(mounted.process.pid)
        with kept(mounted.path, host):
            look(mounted.path)
            assert not (mounted.path / "sub/.git").exists()
            (mounted.source / "sub/.git").mkdir()
            (mounted.source / "sub/.git/config").write_text("text")
            until((mounted.path / "sub/.git").exists, "it is there")
            with pytest.raises(PermissionError):
                (mounted.path / "sub/.git/config").read_text()
        host.close()


def _kill(bridge: subprocess.Popen[bytes]) -> None:
    bridge.kill()


def _stop(bridge: subprocess.Popen[bytes]) -> None:
    bridge.send_signal(signal.SIGSTOP)


def _be_silent(bridge: subprocess.Popen[bytes]) -> None:
    pass  # the beats end


ENDS = {"killed": _kill, "stopped": _stop, "silent": _be_silent}


@pytest.fixture
def mounted() -> Iterator[Mounted]:
    with empty_view("--session=kernel", expected=(r"WARNING .*has ended",)) as mounted:
        make_source(mounted.source)
        yield mounted


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_stale_after_the_stream_has_failed(mounted: Mounted, end: str) -> None:
    with changes_in(mounted.path) as bridge:
        assert bridge.stdin is not None
        tell(bridge.stdin, BEGIN)
        with kept(mounted.path, bridge.stdin) as beats:
            assert look(mounted.path) == look(mounted.source)
            beats.stop()
            ENDS[end](bridge)
            change(mounted.source)
            until(lambda: look(mounted.path) == look(mounted.source), "nothing is stale")
            until(lambda: not kept_files(mounted.path), "nothing is kept for long")
            append(mounted.source / "file")
            until(lambda: look(mounted.path) == look(mounted.source), "nothing becomes stale")
            assert tree(mounted.path) == tree(mounted.source)


def test_nothing_is_stale_after_the_daemon_was_killed() -> None:
    with area() as here:
        source, view = here / "source", here / "view"
        make_source(source)
        view.mkdir()
        subprocess.run(command(source, view, "--session=kernel"), timeout=LIMIT, check=True)
        try:
            former = daemons(here)
            host = Host(former[1])
            with kept(view, host), (view / "large").open("rb") as large:
                assert look(view) == look(source)
                large.read(1)
                os.kill(former[1], signal.SIGKILL)
                change(source)
                until(lambda: look(view) == look(source), "nothing is stale")
                until(lambda: not kept_files(view), "nothing is kept for long")
                assert tree(view) == tree(source)
                assert os.fstat(large.fileno()).st_size == LARGE + 4
            host.close()
            host = Host(until(lambda: daemons(here)[1:], "the next daemon")[0])
            with kept(view, host):  # and the next one keeps
                look(view)
            host.close()
        finally:
            unmount(view)
            until(lambda: not daemons(here), "they end")


def test_a_stream_that_is_behind_or_not_whole_keeps_nothing(mounted: Mounted) -> None:
    host = Host(mounted.process.pid)
    end = time.monotonic() + 2
    host.tell(WHOLE)
    while time.monotonic() < end:  # beats that come all at once, as after a pause
        host.tell({"beat": 1})
        time.sleep(0.1)
        assert not kept_files(mounted.path)
    with kept(mounted.path, host):
        look(mounted.path)
        host.tell({"in": "source", "whole": False, "why": "a limit"})
        until(lambda: not kept_files(mounted.path), "it is not whole")
        change(mounted.source)
        until(lambda: look(mounted.path) == look(mounted.source), "nothing is stale")
    host.close()


def test_what_is_found_again_is_whole(mounted: Mounted) -> None:
    """Also a directory that the kernel has seen deleted, since nobody said that it was moved."""
    host = Host(mounted.process.pid)
    with kept(mounted.path, host):
        look(mounted.path)
        inside = os.open(mounted.path / "sub", os.O_RDONLY | os.O_DIRECTORY)  # it is not forgotten
        os.fsync(inside)  # which has no handle of the daemon's
        (mounted.source / "sub").rename(mounted.source / "moved")
        host.tell({"gone": "sub"})
        until(lambda: not (mounted.path / "sub").exists(), "it is gone")
        host.tell({"made": "moved"})
        until(lambda: tree(mounted.path) == tree(mounted.source), "it is found")
        (mounted.source / "moved/absent").write_text("new")
        host.tell({"made": "moved/absent"})
        until(lambda: tree(mounted.path) == tree(mounted.source), "and followed")
        os.close(inside)
    host.close()


def test_a_name_that_was_there_for_a_moment_is_gone(mounted: Mounted) -> None:
    host = Host(mounted.process.pid)
    with kept(mounted.path, host):
        (mounted.source / "brief").touch()
        assert (mounted.path / "brief").exists()
        (mounted.source / "brief").unlink()
        host.tell({"brief": "brief"})
        until(lambda: not (mounted.path / "brief").exists(), "it is gone")
    host.close()


def test_content_that_changes_before_a_line_on_attributes() -> None:
    """The kernel has the file's pages, since it does not read the source's file by itself."""
    with empty_view("-o", "noatime", "--session=kernel") as mounted:
        make_source(mounted.source)
        host = Host(mounted.process.pid)
        with kept(mounted.path, host):
            assert (mounted.path / "file").read_text() == "one\n"
            (mounted.source / "file").chmod(0o600)
            (mounted.source / "file").write_text("two\n")
            (mounted.source / "absent").touch()
            host.tell({"attributes": "file"}, {"changed": "file"}, {"made": "absent"})
            until((mounted.path / "absent").exists, "all is served")
            time.sleep(2 * RACY_NS / 1e9)  # from then on the kernel keeps pages
            until(lambda: (mounted.path / "file").read_text() == "two\n", "it is read again")
        host.close()


def test_names_in_a_directory_that_a_program_holds_are_looked_up_after_it(mounted: Mounted) -> None:
    """The kernel needs the directory's lock to forget them."""
    names = [f"absent-{number}" for number in range(20)]
    host = Host(mounted.process.pid)
    with kept(mounted.path, host):
        for name in names:
            assert not (mounted.path / "sub" / name).exists()
        with held(mounted.path / "sub"):
            host.close()
            time.sleep(2)  # the process that waits is given up
    until(lambda: not kept_files(mounted.path), "all is forgotten")
    for name in names:
        (mounted.source / "sub" / name).touch()
    time.sleep(1.1)  # what is cached as ever
    assert all((mounted.path / "sub" / name).exists() for name in names)


def test_a_new_stream_s_beginning_ends_what_the_last_one_said(mounted: Mounted) -> None:
    host = Host(mounted.process.pid)
    with kept(mounted.path, host):
        host.tell(BEGIN)
        until(lambda: not kept_files(mounted.path), "not all is told")
        time.sleep(2 * BEAT)
        assert not kept_files(mounted.path), "beats say nothing of that"
    host.close()


def test_names_that_could_be_the_guest_s_own() -> None:
    """What is below them is told if they are not; of themselves nobody tells."""
    with area() as here:
        source, view = here / "source", here / "view"
        (source / "target").mkdir(parents=True)
        (source / "target/file").write_text("x")
        (source / "node_modules").symlink_to("target")
        options = ("--local=deps", f"--local-store={here}/store", "--session=kernel")
        with gitguardfs(source, view, *options) as mounted:
            host = Host(mounted.process.pid)
            with kept(view, host):
                assert (view / "target/file").stat().st_size == 1, "no Cargo.toml is beside it"
                assert not (view / "target/new").exists()
                assert (view / "node_modules").is_symlink()
                assert not (view / "target/target").exists()
                (source / "target/file").write_text("more")
                (source / "target/new").touch()
                (source / "node_modules").unlink()
                (source / "target/target").touch()
                host.tell({"changed": "target/file"}, {"made": "target/new"}, {"listing": ""})
                until(lambda: (view / "target/file").stat().st_size == 4, "it is told")
                until((view / "target/new").exists, "it is told")
                until(lambda: not (view / "node_modules").is_symlink(), "it is looked up")
                until((view / "target/target").exists, "it is looked up")
            host.close()
