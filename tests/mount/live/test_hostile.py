"""What is said of the host's changes is trusted for nothing, and nor is who repeats them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gitguardfs.base.constants import HELPER_GID
from gitguardfs.live.repeating import LIMIT as LIMIT_OF_CALLS
from tests.mount.live.test_events import tree
from tests.support.held import held
from tests.support.live import AGAIN, BEGIN, Host, Watch
from tests.support.mounting import (
    LIMIT,
    REPOSITORY,
    Mounted,
    area,
    daemons,
    empty_view,
    gitguardfs,
    unmount,
    until,
)
from tests.support.people import as_user

GIVEN_UP = r"WARNING gitguardfs\.live\.changes: the host's changes are not taken in any more: \S"
FORGED_PATHS = [
    "..", "../source/file", "sub/../../file", "/file", "/etc/passwd", "sub//inner", "sub/", ".",
    "./file", "a\0b", "a" * 5000, "/".join(["a"] * 2500), "a" * 256, "\ud800", "", 5, None, [], {},
]  # fmt: skip
FORGED = [json.dumps({kind: path}).encode() for path in FORGED_PATHS for kind in ("gone", "made")]
FORGED += [json.dumps({"moved": path}).encode() for path in FORGED_PATHS]
FORGED += [json.dumps({"moved": ["file", path]}).encode() for path in FORGED_PATHS]
FORGED += [
    b"", b"\0", b"garbage", b"\xff\xfe\xfd", b"[]", b"{}", b"5", b'"gone"', b'{"gone": "file"',
    b'{"moved": ["file"]}', b'{"moved": ["file", "new", "more"]}', b'{"gitguard-changes": 2}',
    b'{"beat": ' + b"9" * 9999 + b"}", b"[" * 60_000, b'{"gone":' * 7000, b'{"unknown": "file"}',
]  # fmt: skip


def make_source(source: Path) -> None:
    for name in ("sub", "sub/deep", ".git", "sub/.git"):
        (source / name).mkdir()
        (source / name / "inner").write_text(name)
    (source / "file").write_text("text")
    (source / "link").symlink_to("file")


@pytest.fixture
def mounted() -> Iterator[Mounted]:
    with empty_view(expected=(GIVEN_UP,)) as mounted:
        make_source(mounted.source)
        yield mounted


@pytest.fixture
def watch(mounted: Mounted) -> Iterator[Watch]:
    watch = Watch()
    watch.add(mounted.path)
    watch.add(mounted.path / "sub", "sub/")
    yield watch
    watch.close()


def settle(mounted: Mounted, host: Host, watch: Watch) -> list[str]:
    """Return the events so far, when all that was told has been served."""
    (mounted.source / "end").mkdir()
    host.tell({"made": "end"})
    seen = watch.until("CREATE/ end")
    (mounted.source / "end").rmdir()
    host.tell({"gone": "end"})
    seen += watch.until("DELETE/ end")
    return [event for event in seen if not event.endswith("end")]


def shown(view: Path) -> dict[str, object]:
    """Return what the view shows of what is not guarded."""
    return {name: row for name, row in tree(view).items() if ".git" not in name}


def test_false_lines_change_nothing_and_fire_nothing_that_is_not_so(
    mounted: Mounted, watch: Watch
) -> None:
    before, seen = tree(mounted.source), shown(mounted.path)
    names = ["file", "link", "sub", "sub/inner", "sub/deep", "ghost", "sub/ghost", "ghost/inner"]
    there = set(names) & before.keys()
    lines: list[dict[str, object]] = []
    for name in names:
        lines += [{kind: name} for kind in ("gone", "made", "changed", "attributes", "again")]
        lines += [{"moved": [name, other]} for other in names if other != name]
    host = Host(mounted.process.pid)
    host.tell(*lines, *lines)
    for event in settle(mounted, host, watch):
        kind, _, name = event.partition(" ")
        assert not kind.startswith("MOVED") and "SELF" not in kind, event
        assert not (kind.startswith("DELETE") and name in there), event
        assert not (kind.startswith("CREATE") and name not in there), event
    assert tree(mounted.source) == before and shown(mounted.path) == seen
    host.close()


def test_forged_lines_end_the_connection_alone(mounted: Mounted, watch: Watch) -> None:
    before, seen = tree(mounted.source), shown(mounted.path)
    watch.read()
    for line in FORGED:
        host = Host(mounted.process.pid)
        host.send(line + b"\n")
        assert host.is_closed(), line
        host.close()
    host = Host(mounted.process.pid)
    with suppress(BrokenPipeError, ConnectionResetError):
        host.send(b'{"gone": "' + b"a" * (1 << 20))  # a line without an end
    assert host.is_closed()
    host.close()
    assert watch.read() == []
    assert tree(mounted.source) == before and shown(mounted.path) == seen


def test_names_that_are_no_text_are_taken(mounted: Mounted, watch: Watch) -> None:
    name = os.fsdecode(b"\xff\n\x1b\\")
    (mounted.source / name).write_text("new")
    host = Host(mounted.process.pid)
    host.tell({"made": name})
    assert settle(mounted, host, watch) == [f"CREATE {name}", f"CLOSE_WRITE {name}"]
    host.close()


def test_guarded_names_are_left_alone(mounted: Mounted, watch: Watch) -> None:
    before = tree(mounted.source)
    guarded = [".git", ".git/inner", ".git/new", "sub/.git", "sub/.git/inner", ".GIT", "GIT~1"]
    for name in guarded:
        with suppress(OSError):
            (mounted.path / name).stat()
    host = Host(mounted.process.pid)
    for name in guarded:
        host.tell(*({kind: name} for kind in ("gone", "made", "changed", "attributes", "again")))
        host.tell({"moved": [name, "ghost"]}, {"moved": ["file", name]})
    events = settle(mounted, host, watch)
    assert not [event for event in events if "git" in event.lower()], events
    assert tree(mounted.source) == before
    assert (mounted.path / "file").read_text() == "text"
    with pytest.raises(PermissionError):
        (mounted.path / ".git/inner").read_text()
    host.close()


def test_directories_of_the_guest_s_own_are_left_alone() -> None:
    with area() as here:
        (here / "source/sub/own").mkdir(parents=True)
        (here / "source/sub/own/host's").touch()
        options = ("--local=own", f"--local-store={here}/store")
        with gitguardfs(here / "source", here / "view", *options) as mounted:
            (mounted.path / "sub/own").mkdir(exist_ok=True)
            (mounted.path / "sub/own/guest's").write_text("text")
            before, seen = tree(mounted.source), tree(mounted.path)
            watch = Watch()
            for name in ("", "sub/", "sub/own/"):
                watch.add(mounted.path / name, name)
            host = Host(mounted.process.pid)
            for name in ("sub/own", "sub/own/guest's", "sub/own/host's"):
                host.tell(*({kind: name} for kind in ("gone", "made", "changed", "attributes")))
                host.tell({"moved": [name, "sub/new"]}, AGAIN)
            events = settle(mounted, host, watch)
            assert [event for event in events if "own" in event] == []
            assert tree(mounted.source) == before and tree(mounted.path) == seen
            host.close()
            watch.close()


def test_fifty_thousand_lines_at_once(mounted: Mounted, watch: Watch) -> None:
    before, seen = tree(mounted.source), shown(mounted.path)
    lines: list[dict[str, object]] = []
    for number in range(24_000):
        lines += [{"made": f"unknown{number}/a"}, {"changed": f"unknown{number}/a"}]
    lines += [{"changed": "file"}] * 1000
    lines += [{"gone": f"ghost{number}"} for number in range(1000)]
    process = subprocess.Popen(
        [sys.executable, "-c", _SEND, str(mounted.process.pid)],
        stdin=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    text = b"".join(json.dumps(line).encode() + b"\n" for line in [BEGIN, *lines, {"gone": "last"}])
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()
    seen_events: list[str] = []
    while "DELETE last" not in seen_events:
        assert (mounted.path / "file").read_text() == "text", "it is served meanwhile"
        seen_events += watch.read()
    process.stdin.close()
    assert process.wait(LIMIT) == 0
    assert tree(mounted.source) == before and shown(mounted.path) == seen


_SEND = """
import sys
from tests.support.live import Host
host = Host(int(sys.argv[1]), begins=False)
while data := sys.stdin.buffer.read1(1 << 16):
    host.send(data)
