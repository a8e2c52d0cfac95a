"""Rates, threads, direct I/O, and other options that command lines for bindfs have."""

import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.likeness import (
    OTHER,
    Note,
    alike,
    failure,
    listed,
    make_tree,
    read,
    recorded,
    seen,
    touch,
    write,
)  # fmt: skip
from tests.support.mounting import area, bindfs, command, gitguardfs
from tests.support.people import AGENT

KIB = 1024


def using(view: Path, source: Path, note: Note) -> None:
    """Ordinary use by everybody."""
    note.see_all("all", view)
    for uid in (AGENT, OTHER, 0):
        calls = [
            ("reads", read, view / "of-agent"),
            ("writes", write, view / "f0644"),
            ("makes", touch, view / f"made-{uid}"),
            ("makes a directory", os.mkdir, view / f"dir-{uid}"),
            ("links", os.link, view / f"made-{uid}", view / f"link-{uid}"),
            ("renames", os.rename, view / f"made-{uid}", view / f"dir-{uid}/renamed"),
            ("removes", os.unlink, view / f"link-{uid}"),
            ("chmods", os.chmod, view / "of-agent", 0o640),
            ("gives away", os.chown, view / "of-agent", 1000, 1000),
            ("cuts", os.truncate, view / "f0644", 1),
            ("lists", listed, view),
        ]
        note.by([(f"{uid} {label}", *call) for label, *call in calls], uid=uid)
    note("source", listed, source)


NOISE = {
    "nothing": (),
    "threads": ("--multithreaded",),
    "threads by -o": ("-o", "multithreaded"),
    "locks": ("--disable-lock-forwarding",),
    "locks by -o": ("-o", "disable-lock-forwarding"),
    "direct": ("--forward-odirect=512",),
    "direct by -o": ("-o", "forward-odirect=4096"),
    "old names": ("-o", "owner=games,group=games"),
    "lists with colons": ("-o", "mirror=1000:1001,perms=0600:u+X,map=501/1000:@20/@1000"),
    "long line": ("-o", "force-user=1000,force-group=1000,create-for-user=501,create-for-group=20,"
                  "chown-ignore,chgrp-ignore,perms=ug+rw:o-w"),
    "read-only": ("-r",),
    "of libfuse": ("-o", "kernel_cache,auto_cache,max_read=65536,max_write=65536,async_read,intr",
                   "-obig_writes,use_ino,nonempty,noforget,max_readahead=0,hard_remove"),
}  # fmt: skip


@pytest.mark.parametrize("options", NOISE.values(), ids=NOISE.keys())
def test_lines_as_people_have_them(options: tuple[str, ...]) -> None:
    alike(using, *options)


def test_the_oldest_name_of_force_user_in_o() -> None:
    """bindfs(1) says that it still works; libfuse 2 swallows it without a word."""

    def script(view: Path, source: Path, note: Note) -> None:
        note.see("file", view / "of-agent")

    why = "as documented, and as --user=games on the command line"
    alike(script, "-o", "user=games", differs={
        "file looks": ("file 0644 1000:1000 x1 8 bytes", "file 0644 5:1000 x1 8 bytes", why),
    })  # fmt: skip


def test_what_fstab_and_mount_8_add() -> None:
    """bindfs 1.18 overlooks it; 1.14.7 leaves that to mount.fuse(8) and refuses it."""
    noise = ("-ouser", "-onofail,nouser,,,delete-deny", "-o", "users", "-o",
             "auto,rename-deny,noauto", "-o", "chmod-deny,_netdev,,",
             "-o", "x-systemd.after=x,defaults")  # fmt: skip
    with area() as here:
        options = ("-o", "delete-deny,rename-deny,chmod-deny")
        theirs = recorded(here, using, make_tree, lambda: bindfs(*_places(here), *options))
        ours = recorded(
            here, using, make_tree, lambda: gitguardfs(*_places(here), "--git=off", *noise)
        )
        assert ours == theirs
        assert ours["1000 removes"] == ours["1000 renames"] == ours["1000 chmods"] == "EPERM"


