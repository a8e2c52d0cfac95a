"""Files that the kernel reads and writes by itself (FUSE_PASSTHROUGH), in the kernel's session."""

import errno
import fcntl
import mmap
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import CDLL, addressof, c_char, c_int, c_long, c_size_t, c_void_p
from pathlib import Path

import pytest

from tests.mount.view import test_local
from tests.support.errorfs import Fault, errorfs
from tests.support.mounting import Mounted, area, empty_view, gitguardfs, unmount, until
from tests.support.people import AGENT, as_user

PAGE = 4096
LARGE = 65 * 1024
"""Bytes of a file that is passed through also where it is only read."""
SET_ID = 0o6755


@pytest.fixture(scope="module", autouse=True)
def _kernel_offers_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's views pass through")
    with empty_view("-d") as ready:
        (ready.path / "file").write_text("text")
        if "WRITE" in ready.requests():
            pytest.skip("this kernel offers no FUSE_PASSTHROUGH, or refuses this source")


@pytest.fixture
def view() -> Iterator[Mounted]:
    with empty_view("-d") as ready:
        yield ready


def asked(view: Mounted, call: Callable[[], object]) -> set[str]:
    """Return the kinds of requests that a call brings."""
    before = len(view.requests())
    call()
    return set(view.requests()[before:])


@contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int]:
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def write_and_read(path: Path) -> None:
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        assert os.write(fd, b"text") == 4
        assert os.pread(fd, 9, 0) == b"text"


def all_is_closed(view: Mounted) -> None:
    """Wait until the daemon has heard of every close(2)."""
    until(
        lambda: sum(1 if name in ("OPEN", "CREATE") else -1 for name in view.requests()
                    if name in ("OPEN", "CREATE", "RELEASE")) == 0,
        "all is closed",
    )  # fmt: skip


# ----------------------------------------------------------------------------- What is


def test_new_files_writers_and_large_files_are_passed_through(view: Mounted) -> None:
    kinds = asked(view, lambda: write_and_read(view.path / "file"))
    assert "CREATE" in kinds and not kinds & {"READ", "WRITE"}
    for name, size in (("written", 1), ("large", LARGE)):
        (view.source / name).write_bytes(b"a" * size)
    with open(view.path / "written", "r+b") as file:
        assert not asked(view, lambda: (file.read(), file.write(b"b"), file.flush())) & {
            "READ", "WRITE",
        }  # fmt: skip
    assert (view.source / "written").read_bytes() == b"ab"
    kinds = asked(view, (view.path / "large").read_bytes)
    assert "OPEN" in kinds and "READ" not in kinds


def test_small_files_that_are_only_read_are_cached(view: Mounted) -> None:
    (view.source / "small").write_bytes(b"a" * (LARGE - 1024))
    assert "READ" in asked(view, (view.path / "small").read_bytes)


@pytest.mark.parametrize(
    "options",
    [("--read-rate=1G",), ("--write-rate=1G",), ("--direct-io",), ("-o", "noatime"),
     ("-o", "sync")],
    ids=" ".join,
)  # fmt: skip
def test_what_the_daemon_must_see_is_not_passed_through(options: tuple[str, ...]) -> None:
    with empty_view("-d", *options) as view:
        assert "WRITE" in asked(view, lambda: write_and_read(view.path / "file"))
        (view.source / "large").write_bytes(b"a" * LARGE)
        assert "READ" in asked(view, (view.path / "large").read_bytes)


# ----------------------------------------------------------------------------- Content


@pytest.mark.parametrize("is_set_later", [False, True])
def test_host_and_guest_append_to_the_same_file(view: Mounted, is_set_later: bool) -> None:
    (view.source / "log").touch()
    with (
        opened(view.path / "log", os.O_WRONLY | (0 if is_set_later else os.O_APPEND)) as guest,
        opened(view.source / "log", os.O_WRONLY | os.O_APPEND) as host,
    ):
        fcntl.fcntl(guest, fcntl.F_SETFL, os.O_APPEND)
        wanted = b""
        for number in range(300):
            line = b"%d\n" % number * (1 + number % 7 * 200)
            os.write(guest if number % 2 else host, line)
            wanted += line
    assert (view.source / "log").read_bytes() == (view.path / "log").read_bytes() == wanted


