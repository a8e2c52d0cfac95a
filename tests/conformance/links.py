"""link, unlink and rmdir; what is left of an unlinked open file."""

import mmap
import os
import time
from functools import partial

from tests.conformance.tools import (
    ALICE,
    MAKERS,
    NOBODY,
    NON_DIRECTORIES,
    User,
    call,
    calls,
    content,
    descriptor,
    equal,
    file,
    folder,
    futimens,
    link_followed,
    make,
    mode_of,
    outcome,
    owner_of,
    rejected,
    remove,
    run,
    stamps,
)


def check_names_of_one_object(d: str) -> None:
    for kind in NON_DIRECTORIES:
        names = [f"{d}/{kind}{number}" for number in range(4)]
        make(kind, names[0], ALICE)
        for count, name in enumerate(names[1:], 2):
            os.link(names[0], name, follow_symlinks=False)
            for each in names[:count]:
                found = os.lstat(each)
                equal(f"{kind} links", found.st_nlink, count)
                equal(f"{kind} inode", found.st_ino, os.lstat(names[0]).st_ino)
                equal(f"{kind} owner", (found.st_uid, found.st_gid), (1000, 1000))
        os.lchown(names[1], 65534, 65533)
        equal(f"{kind} owner by another name", owner_of(names[3]), (65534, 65533))
        for left, name in zip((3, 2, 1), names, strict=False):
            os.unlink(name)
            equal(f"{kind} links after unlink", os.lstat(names[3]).st_nlink, left)


def check_all_names_show_one_state(d: str) -> None:
    first, second = file(f"{d}/first", data=b"one"), f"{d}/second"
    folder(f"{d}/folder")
    os.link(first, second)
    os.link(first, f"{d}/folder/third")
    for action, path in ((os.chmod, first), (os.chmod, second), (os.chmod, f"{d}/folder/third")):
        for mode in (0o600, 0o751):
            action(path, mode)
            modes = {mode_of(name) for name in (first, second, f"{d}/folder/third")}
            equal("modes", modes, {mode})
    with open(second, "ab") as stream:
        stream.write(b"+two")
    equal("data", content(first), b"one+two")
    equal("size", os.stat(f"{d}/folder/third").st_size, 7)
    os.truncate(f"{d}/folder/third", 2)
    equal("size", [os.stat(name).st_size for name in (first, second)], [2, 2])
    equal("data", content(second), b"on")


def check_link_stamps(d: str) -> None:
    other = folder(f"{d}/other")
    for kind in NON_DIRECTORIES:
        path = make(kind, f"{d}/{kind}")
        new = f"{other}/{kind}"
        stamps(f"link {kind}", partial(os.link, path, new, follow_symlinks=False),
               {path: "c", other: "mc", d: ""})  # fmt: skip
        stamps(f"link {kind} twice",
               rejected(partial(os.link, path, new), "EEXIST"),
               {path: "", other: ""})  # fmt: skip
        stamps(f"unlink {kind}", partial(os.unlink, new), {path: "c", other: "mc", d: ""})


def check_link_errors(d: str) -> None:
    path = file(f"{d}/file")
    folder(f"{d}/folder")
    for kind in MAKERS:
        make(kind, f"{d}/{kind}")
        calls(call("EEXIST", os.link, path, f"{d}/{kind}"), label=kind)
    calls(
        call("EPERM", os.link, f"{d}/folder", f"{d}/new"),
        call("EEXIST", os.link, path, path),
        call("ENOENT", os.link, f"{d}/missing", f"{d}/new"),
        call("ENOENT", os.link, path, f"{d}/missing/new"),
        call("ENOTDIR", os.link, path, f"{path}/new"),
        call("ENOTDIR", os.link, f"{path}/x", f"{d}/new"),
        call("EXDEV", os.link, path, "/dev/conformance"),
    )
    calls(call("EPERM", os.link, f"{d}/folder", f"{d}/new"), by=ALICE)
    equal("links", os.stat(path).st_nlink, 1)


