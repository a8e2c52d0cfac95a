"""Errors of path resolution, alike for every system call; long, deep and odd names."""

import os
import stat
from collections.abc import Callable
from typing import Any

from tests.conformance.tools import (
    ALICE,
    Call,
    call,
    calls,
    content,
    descriptor,
    equal,
    file,
    folder,
    make,
    run,
    utimensat,
)

Action = Callable[[str], Any]


def _open_read(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _mknod(path: str) -> None:
    os.mknod(path, stat.S_IFREG | 0o644)


def _symlink(path: str) -> None:
    os.symlink("x", path)


def _utime(path: str) -> None:
    utimensat(path, (1, 0), (1, 0))


def _utime_link(path: str) -> None:
    utimensat(path, (1, 0), (1, 0), follow=False)


FOLLOWING: tuple[Action, ...] = (
    os.stat,
    os.statvfs,
    os.listdir,
    os.chdir,
    _open_read,
    lambda path: os.chmod(path, 0o755),
    lambda path: os.chown(path, 0, 0),
    lambda path: os.truncate(path, 0),
    _utime,
)
"""Calls that need an object and follow a symlink at the end."""

LOOKING: tuple[Action, ...] = (
    os.lstat,
    os.readlink,
    os.unlink,
    os.rmdir,
    lambda path: os.lchown(path, 0, 0),
    _utime_link,
)
"""Calls that need an object and act on a symlink itself."""

MAKING: tuple[Action, ...] = (os.mkdir, os.mkfifo, _mknod, _symlink)
"""Calls that need the name to be free."""


def _moves(d: str) -> tuple[tuple[Action, Action], ...]:
    """rename and link, once with the path in question as the old and once as the new name."""
    return (
        (lambda path: os.rename(path, f"{d}/free"), lambda path: os.rename(f"{d}/spare", path)),
        (lambda path: os.link(path, f"{d}/free"), lambda path: os.link(f"{d}/spare", path)),
    )


def _all(d: str, want: str, path: str) -> list[Call]:
    """Every call on ``path``, all with one outcome."""
    actions = [*FOLLOWING, *LOOKING, *MAKING, _create]
    for old, new in _moves(d):
        actions += [old, new]
    return [call(want, action, path) for action in actions]


def check_bad_prefixes(d: str) -> None:
    file(f"{d}/file")
    file(f"{d}/spare")
    os.mkfifo(f"{d}/fifo")
    os.symlink("loop2", f"{d}/loop1")
    os.symlink("loop1", f"{d}/loop2")
    os.symlink("missing", f"{d}/dangling")
    for want, path in (
        ("ENOTDIR", f"{d}/file/x"),
        ("ENOTDIR", f"{d}/fifo/x"),
        ("ENOTDIR", f"{d}/file/x/y"),
        ("ENOENT", f"{d}/missing/x"),
        ("ENOENT", f"{d}/dangling/x"),
        ("ELOOP", f"{d}/loop1/x"),
        ("ENAMETOOLONG", f"{d}/{'n' * 256}"),
        ("ENAMETOOLONG", f"{d}/{'n' * 256}/x"),
        ("ENAMETOOLONG", f"{d}/{'n' * 1000}"),
        ("ENAMETOOLONG", f"{d}/" + "./" * 2048 + "x"),
        ("ENOENT", ""),
    ):
        calls(*_all(d, want, path), label=want)
    equal(
        "nothing made",
        sorted(os.listdir(d)),
        ["dangling", "fifo", "file", "loop1", "loop2", "spare"],
    )


def check_search_permission(d: str) -> None:
    file(f"{d}/spare", 0o666, ALICE)
    hidden = folder(f"{d}/hidden", 0o755)
    file(f"{hidden}/there", 0o666, ALICE)
    folder(f"{hidden}/dir", 0o777, ALICE)
    for mode in (0o700, 0o766):
        os.chmod(hidden, mode)
        for name in ("there", "missing", "dir/x"):
            calls(*_all(d, "EACCES", f"{hidden}/{name}"), by=ALICE, label=f"in {mode:o}")


def check_write_permission(d: str) -> None:
    parent = folder(f"{d}/parent", 0o755)
    file(f"{d}/spare", 0o666, ALICE)
    file(f"{parent}/there", 0o666, ALICE)
    folder(f"{parent}/dir", 0o777, ALICE)
    makers = [*MAKING, _create, *(new for _, new in _moves(d))]
    calls(*(call("EACCES", action, f"{parent}/new") for action in makers), by=ALICE)
    calls(
        call("EACCES", os.unlink, f"{parent}/there"),
        call("EACCES", os.rmdir, f"{parent}/dir"),
        call("EACCES", os.rename, f"{parent}/there", f"{d}/free"),
        call("EACCES", os.rename, f"{parent}/dir", f"{d}/free"),
        *(call("EEXIST", action, f"{parent}/there") for action in MAKING),
        call("ok", _create, f"{parent}/there"),
        by=ALICE,
    )


def check_trailing_slashes(d: str) -> None:
    file(f"{d}/file")
    folder(f"{d}/dir")
    os.symlink("dir", f"{d}/link")
    calls(
        call("ok", os.mkdir, f"{d}/made///"),
        call("ok", os.rename, f"{d}/made/", f"{d}/moved/"),
        call("ENOTDIR", os.rename, f"{d}/file", f"{d}/new/"),
        call("ENOTDIR", os.stat, f"{d}/file/"),
        call("ok", os.stat, f"{d}/dir//"),
        call("ENOTDIR", os.rmdir, f"{d}/link/"),
        call("ok", os.rmdir, f"{d}/moved/"),
        call("ENOENT", os.mkfifo, f"{d}/new/"),
        call("EINVAL", os.readlink, f"{d}/link/"),
    )


def check_longest_names(d: str) -> None:
    for kind in ("regular", "dir", "fifo", "symlink", "socket"):
        if kind == "socket":
            continue  # a socket's address is limited to 107 bytes
        for letter in ("n", "é"):
            name = letter * (255 // len(letter.encode()))
            path = make(kind, f"{d}/{name}")
            equal("listed", os.listdir(d), [name])
            os.rename(path, f"{d}/x")
            os.rename(f"{d}/x", path)
            if kind == "regular":
                os.link(path, f"{d}/x")
                os.unlink(f"{d}/x")
            os.rmdir(path) if kind == "dir" else os.unlink(path)
    equal("statvfs", os.statvfs(d).f_namemax, 255)


def check_longest_paths(d: str) -> None:
    """A path of 4095 bytes works, one of 4096 does not."""
    path = d
    while len(path) < 4095 - 202:
        path += "/" + "p" * 200
        os.mkdir(path)
    rest = 4095 - len(path) - 1
    exact = f"{path}/{'e' * min(rest, 255)}"
    if rest > 255:
        os.mkdir(exact)
        exact += "/" + "e" * (rest - 256)
    equal("length", len(exact), 4095)
    file(exact, data=b"deep")
    equal("read", content(exact), b"deep")
    calls(
        call("ok", os.stat, exact),
        call("ENAMETOOLONG", os.stat, exact + "e"),
        call("ENAMETOOLONG", os.mkdir, exact + "e"),
        call("ok", os.chmod, exact, 0o600),
        call("ok", os.link, exact, f"{d}/short"),
        call("ok", os.unlink, exact),
        call("ok", os.rename, f"{d}/short", exact),
        call("ok", os.unlink, exact),
    )


def check_deeper_than_paths_reach(d: str) -> None:
    """60 levels of 200 bytes: each step is short, the whole is not."""
    name = "d" * 200

    def work() -> None:
        os.chdir(d)
        for _ in range(60):
            os.mkdir(name)
            os.chdir(name)
        file("file", owner=ALICE, data=b"bottom")
        equal("read", content("file"), b"bottom")
        os.rename("file", "renamed")
        os.chmod("renamed", 0o600)
        equal("list", os.listdir("."), ["renamed"])
        with descriptor("..") as up:
            equal("up", os.listdir(up), [name])
            equal("down", os.stat(f"{name}/renamed", dir_fd=up).st_size, 6)
        os.unlink("renamed")
        for _ in range(60):
            os.chdir("..")
            os.rmdir(name)

    run(ALICE, work)
    equal("clean", os.listdir(d), [])


ODD_NAMES = (
    b"\xff\xfe", b"\x80", b"caf\xe9", b"caf\xc3\xa9", b"cafe\xcc\x81", b" ",
    b"  lead and trail  ", b"new\nline", b"tab\t", b"\x01\x02\x7f", b"back\\slash", b"\\", b"*",
    b"?", b"-rf", b"--", b"...", b"..a", b".hidden", b"quote'\"", b"$HOME", b"%s", b"a:b", b"con",
    b"COM1", b"trailing.", b"\xf0\x9f\x98\x80", b"UPPER", b"upper",
    b".fuse_hidden0000000100000001", b".gitignore", b".github", b"\xed\xa0\x80", b"#a#", b"a~",
    b".nfs0001", b"lost+found", b"x" * 254 + b"\xff",
)  # fmt: skip


def check_odd_names(d: str) -> None:
    parent = os.fsencode(d)
    for name in ODD_NAMES:
        path = parent + b"/" + name
        with descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            os.write(fd, name)
        equal("size", os.stat(path).st_size, len(name))
    equal("all listed", sorted(os.listdir(parent)), sorted(ODD_NAMES))
    for name in ODD_NAMES:
        path = parent + b"/" + name
        with open(path, "rb") as stream:
            equal("content", stream.read(), name)
        os.symlink(name, parent + b"/link")
        equal("readlink", os.readlink(parent + b"/link"), name)
        equal("through the link", os.stat(parent + b"/link").st_ino, os.stat(path).st_ino)
        os.unlink(parent + b"/link")
        os.rename(path, parent + b"/renamed")
        os.rename(parent + b"/renamed", path)
        os.unlink(path)
        os.mkdir(path)
        os.rmdir(path)
    equal("empty", os.listdir(d), [])