def test_sizes_and_times_are_right_after_each_change(view: Mounted) -> None:
    with opened(view.path / "file", os.O_RDWR | os.O_CREAT) as fd:
        for change in (
            lambda: os.write(fd, b"a" * 5000),
            lambda: os.pwrite(fd, b"b", 99_999),
            lambda: os.ftruncate(fd, 7),
            lambda: os.truncate(view.path / "file", 12_345),
            lambda: os.close(os.open(view.path / "file", os.O_RDWR | os.O_TRUNC)),
            lambda: os.write(fd, b"c"),
        ):
            change()
            host = os.stat(view.source / "file")
            for seen in (os.fstat(fd), os.stat(view.path / "file")):
                assert (seen.st_size, seen.st_mtime_ns) == (host.st_size, host.st_mtime_ns)
            assert os.lseek(fd, 0, os.SEEK_END) == host.st_size


def test_fsync_of_a_mapping_shows_its_time() -> None:
    with empty_view("-d", "--cache-timeout", "30") as view:
        path = view.path / "file"
        with opened(path, os.O_RDWR | os.O_CREAT) as fd:
            os.write(fd, b"a" * PAGE)
            with mmap.mmap(fd, PAGE) as mapped:
                before = os.stat(path).st_mtime_ns
                time.sleep(0.05)
                mapped[0] = ord("b")
                os.fsync(fd)
                after = os.stat(path).st_mtime_ns
        assert after == os.stat(view.source / "file").st_mtime_ns > before


def test_mappings_of_host_and_guest_show_each_others_bytes(view: Mounted) -> None:
    (view.source / "file").write_bytes(b"." * PAGE)
    with (
        open(view.path / "file", "r+b") as guest,
        open(view.source / "file", "r+b") as host,
        mmap.mmap(guest.fileno(), PAGE) as seen,
        mmap.mmap(host.fileno(), PAGE) as there,
        mmap.mmap(guest.fileno(), PAGE, access=mmap.ACCESS_COPY) as private,
    ):
        seen[0] = ord("g")
        there[1] = ord("h")
        private[2] = ord("p")
        assert (seen[:3], there[:3], private[2:3]) == (b"gh.", b"gh.", b"p")


class Mapping:
    """A shared mapping whose file is closed: Python's own keeps it open."""

    def __init__(self, path: Path, size: int) -> None:
        self._libc = CDLL(None, use_errno=True)
        self._libc.mmap.restype = c_void_p
        self._libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
        with opened(path, os.O_RDWR) as fd:
            start = self._libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, 1, fd, 0)
        assert start not in (None, c_void_p(-1).value)
        self.bytes = (c_char * size).from_address(start)

    def close(self) -> None:
        self._libc.munmap(c_void_p(addressof(self.bytes)), c_size_t(len(self.bytes)))


def test_a_mapping_of_a_closed_file_is_seen_by_who_reads_the_file(view: Mounted) -> None:
    """Nobody is told of such a mapping: pages that are cached meanwhile would stay."""
    path = view.path / "file"
    path.write_bytes(b"." * PAGE)
    mapping = Mapping(path, PAGE)
    all_is_closed(view)
    mapping.bytes[0] = b"0"
    time.sleep(0.1)  # so long that pages would be kept
    for byte in (b"1", b"2"):
        with opened(path, os.O_RDONLY) as fd:
            before = os.pread(fd, 1, 0)
            mapping.bytes[0] = byte
            assert (os.pread(fd, 1, 0), path.read_bytes()[:1]) == (byte, byte), before
        all_is_closed(view)
    mapping.close()


def test_a_mapping_of_an_own_file_moves_its_time() -> None:
    """The kernel keeps other attributes of the guest's own directories for an hour."""
    with test_local.made() as world:
        world.make("node_modules/file", "." * PAGE)
        path = world.view / "node_modules/file"
        before = path.stat().st_mtime_ns
        mapping = Mapping(path, PAGE)
        assert path.stat().st_mtime_ns == before
        time.sleep(0.05)
        mapping.bytes[0] = b"1"
        until(lambda: path.stat().st_mtime_ns > before, "the time of the write")
        mapping.close()