def _places(here: Path) -> tuple[Path, Path]:
    return here / "source", here / "view"


@pytest.mark.parametrize("option", ["--enable-lock-forwarding", "--enable-ioctl"])
def test_what_pyfuse3_cannot_carry_is_refused_with_the_reason(option: str) -> None:
    """Ignoring it could lose data."""
    with area() as here:
        for name in ("source", "view"):
            (here / name).mkdir()
        done = subprocess.run(
            command(option, "--session=pyfuse3", here / "source", here / "view"),
            capture_output=True, check=False, text=True,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert f"{option} needs --session kernel" in done.stderr


# ------------------------------------------------------------------------------------- Direct I/O


def _direct(path: Path, offset: int, size: int, data: bytes = b"") -> bytes | int:
    flags = os.O_DIRECT | (os.O_RDWR | os.O_CREAT if data else os.O_RDONLY)
    fd = os.open(path, flags, 0o666)
    try:
        with mmap.mmap(-1, size) as buffer:
            if data:
                buffer[: len(data)] = data
                return os.pwritev(fd, [buffer], offset)
            got = os.preadv(fd, [buffer], offset)
            return bytes(buffer[:got])
    finally:
        os.close(fd)


@pytest.mark.parametrize("options", [(), ("--forward-odirect=512",)])
def test_direct_reads_and_writes(options: tuple[str, ...]) -> None:
    def build(source: Path) -> None:
        make_tree(source)
        (source / "data").write_bytes(os.urandom(0) + bytes(range(256)) * 64)
        os.chown(source / "data", 1000, 1000)

    def script(view: Path, source: Path, note: Note) -> None:
        data, page = view / "data", bytes(reversed(range(256))) * 16
        calls = [
            ("start", _direct, data, 0, 4096),
            ("middle", _direct, data, 8192, 4096),
            ("to the end", _direct, data, 12288, 16384),
            ("behind it", _direct, data, 65536, 4096),
            ("write", _direct, data, 4096, 4096, page),
            ("read that", _direct, data, 4096, 4096),
            ("append", _direct, data, 16384, 4096, page),
            ("new", _direct, view / "new", 0, 8192, page * 2),
            ("large", _direct, view / "large", 0, 1 << 20, page * 256),
            ("large back", _direct, view / "large", 0, 1 << 20),
            ("one sector", _direct, data, 512, 512),
        ]
        note.by(calls, uid=AGENT)
        for name in ("data", "new", "large"):
            note(f"{name} on the source", read, source / name)

    alike(script, *options, build=build)


# ------------------------------------------------------------------------------------------- Rates


def _read_all(path: Path) -> float:
    start = time.monotonic()
    with path.open("rb", buffering=0) as file:
        while file.read(4 * KIB):
            pass
    return time.monotonic() - start


def _write_all(path: Path, size: int) -> float:
    start = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // (4 * KIB)):
            file.write(bytes(4 * KIB))
    return time.monotonic() - start


@pytest.mark.parametrize(("way", "rate"), [("--{}-rate={}", "512k"), ("-o{}-rate={}", "524288")])
def test_reading_and_writing_take_their_time(way: str, rate: str) -> None:
    """At most as fast as asked for. bindfs gives away the first 0.2 seconds' worth."""
    with area() as here:
        (here / "source").mkdir()
        (here / "source/data").write_bytes(bytes(128 * KIB))
        for mounted, granted in ((gitguardfs, 0.0), (bindfs, 0.2)):
            for direction in ("read", "write"):
                options = [way.format(direction, rate)]
                if mounted is gitguardfs:
                    options.append("--git=off")
                with mounted(here / "source", here / "view", *options):
                    view = here / "view"
                    took = (
                        _read_all(view / "data")
                        if direction == "read"
                        else _write_all(view / "new", 128 * KIB)
                    )
                    assert took >= 0.25 - granted
                    assert read(view / "data") == bytes(128 * KIB)


@pytest.mark.every_processor
def test_two_readers_share_one_limit() -> None:
    with area() as here:
        (here / "source").mkdir()
        for name in ("a", "b"):
            (here / "source" / name).write_bytes(bytes(64 * KIB))
        with gitguardfs(here / "source", here / "view", "--git=off", "--read-rate=512k") as mounted:
            start = time.monotonic()
            readers = [
                subprocess.Popen(["cat", mounted.path / name], stdout=subprocess.DEVNULL)
                for name in ("a", "b")
            ]
            assert [reader.wait(30) for reader in readers] == [0, 0]
            assert time.monotonic() - start >= 0.25


# ---------------------------------------------------------------------------- Users who may use it


@pytest.mark.parametrize("options", [("--no-allow-other",), ("-n",), ("-o", "no-allow-other")])
def test_a_mount_for_the_mounting_user_alone(options: tuple[str, ...]) -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        note("root", listed, view)
        for uid in (AGENT, OTHER):
            note(f"{uid} lists", listed, view, uid=uid)
            note(f"{uid} reads", read, view / "of-agent", uid=uid)
            note(f"{uid} makes", touch, view / "made", uid=uid)

    alike(script, *options)


@pytest.mark.usefixtures("ordinary_users_can_mount")
@pytest.mark.parametrize("options", [
    (), ("-p", "0777"), ("-u", "1001", "-g", "1001"), ("--create-with-perms=0600",),
    ("--chmod-ignore", "--delete-deny"), ("-m", "1000", "-p", "u=rwX"),
])  # fmt: skip
def test_mounts_of_ordinary_users(options: tuple[str, ...]) -> None:
    """New files are the mounting user's, and what that user may not do on the source fails."""

    def script(view: Path, source: Path, note: Note) -> None:
        names = [name for name in sorted(os.listdir(source)) if name[0] in "fdo"]
        calls = [
            *((f"sees {name}", seen, view / name) for name in names),
            *((f"reads {name}", read, view / name) for name in names if name != "fifo"),
            *((f"writes {name}", write, view / name) for name in names if name != "fifo"),
            *((f"lists {name}", listed, view / name) for name in names),
            *((f"makes in {name}", touch, view / name / "made") for name in names),
            ("makes", touch, view / "made"),
            ("chmods", os.chmod, view / "made", 0o640),
            ("chmods root's", os.chmod, view / "of-root", 0o640),
            ("links", os.symlink, "made", view / "newlink"),
            ("renames", os.rename, view / "made", view / "renamed"),
            ("removes", os.unlink, view / "of-root"),
        ]
        note.by(calls, uid=AGENT)
        note("others", listed, view, uid=OTHER)
        for name in ("made", "renamed", "newlink", "of-root", "dir-of-agent/made"):
            note.see(f"source {name}", source / name)

    alike(script, "--no-allow-other", *options, uid=AGENT)


# ------------------------------------------------------------------------------------------- Names


@pytest.mark.parametrize("name", ["a,b", "a b", "a\nb", "a:b", "a\\b", "a\"b'c", "ä€", "-a", "a=b"])
def test_names_of_source_and_mount_point(name: str) -> None:
    """Names may hold any bytes."""
    with area() as here:
        source, view, theirs = (here / kind / name for kind in ("source", "view", "theirs"))
        for path in (source, view, theirs):
            path.mkdir(parents=True)
        (source / name).write_text(name)
        with _mounted_at(source, view):
            assert listed(view) == [name]
            assert read(view / name).decode() == name
            assert failure(write, view / "new", uid=AGENT) == "EACCES"
        assert listed(view) == []
        done = subprocess.run(["bindfs", source, theirs], capture_output=True, check=False)
        try:
            works = done.returncode == 0 and listed(theirs) == [name]
        finally:
            subprocess.run(["umount", theirs], capture_output=True, check=False)
        assert works, done.stderr


@contextmanager
def _mounted_at(source: Path, view: Path) -> Iterator[None]:
    subprocess.run(command("--git=off", "--", source, view), check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", view], check=True)
