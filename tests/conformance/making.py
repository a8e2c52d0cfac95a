"""mkdir, mkfifo, mknod, symlink and bind: what the new object is like."""

import os
import stat
from collections.abc import Callable
from functools import partial

from tests.conformance.tools import (
    ALICE,
    MAKERS,
    NOBODY,
    ROOT,
    User,
    bind,
    call,
    calls,
    equal,
    file,
    folder,
    make,
    mode_of,
    owner_of,
    rejected,
    remove,
    run,
    stamps,
)


def _regular(path: str, mode: int = 0o644) -> None:
    os.mknod(path, stat.S_IFREG | mode)


def _fifo(path: str, mode: int = 0o644) -> None:
    os.mknod(path, stat.S_IFIFO | mode)


def _socket(path: str, mode: int = 0o644) -> None:
    os.mknod(path, stat.S_IFSOCK | mode)


def _char(path: str, mode: int = 0o644) -> None:
    os.mknod(path, stat.S_IFCHR | mode, os.makedev(1, 3))


def _block(path: str, mode: int = 0o644) -> None:
    os.mknod(path, stat.S_IFBLK | mode, os.makedev(7, 1))


def _symlink(path: str) -> None:
    os.symlink("target", path)


UNPRIVILEGED: dict[str, Callable[..., None]] = {
    "mkdir": os.mkdir,
    "mkfifo": os.mkfifo,
    "mknod regular": _regular,
    "mknod fifo": _fifo,
    "mknod socket": _socket,
}
"""The types that every user may make, with a mode."""

MODES = (
    (0o755, 0, 0o755),
    (0o151, 0, 0o151),
    (0o777, 0o022, 0o755),
    (0o666, 0o077, 0o600),
    (0o345, 0o070, 0o305),
    (0o501, 0o345, 0o400),
    (0o000, 0o000, 0o000),
    (0o1777, 0o022, 0o1755),
)


def check_mode_and_umask(d: str) -> None:
    for name, maker in UNPRIVILEGED.items():
        for asked, umask, want in MODES:
            path = f"{d}/new"
            calls(call("ok", maker, path, asked), by=ALICE, umask=umask)
            equal(f"{name} {asked:o} umask {umask:o}", oct(mode_of(path)), oct(want))
            equal(f"owner after {name}", owner_of(path), (1000, 1000))
            remove(path)


def check_devices(d: str) -> None:
    for maker, kind, device in (
        (_char, stat.S_IFCHR, os.makedev(1, 3)),
        (_block, stat.S_IFBLK, os.makedev(7, 1)),
    ):
        for asked, umask, want in MODES:
            calls(call("ok", maker, f"{d}/new", asked), umask=umask)
            found = os.lstat(f"{d}/new")
            equal("type and mode", oct(found.st_mode), oct(kind | want))
            equal("device number", found.st_rdev, device)
            os.unlink(f"{d}/new")
        calls(call("EPERM", maker, f"{d}/new"), by=ALICE)
        equal("not made", os.path.lexists(f"{d}/new"), False)
    for major, minor in ((1, 3), (255, 255), (259, 70000), (4095, 1048575)):
        os.mknod(f"{d}/wide", stat.S_IFCHR | 0o600, os.makedev(major, minor))
        equal("wide number", os.lstat(f"{d}/wide").st_rdev, os.makedev(major, minor))
        os.unlink(f"{d}/wide")


def check_types(d: str) -> None:
    for kind, test in (
        ("regular", stat.S_ISREG),
        ("dir", stat.S_ISDIR),
        ("fifo", stat.S_ISFIFO),
        ("block", stat.S_ISBLK),
        ("char", stat.S_ISCHR),
        ("socket", stat.S_ISSOCK),
        ("symlink", stat.S_ISLNK),
    ):
        found = os.lstat(make(kind, f"{d}/{kind}"))
        equal(kind, test(found.st_mode), True)
        equal(f"links of {kind}", found.st_nlink, 2 if kind == "dir" else 1)
    calls(
        call("EPERM", os.mknod, f"{d}/no", stat.S_IFDIR | 0o755),
        call("EINVAL", os.mknod, f"{d}/no", stat.S_IFLNK | 0o755),
    )