"""


# ----------------------------------------------------------------------------- The helper's group


def _write(view: Path) -> None:
    with (view / "file").open("r+") as file:
        file.write("bad")


CHANGES: list[Callable[[Path], object]] = [
    lambda view: (view / "new").write_text("bad"),
    lambda view: (view / "new").mkdir(),
    lambda view: (view / "new").symlink_to("file"),
    lambda view: os.mkfifo(view / "new"),
    lambda view: (view / "new").hardlink_to(view / "file"),
    lambda view: (view / "file").unlink(),
    lambda view: (view / "sub/deep").rmdir(),
    lambda view: (view / "file").rename(view / "new"),
    lambda view: (view / "file").rename(view / "sub/inner"),
    lambda view: (view / "file").chmod(0o777),
    lambda view: os.chown(view / "file", 1, 1),
    lambda view: os.utime(view / "file", (1, 1)),
    lambda view: os.truncate(view / "file", 0),
    lambda view: os.setxattr(view / "file", "user.a", b"b"),
    _write,
    lambda view: (view / "file").read_text(),
    lambda view: (view / ".git/inner").read_text(),
]


@pytest.mark.parametrize("is_told", [False, True])
def test_the_helper_s_group_may_change_nothing(is_told: bool) -> None:
    with empty_view("--xattr=rw") as mounted:
        make_source(mounted.source)
        (mounted.source / "sub/deep/inner").unlink()
        before = tree(mounted.source)
        host = Host(mounted.process.pid) if is_told else None
        for number, change in enumerate(CHANGES):
            with pytest.raises(PermissionError):
                as_user(change, mounted.path, uid=0, gid=HELPER_GID)
                raise AssertionError(f"change {number} was made")
            assert tree(mounted.source) == before, number
        if host is not None:
            host.close()


# ----------------------------------------------------------------------------- A killed daemon

_KILLED = """
import os, signal
from gitguardfs.commands.gitguardfs import main
from gitguardfs.live.repeating import Repeating

