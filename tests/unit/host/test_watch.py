"""``gitguard watch``: who applies its lines knows the tree, and no guarded name leaves the host."""

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gitguardfs.host.watch.tree import Tree
from tests.support.change_stream import COMMAND, LIMIT, Model, Stream, Watch, wait_for

HIDDEN = frozenset((".git", ".GIT", "git~1", "node_modules"))
NAMES = ("a", "b", "c", "dir", "é", os.fsdecode(b"\xff\xfe"), *sorted(HIDDEN))
PATHS = ("made", "gone", "brief", "changed", "attributes", "again")
RENAME_EXCHANGE = 2


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def top(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    return found


class Changes:
    """Random changes below a directory, which never go through a symlink."""

    def __init__(self, top: Path, seed: int) -> None:
        self.top, self.random = top, random.Random(seed)

    def _directory(self) -> Path:
        found = [Path(each) for each, _, _ in os.walk(self.top)]
        return self.random.choice(found)

    def _name(self) -> Path:
        return self._directory() / self.random.choice(NAMES)

    def one(self) -> None:
        path = self._name()
        kinds = (self.write, self.write, self.make, self.remove, self.move, self.move, self.mode,
                 self.link, self.save, self.exchange, self.in_and_out, self.copy_in)  # fmt: skip
        with suppress(OSError):  # the name is taken, or by something else
            self.random.choice(kinds)(path)

    def write(self, path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        os.write(fd, b"x" * self.random.randrange(9))
        os.close(fd)

    def make(self, path: Path) -> None:
        path.mkdir()
        if self.random.random() < 0.5:
            (path / "a").mkdir()
            self.write(path / "a" / "b")

    def copy_in(self, path: Path) -> None:
        path.mkdir()
        for one in "abc":
            for two in "ab":
                (path / one / two).mkdir(parents=True)
                self.write(path / one / two / "c")

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            subprocess.run(["rm", "-rf", path], check=True)
        else:
            path.unlink()

    def move(self, path: Path) -> None:
        path.rename(self._name())

    def exchange(self, path: Path) -> None:
        other = self._name()
        if path.exists() and other.exists() and not path.is_symlink():
            libc = ctypes.CDLL(None)
            libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(other), RENAME_EXCHANGE)

    def in_and_out(self, path: Path) -> None:
        outside = self.top.parent / f"out-{self.random.randrange(3)}"
        if outside.exists():
            outside.rename(path)
        else:
            path.rename(outside)

    def mode(self, path: Path) -> None:
        if not path.is_symlink():
            path.chmod(self.random.choice((0o700, 0o755, 0o750)))

    def link(self, path: Path) -> None:
        path.symlink_to(self.random.choice(("a", "../b", "nowhere")))

    def save(self, path: Path) -> None:
        self.write(path.with_name("temporary"))
        path.with_name("temporary").rename(path)


@pytest.mark.parametrize("seed", range(3))
def test_who_applies_the_lines_knows_the_tree(top: Path, seed: int) -> None:
    changes = Changes(top, seed)
    for _ in range(60):
        changes.one()
    model = Model(top, HIDDEN)
    with Watch(top, "--without", "node_modules", model=model) as watch:
        for number in range(5):
            for _ in range(40):
                changes.one()
            watch.settled(number)
            wait_for(lambda: model.known == model.tree(), f"the tree of change {number}")
    for line in watch.stream.lines:
        for path in line.get("moved", [line.get(key, "") for key in PATHS]):
            assert not HIDDEN & set(path.split("/")), line
    assert all(raw.isascii() for raw in watch.stream.raw)


def test_each_change_has_its_line_and_no_other(top: Path) -> None:
    for name in ("changed", "mode", "gone", "old", "target", "leaves", ".git"):
        (top / name).write_text("")
    steps: tuple[tuple[Callable[[], object], list[dict[str, object]]], ...] = (
        (lambda: (top / "new").write_text("x"), [{"made": "new"}]),
        (lambda: (top / "changed").write_text("x"), [{"changed": "changed"}]),
        (lambda: (top / "mode").chmod(0o600), [{"attributes": "mode"}]),
        (lambda: (top / "gone").unlink(), [{"gone": "gone"}]),
        (lambda: (top / "old").rename(top / "name"), [{"moved": ["old", "name"]}]),
        (lambda: ((top / "t").write_text("x"), (top / "t").rename(top / "target")),
         [{"moved": ["t", "target"]}]),
        (lambda: ((top / "short").touch(), (top / "short").unlink()), [{"brief": "short"}]),
        (lambda: (top / "leaves").rename(top.parent / "leaves"), [{"gone": "leaves"}]),
        (lambda: (top.parent / "leaves").rename(top / "comes"), [{"made": "comes"}]),
        (lambda: (top / "comes").rename(top / ".Git"), [{"gone": "comes"}, {"listing": ""}]),
        (lambda: (top / ".Git").rename(top / "shown"), [{"listing": ""}, {"made": "shown"}]),
        (lambda: (top / ".git").write_text("x"), []),
        (lambda: (top / "sub").mkdir(), [{"made": "sub"}, {"again": "sub"}]),
        (lambda: (top / "sub" / "é").touch(), [{"made": "sub/é"}]),
        (lambda: (top / "sub").rename(top / "sup"), [{"moved": ["sub", "sup"]}]),
        (lambda: (top / "sup" / "é").unlink(), [{"gone": "sup/é"}]),
    )  # fmt: skip
    with Watch(top) as watch:
        wanted = []
        for number, (change, lines) in enumerate(steps):
            change()
            for line in lines:
                watch.stream.wait_line(**line)
            watch.settled(number)
            wanted += [*lines, {"made": f"settled-{number}"}]
        assert watch.stream.changes() == [{"in": "project", **line} for line in wanted]
    assert watch.stream.lines[0] == {"gitguard-changes": 1, "shares": ["project"]}


def test_a_further_name_has_all_looked_at_again(top: Path) -> None:
    """The file's first name may have been looked at while it was the only one."""
    (top / "first").touch()
    with Watch(top) as watch:
        watch.settled(0)
        os.link(top / "first", top / "second")
        watch.stream.wait_line(made="second")
        watch.settled(1)
        wait_for(lambda: {"in": "project", "again": ""} in watch.stream.changes()[1:], "a look")


def test_a_file_that_is_written_all_the_time_is_told_meanwhile(top: Path) -> None:
    (top / "log").touch()
    with Watch(top) as watch, open(top / "log", "wb", buffering=0) as file:
        watch.settled(0)

        def written() -> bool:
            file.write(b"x")
            return {"in": "project", "changed": "log"} in watch.stream.changes()[2:]

        wait_for(written, "a line")


def test_symlinks_are_not_followed(top: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (top / "old").symlink_to("../outside")
    with Watch(top) as watch:
        (top / "new").symlink_to("../outside")
        watch.settled(0)
        (outside / "secret").touch()
        (outside / "below").mkdir()
        watch.settled(1)
        watch.stream.wait_line(watched={"project": 1})
    assert not [line for line in watch.stream.raw if b"secret" in line or b"below" in line]


def test_a_directory_moved_out_is_watched_no_more(top: Path, tmp_path: Path) -> None:
    (top / "a" / "b").mkdir(parents=True)
    with Watch(top) as watch:
        (top / "a").rename(tmp_path / "away")
        watch.stream.wait_line(gone="a")
        (tmp_path / "away" / "b" / "x").touch()
        watch.settled(0)
        watch.stream.wait_line(watched={"project": 1})
    assert not [line for line in watch.stream.raw if b"/x" in line]


def test_a_missed_event_is_made_good_after_an_overflow(top: Path) -> None:
    """The process stands still while more happens than the kernel keeps."""
    events = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if events > 1 << 16:
        pytest.skip("the kernel keeps very many events")
    model = Model(top, HIDDEN)
    (top / "a").touch()
    (top / "b").touch()
    with Watch(top, model=model) as watch:

        def states() -> list[bool]:
            return [line["whole"] for line in watch.stream.changes() if "whole" in line]

        watch.process.send_signal(signal.SIGSTOP)
        for _ in range(events // 2 + 1):  # each has another name than the one before: not merged
            os.utime(top / "a")
            os.utime(top / "b")
        (top / "late" / "deep").mkdir(parents=True)
        (top / "b").unlink()
        watch.process.send_signal(signal.SIGCONT)
        wait_for(lambda: states() == [False, True], "whole again")
        wait_for(lambda: model.known == model.tree(), "the tree is known")
        (top / "late" / "deep" / "file").touch()
        watch.stream.wait_line(made="late/deep/file")


def test_the_limit_of_watches_is_told(top: Path) -> None:
    """As another user, of whom the namespace of users allows few watches."""
    for number in range(20):
        (top / str(number)).mkdir()
    script = 'echo 5 > /proc/sys/user/max_inotify_watches && exec "$@"'
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    if subprocess.run([*limited, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no limit of inotify watches can be set in a user namespace")
    done = subprocess.Popen([*limited, *COMMAND, str(top), "--to", "-"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)  # fmt: skip
    stream = Stream(done.stdout)
    try:
        stream.wait_line(why="limit of inotify watches", whole=False)
        stream.wait_line(watched={"project": 5})
    finally:
        done.terminate()
        done.wait(LIMIT)
        stream.close()
    with done.stderr as file:
        error = file.read().decode()
    assert error.count("fs.inotify.max_user_watches=") == 1
    assert not any(line.get("whole") for line in stream.lines)


def test_a_slow_reader_gets_again_in_place_of_what_was_lost(top: Path) -> None:
    python, option, code, *words = COMMAND
    small = f"import gitguardfs.host.watch.output as output; output.QUEUE = 1 << 20; {code}"
    process = subprocess.Popen(
        [python, option, small, *words, str(top), "--to", "-"], stdout=subprocess.PIPE
    )
    wait_for(lambda: list(Path(os.environ["XDG_STATE_HOME"]).rglob("*.json")), "a status")
    try:
        for number in range(8_000):
            (top / f"{number:0240}").touch()
        model = Model(top)
        stream = Stream(process.stdout, model)
        wait_for(lambda: model.known == model.tree(), "the tree is known")
        assert len(stream.lines) < 8_000
        (top / "after").touch()
        stream.wait_line(made="after")
    finally:
        process.terminate()
        process.wait(LIMIT)
        process.stdout.close()


def test_a_socket_is_connected_again(top: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Watch(top, to=str(path)) as watch:
        for name in ("first", "second"):
            with socket.socket(socket.AF_UNIX) as server:
                server.settimeout(LIMIT)
                server.bind(str(path))
                server.listen()
                connection, _ = server.accept()
                stream = Stream(connection.makefile("rb"))
                stream.wait_line(whole=True)
                assert [list(line)[-1] for line in stream.lines[:2]] == ["shares", "again"]
                (top / name).touch()
                stream.wait_line(made=name)
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()
                stream.close()
            path.unlink()
            (top / f"lost-{name}").touch()
        assert watch.process.poll() is None


def test_it_ends_with_its_reader_its_directory_and_by_signals(top: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with Watch(top) as watch:
            watch.process.send_signal(number)
            assert watch.process.wait(LIMIT) == 0
    process = subprocess.Popen([*COMMAND, str(top), "--to", "-"], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(LIMIT) == 0
    with Watch(top) as watch:
        top.rename(top.with_name("elsewhere"))
        assert watch.process.wait(LIMIT) == 3
        watch.stream.wait_line(whole=False, why="the directory was deleted or moved")
        assert b"moved away" in watch.process.stderr.read()


def test_the_status_lists_who_runs(top: Path) -> None:
    def status() -> subprocess.CompletedProcess[str]:
        return subprocess.run([*COMMAND, "--status", "--json"], capture_output=True, text=True,
                              check=False)  # fmt: skip

    assert status().returncode == 1
    with Watch(top) as watch:
        wait_for(lambda: '"whole": true' in status().stdout, "a status")
        done = status()
        (one,) = json.loads(done.stdout)
        assert (done.returncode, one["pid"], one["read"]) == (0, watch.process.pid, True)
        assert one["directories"][0]["watched"] == 1
        watch.process.kill()
        watch.process.wait()
    assert json.loads(status().stdout) == []


def test_a_file_system_without_events_is_named(top: Path) -> None:
    """procfs stands for a network file system: neither tells who else writes."""
    told: list[dict[str, object]] = []
    tree = Tree("proc", f"/proc/{os.getpid()}/task", (), told.append)
    try:
        wait_for(lambda: tree.step() or tree.watched, "a watch")
        assert "proc tells of no changes" in tree.why
    finally:
        tree.close()