def check_link_permission(d: str) -> None:
    closed = folder(f"{d}/closed", 0o755)
    opened = folder(f"{d}/opened", 0o777)
    hidden = folder(f"{d}/hidden", 0o700)
    mine = file(f"{d}/mine", 0o644, ALICE)
    file(f"{hidden}/file", 0o644, ALICE)
    calls(
        call("EACCES", os.link, mine, f"{closed}/new"),
        call("EACCES", os.link, f"{hidden}/file", f"{opened}/new"),
        call("EACCES", os.link, mine, f"{hidden}/new"),
        call("ok", os.link, mine, f"{opened}/new"),
        by=ALICE,
    )
    calls(call("ok", os.unlink, f"{opened}/new"), by=NOBODY)


def check_descriptor_links(d: str) -> None:
    path = file(f"{d}/file", data=b"text")
    with descriptor(path) as fd:
        link_followed(f"/proc/self/fd/{fd}", f"{d}/linked")
    equal("same", os.stat(path).st_ino, os.stat(f"{d}/linked").st_ino)
    os.symlink("file", f"{d}/symlink")
    link_followed(f"{d}/symlink", f"{d}/followed")
    equal("links", os.stat(path).st_nlink, 3)


def check_unlink(d: str) -> None:
    for kind in NON_DIRECTORIES:
        path = make(kind, f"{d}/{kind}")
        stamps(f"unlink {kind}", partial(os.unlink, path), {d: "mc"})
        calls(call("ENOENT", os.lstat, path), call("ENOENT", os.unlink, path))
    folder(f"{d}/folder")
    file(f"{d}/file")
    calls(
        call("EISDIR", os.unlink, f"{d}/folder"),
        call("ENOTDIR", os.unlink, f"{d}/file/"),
        call("ENOTDIR", os.unlink, f"{d}/file/x"),
        call("EISDIR", os.unlink, f"{d}/folder/."),
    )
    calls(call("EISDIR", os.unlink, f"{d}/folder"), by=ALICE)


def check_rmdir(d: str) -> None:
    parent = folder(f"{d}/parent")
    os.mkdir(f"{parent}/child")
    stamps("rmdir", lambda: os.rmdir(f"{parent}/child"), {parent: "mc", d: ""})
    for kind in MAKERS:
        path = make(kind, f"{parent}/{kind}")
        rows = [call("ENOTEMPTY", os.rmdir, parent)]
        if kind != "dir":
            rows.append(call("ENOTDIR", os.rmdir, path))
        calls(*rows, label=kind)
        calls(call("EACCES", os.rmdir, path), by=ALICE)
        remove(path)
    os.symlink("parent", f"{d}/link")
    os.mkdir(f"{d}/empty")
    calls(
        call("ENOTDIR", os.rmdir, f"{d}/link"),
        call("EINVAL", os.rmdir, f"{parent}/."),
        call("ENOTEMPTY", os.rmdir, f"{d}/empty/.."),
        call("ENOENT", os.rmdir, f"{d}/missing"),
        call("EBUSY", os.rmdir, "/proc"),
        call("ok", os.rmdir, f"{d}/empty/"),
        call("ok", os.rmdir, parent),
    )


def check_removed_directory_in_use(d: str) -> None:
    path = folder(f"{d}/gone")

    def work() -> list[str]:
        os.chdir(path)
        with descriptor(".") as fd:
            os.rmdir(path)
            equal("links", os.fstat(fd).st_nlink, 0)
            equal("empty", os.listdir(fd), [])
            return [
                outcome(os.mkdir, "new"),
                outcome(os.open, "new", os.O_CREAT | os.O_WRONLY),
                outcome(os.stat, "new"),
                outcome(os.stat, "."),
                outcome(os.getcwd),
                outcome(os.rename, f"{d}/file", "new"),
            ]

    file(f"{d}/file")
    got = run(User(0, 0), work)
    equal("in a removed directory", got, ["ENOENT", "ENOENT", "ENOENT", "ok", "ENOENT", "ENOENT"])