def check_nothing_is_replaced(d: str) -> None:
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}")
        before = os.lstat(path)
        rows = [call("EEXIST", maker, path) for maker in UNPRIVILEGED.values()]
        rows.append(call("EADDRINUSE", bind, path))
        calls(*rows, call("EEXIST", _symlink, path), by=ALICE, label=kind)
        calls(
            call("EEXIST", _char, path),
            call("EEXIST", _block, path),
            call("EEXIST", os.mkdir, path),
        )
        after = os.lstat(path)
        equal("the same", (after.st_ino, after.st_mtime_ns), (before.st_ino, before.st_mtime_ns))
    equal("nothing made behind the link", os.path.lexists(f"{d}/nowhere"), False)


def check_stamps(d: str) -> None:
    parent = folder(f"{d}/parent")
    makers: dict[str, Callable[..., object]] = {**MAKERS, "regular": _regular}
    for kind, maker in makers.items():
        stamps(f"make {kind}", partial(maker, f"{parent}/{kind}"), {parent: "mc", d: ""})
        born = os.lstat(f"{parent}/{kind}")
        equal(f"{kind} born in one moment", born.st_mtime_ns, born.st_ctime_ns)
        stamps(
            f"refused {kind}",
            rejected(partial(os.mkdir, f"{parent}/{kind}"), "EEXIST"),
            {parent: "", f"{parent}/{kind}": ""},
        )


def check_group_of_new_objects(d: str) -> None:
    """A set-gid directory gives its group, and set-gid itself to directories."""
    makers: dict[str, Callable[..., object]] = {**UNPRIVILEGED, "bind": bind, "symlink": _symlink}
    for mode, group, user, want in (
        (0o777, 1001, ALICE, 1000),
        (0o2777, 1001, ALICE, 1001),
        (0o3777, 65533, NOBODY, 65533),
        (0o2777, 1000, ROOT, 1000),
        (0o777, 1000, ROOT, 0),
        (0o777, 1001, User(1000, 65533), 65533),
    ):
        parent = folder(f"{d}/parent", mode, User(0, group))
        for name, maker in makers.items():
            run(user, maker, f"{parent}/new")
            equal(f"{name} in {mode:o}", owner_of(f"{parent}/new"), (user.uid, want))
            inherits = name == "mkdir" and bool(mode & stat.S_ISGID)
            found = os.lstat(f"{parent}/new").st_mode
            equal(f"set-gid of {name} in {mode:o}", bool(found & stat.S_ISGID), inherits)
            equal(f"sticky of {name} in {mode:o}", bool(found & stat.S_ISVTX), False)
            remove(f"{parent}/new")
        os.rmdir(parent)


def check_directory_links(d: str) -> None:
    parent = folder(f"{d}/parent")
    for number in range(3):
        equal("links", os.stat(parent).st_nlink, 2 + number)
        os.mkdir(f"{parent}/{number}")
        file(f"{parent}/file{number}")
    for number in range(3):
        equal("links", os.stat(parent).st_nlink, 5 - number)
        os.rmdir(f"{parent}/{number}")
    equal("links", os.stat(parent).st_nlink, 2)


def check_symlink_targets(d: str) -> None:
    for number, target in enumerate(
        (
            "x", ".", "..", "/", "//", "/etc/passwd", "../../../..", "a/b/c", " ", "with space",
            "new\nline",
            "back\\slash", os.fsdecode(b"\xff\xfe"), "a" * 255, "a/" * 1000, "x" * 4095,
        )
    ):  # fmt: skip
        path = f"{d}/{number}"
        calls(call("ok", os.symlink, target, path), by=ALICE)
        equal("target", os.readlink(path), target)
        found = os.lstat(path)
        equal("size", found.st_size, len(os.fsencode(target)))
        equal("mode", stat.S_IMODE(found.st_mode), 0o777)
        equal("owner", (found.st_uid, found.st_gid), (1000, 1000))
    calls(
        call("ENOENT", os.symlink, "", f"{d}/empty"),
        call("ENAMETOOLONG", os.symlink, "x" * 4096, f"{d}/long"),
    )


def check_readlink_errors(d: str) -> None:
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}")
        calls(call("ok" if kind == "symlink" else "EINVAL", os.readlink, path))
    calls(call("ok", os.readlink, f"{d}/symlink"), by=NOBODY)
    calls(
        call("ENOTDIR", os.readlink, f"{d}/regular/x"), call("ENOENT", os.readlink, f"{d}/missing")
    )
