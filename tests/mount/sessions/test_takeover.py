"""The next daemon goes on with the view, and programs only wait meanwhile.

Either the service is restarted, or the daemon is killed.
"""

import mmap
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.manager import Service, service
from tests.support.mounting import LIMIT, area, daemons, unmount, until


def mounts_at(path: Path) -> list[str]:
    """Return the types of the mounts at a path, the lowest first."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [line[line.index("-") + 1] for line in lines if line[4] == str(path)]


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        source = path / "source"
        (source / "deep/er").mkdir(parents=True)
        (source / ".git").mkdir()
        (source / ".git/config").write_text("secret")
        (source / "file").write_bytes(b"0123456789")
        (source / "deep/er/inner").write_text("inner")
        yield path


def restart(running: Service, here: Path) -> None:
    running.restart()


def kill(running: Service, here: Path) -> None:
    """Kill the daemon; its keeper starts the next one."""
    os.kill(daemons(here)[1], signal.SIGKILL)


Replace = Callable[[Service, Path], None]
replaced = pytest.mark.parametrize("replace", [restart, kill])


@replaced
@pytest.mark.parametrize("options", [(), ("--direct-io",), ("-f",)], ids=" ".join)
def test_what_is_open_stays_open(here: Path, options: tuple[str, ...], replace: Replace) -> None:
    if replace is kill and options == ("-f",):
        return  # nobody keeps the connection
    view = here / "view"
    with service(here, *options) as running:
        reading = os.open(view / "file", os.O_RDONLY)
        appending = os.open(view / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        listing = os.open(view / "deep", os.O_RDONLY)
        held = os.open(view / "deep/er", os.O_PATH)
        nameless = os.open(view / "temporary", os.O_RDWR | os.O_CREAT)
        os.unlink(view / "temporary")
        os.write(nameless, b"before")
        assert os.read(reading, 4) == b"0123"
        os.write(appending, b"one\n")
        before = os.stat(view / "file").st_ino, os.fstat(held).st_ino
        replace(running, here)
        assert os.read(reading, 9) == b"456789"
        os.close(os.open(view / "log", os.O_RDWR))  # in the way that all have it open
        os.write(appending, b"two\n")
        os.fsync(appending)
        if replace is restart or not options:  # nobody else has it, but for the kernel
            os.write(nameless, b"after")
            assert os.pread(nameless, 20, 0) == b"beforeafter"
        assert (here / "source/log").read_bytes() == b"one\ntwo\n"
        assert os.listdir(listing) == ["er"]
        assert (os.stat(view / "file").st_ino, os.fstat(held).st_ino) == before
        assert os.stat("inner", dir_fd=held).st_size == 5
        (view / "deep/new").write_text("new")
        for fd in (reading, appending, listing, held, nameless):
            os.close(fd)
        assert "new" in os.listdir(here / "source/deep")


@replaced
def test_a_file_that_has_lost_its_other_name_stays_open(here: Path, replace: Replace) -> None:
    """As git makes each of its objects."""
    view = here / "view"
    with service(here, "--direct-io") as running:
        (view / "temporary").write_text("text")
        (view / "final").hardlink_to(view / "temporary")
        (view / "temporary").unlink()
        with open(view / "final", "rb", buffering=0) as file:
            replace(running, here)
            assert file.read() == b"text"


@contextmanager
def without_a_daemon(here: Path) -> Iterator[None]:
    """Kill the daemon; the next one is started on the way out."""
    keeper, daemon = daemons(here)
    for pid, number, state in (keeper, signal.SIGSTOP, "T"), (daemon, signal.SIGKILL, "Z"):
        os.kill(pid, number)
        stat = Path(f"/proc/{pid}/stat")
        until(lambda s=stat, t=state: s.read_text().rpartition(")")[2][1] == t, "it has the signal")
    try:
        yield
    finally:
        os.kill(keeper, signal.SIGCONT)


@contextmanager
def stopped(running: Service) -> Iterator[None]:
    """Stop the service as for a restart; it is started on the way out."""
    assert running.stop()
    yield
    assert running.tell("start") == ["None"]


def test_another_directory_with_the_same_number_is_not_taken_for_it(here: Path) -> None:
    with service(here):
        (here / "view/made").mkdir()
        held = os.open(here / "view/made", os.O_PATH)
        with without_a_daemon(here):
            (here / "source/made").rmdir()
            (here / "source/made/new").mkdir(parents=True)
        with pytest.raises(OSError, match="Stale"):
            os.stat("new", dir_fd=held)
        os.close(held)


@pytest.mark.parametrize("makes", [True, False])
def test_another_file_with_the_same_number_is_not_open(here: Path, makes: bool) -> None:
    with service(here, "--direct-io"):
        if makes:
            fd = os.open(here / "view/other", os.O_RDWR | os.O_CREAT)
        else:
            fd = os.open(here / "view/file", os.O_RDWR)
        with without_a_daemon(here):
            other = here / "source" / ("other" if makes else "file")
            other.unlink()
            other.write_text("secret")
        with pytest.raises(OSError, match="Stale"):
            os.read(fd, 10)
        os.close(fd)


@replaced
def test_what_is_mapped_and_appended_to_stays_in_its_place(here: Path, replace: Replace) -> None:
    with service(here, "--write-rate", "1G") as running:  # the daemon writes, not the kernel
        fd = os.open(here / "view/log", os.O_RDWR | os.O_APPEND | os.O_CREAT)
        os.write(fd, b"one\n" * 2048)
        with mmap.mmap(fd, 8192) as mapped:
            mapped[:4] = b"two\n"
            replace(running, here)
        os.fsync(fd)
        os.close(fd)
        assert (here / "source/log").read_bytes() == b"two\n" + b"one\n" * 2047


@replaced
@pytest.mark.parametrize("options", [(), ("--direct-io",)], ids=" ".join)
def test_nobody_sees_an_error(here: Path, options: tuple[str, ...], replace: Replace) -> None:
    """Builders work on while the daemon is replaced."""
    view = here / "view"
    ended = threading.Event()
    failures: list[BaseException] = []
    rounds = [0] * 4

    def build(number: int) -> None:
        mine = view / f"b{number}"
        try:
            while not ended.is_set():
                mine.mkdir()
                (mine / "a.c").write_text("text" * 100)
                os.rename(mine / "a.c", mine / "b.c")
                assert (mine / "b.c").read_text() == "text" * 100
                with open(mine / "log", "a") as log:
                    log.write("one\n")
                    log.flush()
                    log.write("two\n")
                assert (mine / "log").read_text() == "one\ntwo\n"
                assert sorted(os.listdir(mine)) == ["b.c", "log"]
                (mine / "log").unlink()
                (mine / "b.c").unlink()
                mine.rmdir()
                rounds[number] += 1
        except BaseException as error:
            failures.append(error)

    with service(here, *options) as running:
        shell = subprocess.Popen(
            ["sh", "-c", "while read line; do cat inner ../er/inner || exit 1; done"],
            cwd=view / "deep/er", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        builders = [threading.Thread(target=build, args=(number,)) for number in range(4)]
        for thread in builders:
            thread.start()
        for _ in range(2 if replace is restart else 5):
            time.sleep(0.3)
            replace(running, here)
            done = list(rounds)
            until(lambda done=done: failures or min(map(int.__sub__, rounds, done)), "they go on")
        ended.set()
        for thread in builders:
            thread.join(LIMIT)
        assert not failures, failures
        assert shell.communicate(b"\n\n", LIMIT)[0] == b"inner" * 4
        assert shell.returncode == 0


@replaced
def test_the_guard_holds_before_and_after(here: Path, replace: Replace) -> None:
    view = here / "view"
    with service(here) as running:
        held = os.open(view / ".git", os.O_PATH)
        replace(running, here)
        for path in (view / ".git/config", f"/proc/self/fd/{held}/config"):
            with pytest.raises(PermissionError):
                os.open(path, os.O_RDONLY)
        with pytest.raises(PermissionError):
            os.listdir(f"/proc/self/fd/{held}")
        assert os.stat(view / ".git").st_mode & 0o777 == 0
        os.close(held)


def test_what_the_host_guards_meanwhile_is_closed(here: Path) -> None:
    """Programs stay in a directory, and have a file open, that the host makes a repository.

    A file that was lent stays open, as without a restart.
    """
    view, source = here / "view", here / "source"
    with service(here, "--direct-io") as running:
        held = os.open(view / "deep", os.O_PATH)
        written = os.open(view / "deep/er/inner", os.O_RDWR)
        with stopped(running):
            for name in ("objects", "refs"):
                (source / "deep" / name).mkdir()
            (source / "deep/HEAD").write_text("ref: refs/heads/main\n")
        with pytest.raises(OSError, match=r"Permission denied|Stale"):
            os.open("er/inner", os.O_RDONLY, dir_fd=held)
        with pytest.raises(OSError, match=r"Permission denied|Stale"):
            os.write(written, b"hook")
        assert (source / "deep/er/inner").read_text() == "inner"
        for fd in (held, written):
            os.close(fd)


@replaced
@pytest.mark.parametrize("options", [(), ("--direct-io",)], ids=" ".join)
def test_what_the_host_makes_a_hook_meanwhile_is_not_opened_again(
    here: Path, options: tuple[str, ...], replace: Replace
) -> None:
    """A file that was lent is still written to, as without a restart."""
    hook = here / "source/.git/hooks/post-commit"
    hook.parent.mkdir()
    with service(here, *options) as running:
        fd = os.open(here / "view/file", os.O_RDWR)
        with without_a_daemon(here) if replace is kill else stopped(running):
            (here / "source/file").rename(hook)
        if options:
            with pytest.raises(OSError, match=r"Permission denied|Stale"):
                os.write(fd, b"hook")
        else:
            os.write(fd, b"hook")
        for attempt in (
            lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
            lambda: os.ftruncate(fd, 0),
        ):
            with pytest.raises(OSError, match=r"Permission denied|Stale"):
                attempt()
        assert hook.read_bytes() == (b"0123456789" if options else b"hook456789")
        os.close(fd)


@pytest.mark.parametrize("options", [("--git", "hide"), ("--session", "pyfuse3"), ("--read-only",)])
def test_other_options_begin_a_new_view(here: Path, options: tuple[str, ...]) -> None:
    view = here / "view"
    with service(here) as running:
        held = os.open(view / "deep", os.O_RDONLY)
        running.restart(*options)
        with pytest.raises(OSError, match=r"not connected|aborted"):
            os.stat("er", dir_fd=held)
        os.close(held)
        assert (view / "deep/er/inner").read_text() == "inner"
        assert mounts_at(view) == ["ramfs", "fuse.gitguardfs"]


def test_a_daemon_without_room_for_copies_unmounts(here: Path) -> None:
    view = here / "view"
    with service(here) as running:
        opened = [os.open(view / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(60)]
        daemon = daemons(here)[-1]
        limit = len(os.listdir(f"/proc/{daemon}/fd")) + 30  # for an end, and for half of the copies
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, (limit, limit))
        assert running.stop() == []
        assert mounts_at(view) == ["ramfs"]
        close(opened)


def test_a_daemon_that_its_keeper_has_started_hands_over_as_well(here: Path) -> None:
    view = here / "view"
    with service(here) as running:
        unread = os.open(view / "deep", os.O_RDONLY)
        keeper, daemon = daemons(here)
        os.kill(daemon, signal.SIGKILL)
        until(lambda: daemons(here) not in ([keeper], [keeper, daemon]), "the next")
        until(lambda: mounts_at(view)[1:] and os.path.exists(view / "file"), "the view is back")
        held = os.open(view / "deep", os.O_RDONLY)
        running.restart()
        for fd in (unread, held):
            assert os.listdir(fd) == ["er"]
            os.close(fd)


def test_a_stop_unmounts(here: Path) -> None:
    with service(here) as running:
        with open(here / "view/written", "w"):
            running.restart()
        assert running.tell("stop 15") == ["0"], "nothing is kept"
        assert mounts_at(here / "view") == []


def use_up(running: Service, view: Path) -> list[int]:
    """Open files of a view until its daemon has no descriptor left for users."""
    running.limit_descriptors(1200)
    running.restart()
    opened = [os.open(view / "others", os.O_RDWR | os.O_CREAT, 0o444)]
    with pytest.raises(OSError, match="Too many open files in system"):
        while True:
            opened.append(os.open(view / "file", os.O_RDONLY))
    return opened


def close(opened: list[int]) -> None:
    for fd in opened:
        with suppress(OSError):  # FLUSH
            os.close(fd)


@replaced
def test_who_opens_too_many_files_does_not_end_the_view(here: Path, replace: Replace) -> None:
    view = here / "view"
    with service(here) as running:
        opened = use_up(running, view)
        for name in ("missing", "missing too"):
            replace(running, here)
            assert not (view / name).exists()
            os.write(opened[0], b"text")
        code = running.tell("stop 15")
        close(opened)
        assert code == ["0"], running.log.read_text()
        assert mounts_at(view) == []


def test_who_opens_too_many_files_does_not_keep_the_seal_on(here: Path) -> None:
    view = here / "view"
    with service(here, "--seal") as running:
        opened = use_up(running, view)
        subprocess.run(["umount", "-l", view], check=True)
        close(opened)
        assert running.tell("stop 0") == ["0"], running.log.read_text()
        assert mounts_at(here / "source") == []


def test_the_seal_stays_on(here: Path) -> None:
    with service(here, "--seal") as running:
        before = Path("/proc/self/mountinfo").read_text()
        held = os.open(here / "view/deep", os.O_RDONLY)
        for _ in range(2):
            assert running.stop()
            assert Path("/proc/self/mountinfo").read_text() == before
            assert running.tell("start") == ["None"]
            assert Path("/proc/self/mountinfo").read_text() == before
            assert os.listdir(held) == ["er"]
        os.close(held)
        with pytest.raises(FileNotFoundError):
            os.stat(here / "source/file")
        assert (here / "view/file").stat().st_size == 10
        subprocess.run(["umount", here / "view"], check=True)
        assert running.tell("stop 0") == ["0"]
        assert (here / "source/file").stat().st_size == 10


def test_a_view_that_was_unmounted_meanwhile_is_mounted_anew(here: Path) -> None:
    with service(here) as running:
        assert running.stop()
        unmount(here / "view")
        assert running.tell("start") == ["None"]
        assert (here / "view/file").stat().st_size == 10


def test_a_view_of_another_source_is_mounted_anew(here: Path) -> None:
    with service(here) as running:
        assert running.stop()
        (here / "source").rename(here / "former")
        (here / "source/new").mkdir(parents=True)
        assert running.tell("start") == ["None"]
        assert os.listdir(here / "view") == ["new"]


def test_without_a_next_daemon_the_view_is_dead(here: Path) -> None:
    """The service manager lets go of the connection; what lies below stays closed."""
    view = here / "view"
    with service(here) as running:
        held = os.open(view / "file", os.O_RDONLY)
        assert running.stop()
        running.tell("discard")
        for attempt in (lambda: os.stat(view / "deep"), lambda: os.read(held, 10)):
            with pytest.raises(OSError, match=r"not connected|aborted"):
                attempt()
        with suppress(OSError):  # FLUSH
            os.close(held)
        assert running.tell("start") == ["None"]
        assert (view / "file").read_bytes() == b"0123456789"


@replaced
def test_the_guests_own_directories_stay(here: Path, replace: Replace) -> None:
    view = here / "view"
    options = ("--local", "node_modules", "--local-store", str(here / "store"))
    with service(here, *options) as running:
        (view / "deep/node_modules/package").mkdir(parents=True)
        (view / "deep/node_modules/package/file").write_text("text")
        held = os.open(view / "deep/node_modules/package", os.O_PATH)
        opened = os.open(view / "deep/node_modules/package/file", os.O_RDWR)
        replace(running, here)
        assert os.pread(opened, 9, 0) == b"text"
        os.write(opened, b"more")
        (view / "deep/node_modules/package").rename(view / "deep/node_modules/other")
        assert os.stat("file", dir_fd=held).st_size == 4
        assert (view / "deep/node_modules/other/file").read_text() == "more"
        (view / "deep").rename(view / "moved")
        assert os.listdir(view / "moved/node_modules") == ["other"]
        assert not (here / "source/moved/node_modules").exists()
        for fd in (held, opened):
            os.close(fd)


@pytest.mark.parametrize(
    "options",
    [("--enable-lock-forwarding",), ("--resolve-symlinks",), ("--session", "pyfuse3")],
    ids=" ".join,
)
def test_a_view_that_cannot_be_handed_over_is_unmounted(
    here: Path, options: tuple[str, ...]
) -> None:
    with service(here, *options) as running:
        assert running.stop() == []
        assert mounts_at(here / "view") == ["ramfs"]
        assert running.tell("start") == ["None"]
        assert (here / "view/file").stat().st_size == 10