def check_unlinked_open_file(d: str) -> None:
    path = f"{d}/file"
    with descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644) as fd:
        os.write(fd, b"before")
        number = os.fstat(fd).st_ino
        tick_free = os.fstat(fd).st_ctime_ns
        os.unlink(path)
        found = os.fstat(fd)
        equal("links", found.st_nlink, 0)
        equal("inode", found.st_ino, number)
        equal("ctime not back", found.st_ctime_ns >= tick_free, True)
        equal("read", os.pread(fd, 100, 0), b"before")
        os.pwrite(fd, b"after, longer", 0)
        equal("size", os.fstat(fd).st_size, 13)
        os.fchmod(fd, 0o4711)
        equal("mode", mode_of(fd), 0o4711)
        os.fchown(fd, 1000, 1001)
        equal("owner", owner_of(fd), (1000, 1001))
        futimens(fd, (5, 6), (7, 8))
        equal(
            "times",
            (os.fstat(fd).st_atime_ns, os.fstat(fd).st_mtime_ns),
            (5 * 10**9 + 6, 7 * 10**9 + 8),
        )
        os.ftruncate(fd, 5)
        equal("truncated", os.pread(fd, 100, 0), b"after")
        os.ftruncate(fd, 10_000)
        with mmap.mmap(fd, 10_000) as area:
            area[9_000:9_004] = b"high"
            area.flush()
        equal("mapped", os.pread(fd, 4, 9_000), b"high")
        os.fsync(fd)
        file(path, data=b"another")
        equal("links of the old", os.fstat(fd).st_nlink, 0)
        equal("links of the new", os.stat(path).st_nlink, 1)
        equal("the new one is another", content(path), b"another")
        equal("the old one is still there", os.pread(fd, 5, 0), b"after")


def check_unlinked_special_and_read_only(d: str) -> None:
    path = file(f"{d}/file", 0o444, data=b"text")
    with descriptor(path) as fd:
        os.unlink(path)
        equal("read", os.read(fd, 10), b"text")
        calls(call("EINVAL", os.ftruncate, fd, 0), call("EBADF", os.write, fd, b"x"))
        os.fchmod(fd, 0o600)
        equal("mode", mode_of(fd), 0o600)
    os.mkfifo(f"{d}/fifo")
    with descriptor(f"{d}/fifo", os.O_RDWR) as fd:
        os.unlink(f"{d}/fifo")
        os.write(fd, b"through")
        equal("fifo", os.read(fd, 10), b"through")
        equal("links", os.fstat(fd).st_nlink, 0)


def check_one_of_two_names_goes(d: str) -> None:
    path = file(f"{d}/file", data=b"text")
    os.link(path, f"{d}/other")
    with descriptor(path, os.O_RDWR) as fd:
        os.unlink(path)
        equal("links", os.fstat(fd).st_nlink, 1)
        os.pwrite(fd, b"TEXT", 0)
        equal("by the other name", content(f"{d}/other"), b"TEXT")
        os.fchmod(fd, 0o611)
        equal("mode by the other name", mode_of(f"{d}/other"), 0o611)
        os.link(f"{d}/other", path)
        equal("links", os.fstat(fd).st_nlink, 2)
        os.unlink(f"{d}/other")
        os.unlink(path)
        equal("links", os.fstat(fd).st_nlink, 0)


def check_name_looked_up_later_than_the_one_that_goes(d: str) -> None:
    # Caches that last for a second know the second name, and not the first, when that is removed.
    first, second = file(f"{d}/first"), f"{d}/second"
    time.sleep(0.7)
    os.link(first, second)
    time.sleep(0.5)
    os.unlink(first)
    equal("links", os.lstat(second).st_nlink, 1)