def test_a_small_file_is_fresh_after_it_was_written(view: Mounted) -> None:
    path, host = view.path / "file", view.source / "file"
    path.write_bytes(b"first")
    for number in range(200):
        assert path.read_bytes() == host.read_bytes()  # cached, if nobody has it open
        text = b"%05d" % number
        with opened(path, os.O_WRONLY) as fd:
            os.write(fd, text)
        assert path.read_bytes() == text


def test_calls_that_the_kernel_does_not_pass_through(view: Mounted) -> None:
    """Their errors are those of every session; what they can do, they do right."""
    flags = os.O_RDWR | os.O_CREAT
    with opened(view.path / "file", flags) as fd, opened(view.path / "to", flags) as to:
        os.write(fd, b"0123456789" * 10_000)
        os.posix_fallocate(fd, 0, 120_000)
        assert os.fstat(fd).st_size == 120_000
        assert (os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE)) == (0, 120_000)
        assert os.copy_file_range(fd, to, 50_000, 5, 0) == 50_000
        assert os.sendfile(to, fd, 5, 50_000) == 50_000
        reading, writing = os.pipe()
        assert os.splice(fd, writing, 1000, offset_src=3) == 1000
        assert os.splice(reading, to, 1000, offset_dst=100_000) == 1000
        os.close(reading)
        os.close(writing)
    copied, data = (view.source / "to").read_bytes(), (view.source / "file").read_bytes()
    assert copied[:50_000] == data[5:50_005]
    assert copied[100_000:] == data[3:1003]
    assert copied[50_000:100_000] in (data[5:50_005], bytes(50_000))


# ----------------------------------------------------------------------------- Rights


def test_set_id_bits_that_are_hidden_go_with_a_write(view: Mounted) -> None:
    for uid in (0, AGENT):
        path, host = view.path / f"{uid}", view.source / f"{uid}"
        host.write_text("text")
        os.chown(host, uid, uid)
        with opened(path, os.O_WRONLY) as fd:
            host.chmod(SET_ID)
            if uid:
                as_user(os.write, fd, b"evil")
            else:
                os.write(fd, b"evil")
            assert host.stat().st_mode & 0o7777 == 0o755


def test_set_id_bits_that_are_shown_are_cleared_as_in_a_plain_directory() -> None:
    with empty_view("-d", "--allow-suid", "--cache-timeout", "0") as view:
        found = {}
        for directory in (view.path, view.source):
            for uid in (0, AGENT):
                path = directory / f"{uid}"
                path.write_text("text")
                os.chown(path, uid, uid)
                with opened(path, os.O_WRONLY) as fd:
                    (view.source / f"{uid}").chmod(SET_ID)
                    os.stat(path)
                    if uid:
                        as_user(os.write, fd, b"evil")
                    else:
                        os.write(fd, b"evil")
                found[directory, uid] = oct(path.stat().st_mode & 0o7777)
                path.unlink()
        for uid in (0, AGENT):
            assert found[view.path, uid] == found[view.source, uid]