serve, armed = Repeating.serve, os.environ["ARMED"]

def serving(self, request, arguments):
    if request == os.environ["REQUEST"] and os.path.exists(armed):
        os.unlink(armed)
        os.system(os.environ["HOST"])
        os.kill(os.getpid(), signal.SIGKILL)
    return serve(self, request, arguments)

Repeating.serve = serving
main()
"""
UNDER_WAY = {
    "unlink": ("rm file", {"gone": "file"}, "echo again >file"),
    "rmdir": ("rmdir empty", {"gone": "empty"}, "mkdir empty"),
    "rename": ("mv file new", {"moved": ["file", "new"]}, "echo again >file"),
    "mkdir": ("mkdir new", {"made": "new"}, "rmdir new"),
    "mknod": ("touch new", {"made": "new"}, "rm new"),
    "setattr": ("echo more >>file", {"changed": "file"}, "touch -d 2020-01-01 file"),
}
"""By request: what the host does, its line, and what it does before the daemon is killed."""


@pytest.mark.parametrize("request_name", UNDER_WAY)
def test_a_repeated_call_is_not_made_by_the_next_daemon(request_name: str) -> None:
    """The kernel sends it again, to a daemon that does not know that it is to do nothing."""
    change, line, later = UNDER_WAY[request_name]
    with area() as here:
        source, view = here / "source", here / "view"
        (source / "empty").mkdir(parents=True)
        (source / "file").write_text("text\n")
        view.mkdir()
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), "ARMED": str(here / "armed"),
            "REQUEST": request_name, "HOST": f"cd {source} && {later}",
        }  # fmt: skip
        subprocess.run(
            [sys.executable, "-c", _KILLED, source, view], env=environment, timeout=LIMIT,
            check=True,
        )  # fmt: skip
        try:
            former = daemons(here)
            tree(view)
            host = Host(former[1])
            subprocess.run(change, shell=True, cwd=source, check=True)
            (here / "armed").touch()
            host.tell(line)
            until(lambda: not (here / "armed").exists(), "it is killed")
            until(lambda: len(now := daemons(here)) == 2 and now != former, "the next one")
            expected = _rows(source)
            assert tree(view).keys() == tree(source).keys(), "the next one answers"
            for _ in range(5):  # requests, one after the other; the one sent again was the first
                os.statvfs(view)
            assert _rows(source) == expected
            host.close()
        finally:
            unmount(view)
            until(lambda: not daemons(here), "they end")


def _rows(source: Path) -> dict[str, object]:
    return {name: (row, (source / name).lstat().st_mtime_ns) for name, row in tree(source).items()}


def test_a_program_that_holds_a_directory_keeps_few_processes_waiting(mounted: Mounted) -> None:
    names = [f"sub/file {number}" for number in range(12)]
    for name in names:
        (mounted.source / name).touch()
        (mounted.path / name).stat()
    host = Host(mounted.process.pid)
    before = children(mounted)
    with held(mounted.path / "sub"):
        for name in names:
            (mounted.source / name).unlink()
        host.tell(*({"gone": name} for name in names), {"made": "file"})
        time.sleep(6 * LIMIT_OF_CALLS)
        assert len(children(mounted) - before) <= 4, "two kinds, of each one that waits"
    until(lambda: not any((mounted.path / name).exists() for name in names), "all is seen")
    host.close()


def children(mounted: Mounted) -> set[int]:
    pid = mounted.process.pid
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