def rights(view: Mounted) -> list[str]:
    lines = Path(f"/proc/{view.process.pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("CapEff", "Uid"))]


def test_the_daemon_has_its_rights_back_after_each_open(view: Mounted) -> None:
    before = rights(view)
    for number in range(5):
        with opened(view.path / f"{number}", os.O_RDWR | os.O_CREAT):
            assert rights(view) == before


def test_read_only_views_and_sources_refuse_writers() -> None:
    with area() as here:
        (here / "source").mkdir()
        (here / "source/file").write_bytes(b"a" * LARGE)
        with gitguardfs(here / "source", here / "view", "-d", "-o", "ro") as view:
            with pytest.raises(OSError) as refused:
                os.open(view.path / "file", os.O_RDWR)
            assert refused.value.errno == errno.EROFS
            assert "READ" not in asked(view, (view.path / "file").read_bytes)
        subprocess.run(["mount", "-n", "--bind", here / "source", here / "source"], check=True)
        subprocess.run(["mount", "-n", "-o", "remount,bind,ro", here / "source"], check=True)
        try:
            with gitguardfs(here / "source", here / "view", "-d") as view:
                with pytest.raises(OSError) as refused:
                    os.open(view.path / "file", os.O_RDWR)
                assert refused.value.errno == errno.EROFS
        finally:
            unmount(here / "source")


def test_the_host_executes_a_file_whose_writer_has_closed_it(view: Mounted) -> None:
    program = shutil.which("true")
    assert program
    path, host = view.path / "program", view.source / "program"
    with opened(path, os.O_RDWR | os.O_CREAT, 0o755) as writer:
        os.write(writer, Path(program).read_bytes())
        reader = os.open(path, os.O_RDONLY)
    until(lambda: "RELEASE" in view.requests(), "the writer is closed")
    assert [subprocess.run([found]).returncode for found in (host, path)] == [0, 0]
    os.close(reader)


def test_what_is_guarded_after_it_was_opened_cannot_be_opened_again(view: Mounted) -> None:
    (view.source / "directory").mkdir()
    (view.source / "directory/file").write_bytes(b"a" * LARGE)
    with opened(view.path / "directory/file", os.O_RDWR) as fd:
        (view.source / "directory").rename(view.source / ".git")
        for path in (view.path / ".git/file", Path(f"/proc/self/fd/{fd}")):
            with pytest.raises(OSError):
                os.open(path, os.O_RDWR)


# ----------------------------------------------------------------------------- Meanwhile


@pytest.mark.parametrize("change", ["unlink", "move", "replace"])
@pytest.mark.parametrize("who", ["host", "guest"])
def test_a_file_that_loses_its_name_stays_open(view: Mounted, who: str, change: str) -> None:
    path, side = view.path / "file", view.source if who == "host" else view.path
    (view.source / "other").write_bytes(b"other")
    (view.source / "file").write_bytes(b"a" * LARGE)
    with opened(path, os.O_RDWR) as fd:
        if change == "replace":
            (side / "other").rename(side / "file")
        elif change == "move":
            (side / "file").rename(side / "elsewhere")
        else:
            (side / "file").unlink()
        os.pwrite(fd, b"b", 0)
        assert os.pread(fd, 2, 0) == b"ba"
        assert os.fstat(fd).st_size == LARGE
        if change == "replace":
            until(lambda: path.read_bytes() == b"other", "the name is the new file's")
        else:
            until(lambda: not path.exists(), "the name is free")


def test_a_file_that_the_host_truncates_is_short(view: Mounted) -> None:
    (view.source / "file").write_bytes(b"a" * LARGE)
    with opened(view.path / "file", os.O_RDWR) as fd:
        os.truncate(view.source / "file", 3)
        assert os.pread(fd, 9, 0) == b"aaa"
        os.pwrite(fd, b"b", 5)
    assert (view.source / "file").read_bytes() == (view.path / "file").read_bytes() == b"aaa\0\0b"


# ----------------------------------------------------------------------------- Limits


def test_a_file_system_below_the_source_can_be_unmounted_after_the_last_close() -> None:
    with area() as here:
        (here / "source/below").mkdir(parents=True)
        subprocess.run(["mount", "-n", "-t", "tmpfs", "none", here / "source/below"], check=True)
        try:
            with (
                gitguardfs(here / "source", here / "view", "-d", limit_nofile=556) as view,
                ExitStack() as files,
            ):
                for number in range(100):
                    path = view.path / f"below/{number}"
                    files.enter_context(opened(path, os.O_RDWR | os.O_CREAT))
                    files.enter_context(opened(path, os.O_RDONLY))
                files.close()
                all_is_closed(view)
                Path("/proc/sys/vm/drop_caches").write_text("2")  # the view forgets its names

                def is_unmounted() -> bool:
                    done = subprocess.run(["umount", here / "source/below"], capture_output=True)
                    return done.returncode == 0

                until(is_unmounted, "the file system is not in use")
        finally:
            unmount(here / "source/below")


def test_the_kernels_own_open_of_a_new_file_may_be_refused() -> None:
    """As by a share's server that is not root: its owner may not write the file."""
    with area() as here, errorfs(here / "host", here / "share", here / "control") as share:
        with gitguardfs(share.path, here / "view", "-d") as view:
            share.add(Fault(("OPEN",), name="object", error=errno.EACCES))
            with opened(view.path / "object", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444) as fd:
                assert os.write(fd, b"text") == 4


# ----------------------------------------------------------------------------- Stacks


def test_a_source_that_cannot_be_passed_through_is_served(view: Mounted) -> None:
    """Overlays are stacked too high already."""
    for name in ("lower", "upper", "work", "merged"):
        (view.source.parent / name).mkdir()
    here = view.source.parent
    (here / "lower/file").write_bytes(b"lower" * LARGE)
    layers = f"lowerdir={here}/lower,upperdir={here}/upper,workdir={here}/work"
    subprocess.run(["mount", "-n", "-t", "overlay", "o", "-o", layers, here / "merged"], check=True)
    try:
        with gitguardfs(here / "merged", here / "second", "-d") as above:
            with opened(above.path / "file", os.O_RDWR) as fd:
                os.pwrite(fd, b"upper", 0)
                assert os.pread(fd, 10, 0) == b"upperlower"
            kinds = asked(above, lambda: write_and_read(above.path / "new"))
            assert "WRITE" in kinds
            assert (here / "merged/file").read_bytes()[:10] == b"upperlower"
    finally:
        unmount(here / "merged")


def test_the_view_is_a_layer_of_an_overlay(view: Mounted) -> None:
    here = view.source.parent
    for name in ("upper", "work", "merged"):
        (here / name).mkdir()
    (view.source / "file").write_bytes(b"lower" * LARGE)
    layers = f"lowerdir={view.path},upperdir={here}/upper,workdir={here}/work"
    subprocess.run(["mount", "-n", "-t", "overlay", "o", "-o", layers, here / "merged"], check=True)
    try:
        assert (here / "merged/file").read_bytes() == b"lower" * LARGE
        (here / "merged/file").write_bytes(b"upper")
        assert (view.path / "file").read_bytes() == b"lower" * LARGE
    finally:
        unmount(here / "merged")


def test_a_daemon_that_is_killed_leaves_nothing_to_open() -> None:
    with area() as here:
        (here / "source/.git").mkdir(parents=True)
        (here / "source/file").write_bytes(b"a" * LARGE)
        with suppress(AssertionError), gitguardfs(here / "source", here / "view", "-d") as view:
            with suppress(OSError), opened(view.path / "file", os.O_RDWR) as fd:
                os.pwrite(fd, b"b", 0)
                view.process.send_signal(signal.SIGKILL)
                view.process.wait()
                for call in (
                    lambda: os.open(view.path / "file", os.O_RDONLY),
                    lambda: os.listdir(view.path / ".git"),
                    lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
                ):
                    with pytest.raises(OSError) as refused:
                        call()
                    assert refused.value.errno == errno.ENOTCONN


# ----------------------------------------------------------------------------- Orders


class Reference:
    """A file's bytes in the view and in a plain directory beside, changed by the same calls."""

    NAMES = ("one", "two", "three")
    FLAGS = (
        os.O_RDONLY, os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_APPEND,
        os.O_RDWR | os.O_TRUNC, os.O_RDWR | os.O_DIRECT, os.O_RDONLY | os.O_DIRECT,
    )  # fmt: skip

    def __init__(self, view: Path, plain: Path, seed: int) -> None:
        self._sides = view, plain
        self._random = random.Random(seed)
        self._fds: list[tuple[int, int]] = []
        self._maps: list[tuple[mmap.mmap, mmap.mmap]] = []

    def step(self) -> None:
        choice = self._random.choice
        calls = [self._open, self._open, self._write, self._write, self._read, self._close,
                 self._map, self._unmap, self._write_mapped, self._unlink, self._link,
                 self._rename, self._truncate, self._whole, self._fork]  # fmt: skip
        choice(calls)()

    def both(self, call: Callable[[int], object]) -> None:
        """Make a call on both sides; each must return, or fail, alike."""
        found = []
        for side in (0, 1):
            try:
                found.append(call(side))
            except OSError as error:
                found.append(error.errno)
        assert found[0] == found[1], call

    def _path(self, side: int, name: str) -> Path:
        return self._sides[side] / name

    def _open(self) -> None:
        name, flags = self._random.choice(self.NAMES), self._random.choice(self.FLAGS)
        flags |= self._random.choice((0, os.O_CREAT))
        fds: list[int] = []

        def call(side: int) -> None:
            fds.append(os.open(self._path(side, name), flags, 0o644))

        self.both(call)
        if fds:
            self._fds.append((fds[0], fds[1]))

    def _on_open(self, call: Callable[[int], object]) -> None:
        if self._fds:
            pair = self._random.choice(self._fds)
            self.both(lambda side: call(pair[side]))

    def _write(self) -> None:
        data = bytes([self._random.randrange(256)]) * self._random.randrange(1, 3 * PAGE)
        offset = self._random.randrange(20 * PAGE)
        aligned = mmap.mmap(-1, PAGE)
        aligned[:] = data[:1] * PAGE

        def call(fd: int) -> int:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                return os.pwritev(fd, [aligned], offset // PAGE * PAGE)
            return os.pwrite(fd, data, offset)

        self._on_open(call)

    def _read(self) -> None:
        offset, room = self._random.randrange(20) * PAGE, mmap.mmap(-1, 4 * PAGE)
        self._on_open(lambda fd: room[: os.preadv(fd, [room], offset)])

    def _close(self) -> None:
        if self._fds:
            for fd in self._fds.pop(self._random.randrange(len(self._fds))):
                os.close(fd)

    def _map(self) -> None:
        readable = [
            pair for pair in self._fds
            if fcntl.fcntl(pair[0], fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            and os.fstat(pair[0]).st_size >= PAGE and len(self._maps) < 4
        ]  # fmt: skip
        if readable:
            one, other = self._random.choice(readable)
            self._maps.append((mmap.mmap(one, PAGE), mmap.mmap(other, PAGE)))

    def _write_mapped(self) -> None:
        if self._maps and all(mapped.size() >= PAGE for pair in self._maps for mapped in pair):
            pair, byte = self._random.choice(self._maps), self._random.randrange(256)
            for mapped in pair:
                mapped[PAGE // 2] = byte

    def _unmap(self) -> None:
        if self._maps:
            for mapped in self._maps.pop():
                with mapped:
                    pass

    def _unlink(self) -> None:
        name = self._random.choice(self.NAMES)
        self.both(lambda side: self._path(side, name).unlink())

    def _link(self) -> None:
        one, other = self._random.sample(self.NAMES, 2)
        self.both(lambda side: os.link(self._path(side, one), self._path(side, other)))

    def _rename(self) -> None:
        one, other = self._random.sample(self.NAMES, 2)
        self.both(lambda side: os.rename(self._path(side, one), self._path(side, other)))

    def _truncate(self) -> None:
        name, size = self._random.choice(self.NAMES), self._random.randrange(PAGE, 40 * PAGE)
        self.both(lambda side: os.truncate(self._path(side, name), size))

    def _whole(self) -> None:
        name = self._random.choice(self.NAMES)
        self.both(lambda side: self._path(side, name).read_bytes())
        self.both(lambda side: os.stat(self._path(side, name)).st_size)

    def _fork(self) -> None:
        """Have a child hold, and write to, inherited descriptors."""
        if self._fds:
            one, other = self._random.choice(self._fds)
            subprocess.run(["true"], pass_fds=(one, other), check=True)

    def close(self) -> None:
        while self._fds:
            self._close()
        while self._maps:
            self._unmap()


@pytest.mark.parametrize("seed", range(6))
def test_open_files_are_as_in_a_plain_directory(view: Mounted, seed: int) -> None:
    plain = view.source.parent / "plain"
    plain.mkdir()
    reference = Reference(view.path, plain, seed)
    for _ in range(600):
        reference.step()
    reference.close()
    assert {path.name: path.read_bytes() for path in plain.iterdir()} == {
        path.name: path.read_bytes() for path in view.source.iterdir()
    }
    all_is_closed(view)


def test_by_default_who_has_a_file_open_keeps_it_when_the_view_ends() -> None:
    with area() as here:
        (here / "source").mkdir()
        with gitguardfs(here / "source", here / "view") as ready:
            held = os.open(ready.path / "file", os.O_RDWR | os.O_CREAT)
        assert os.pwrite(held, b"text", 0) == 4
        with suppress(OSError):  # ENOTCONN: the view is not told of it
            os.close(held)
        assert (here / "source/file").read_text() == "text"
