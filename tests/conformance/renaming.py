"""rename and renameat2."""

import os
import stat
from functools import partial
from itertools import product

from tests.conformance.tools import (
    ALICE,
    MAKERS,
    NON_DIRECTORIES,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    ROOT,
    call,
    calls,
    content,
    descriptor,
    equal,
    file,
    folder,
    make,
    outcome,
    rejected,
    remove,
    renameat2,
    run,
    stamps,
)


def _look(path: str) -> tuple[int, int, int, int]:
    found = os.lstat(path)
    return found.st_ino, found.st_mode, found.st_uid, found.st_nlink


def check_to_a_new_name(d: str) -> None:
    other = folder(f"{d}/other")
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}", ALICE)
        before = _look(path)
        for old, new in ((path, f"{d}/new"), (f"{d}/new", f"{other}/new"), (f"{other}/new", path)):
            os.rename(old, new)
            equal(f"{kind} at its new name", _look(new), before)
            calls(call("ENOENT", os.lstat, old))
        calls(call("ENOENT", os.rename, f"{d}/missing", path))


def check_over_every_type(d: str) -> None:
    for old_kind, new_kind in product(MAKERS, MAKERS):
        old, new = make(old_kind, f"{d}/old"), make(new_kind, f"{d}/new")
        moved, kept = _look(old), _look(new)
        if (old_kind == "dir") == (new_kind == "dir"):
            want = "ok"
        else:
            want = "ENOTDIR" if old_kind == "dir" else "EISDIR"
        calls(call(want, os.rename, old, new), label=f"{old_kind} over {new_kind}")
        equal(f"{old_kind} over {new_kind}", _look(new), moved if want == "ok" else kept)
        if want == "ok":
            calls(call("ENOENT", os.lstat, old))
        else:
            equal("the old one stays", _look(old), moved)
            remove(old)
        remove(new)


def check_directory_over_directory(d: str) -> None:
    for kind in MAKERS:
        old, new = folder(f"{d}/old"), folder(f"{d}/new")
        make(kind, f"{new}/entry")
        file(f"{old}/file", data=b"inner")
        calls(call("ENOTEMPTY", os.rename, old, new), label=f"holding {kind}")
        remove(f"{new}/entry")
        calls(call("ok", os.rename, old, new))
        equal("moved with its content", content(f"{new}/file"), b"inner")
        os.unlink(f"{new}/file")
        os.rmdir(new)


def check_to_itself_and_below_itself(d: str) -> None:
    path = folder(f"{d}/a")
    os.makedirs(f"{path}/b/c")
    stamps("to itself", lambda: os.rename(path, path), {path: "", d: ""})
    calls(
        call("EINVAL", os.rename, path, f"{path}/new"),
        call("EINVAL", os.rename, path, f"{path}/b/c/new"),
        call("EINVAL", os.rename, path, f"{path}/b"),
        call("ENOTEMPTY", os.rename, f"{path}/b", path),
        call("ENOTEMPTY", os.rename, f"{path}/b/c", path),
        call("EBUSY", os.rename, f"{path}/.", f"{d}/new"),
        call("EBUSY", os.rename, f"{path}/..", f"{d}/new"),
        call("EBUSY", os.rename, path, f"{path}/b/."),
        call("EBUSY", os.rename, path, f"{path}/b/.."),
        call("EXDEV", os.rename, path, "/proc/new"),
    )


def check_two_names_of_one_file(d: str) -> None:
    """Renaming a name over another name of the same file does nothing."""
    path = file(f"{d}/first")
    os.link(path, f"{d}/second")
    os.rename(path, f"{d}/second")
    equal("both there", sorted(os.listdir(d)), ["first", "second"])
    equal("links", os.stat(path).st_nlink, 2)
    file(f"{d}/third")
    os.rename(path, f"{d}/third")
    equal("links", os.stat(f"{d}/third").st_nlink, 2)
    file(f"{d}/fourth")
    os.rename(f"{d}/fourth", f"{d}/second")
    equal("links of the one left", os.stat(f"{d}/third").st_nlink, 1)


def check_stamps(d: str) -> None:
    one, two = folder(f"{d}/one"), folder(f"{d}/two")
    for kind in MAKERS:
        make(kind, f"{one}/{kind}")
        old, new = f"{one}/{kind}", f"{two}/{kind}"
        before = os.lstat(old)
        stamps(f"rename {kind}", partial(os.rename, old, new), {one: "mc", two: "mc", d: ""})
        after = os.lstat(new)
        equal(f"mtime of {kind}", after.st_mtime_ns, before.st_mtime_ns)
        equal(f"ctime of {kind} moves", after.st_ctime_ns > before.st_ctime_ns, True)
        stamps(
            f"missing next to {kind}",
            rejected(partial(os.rename, f"{one}/missing", new), "ENOENT"),
            {new: "", one: "", two: ""},
        )
    file(f"{one}/x")
    stamps("within", lambda: os.rename(f"{one}/x", f"{one}/y"), {one: "mc", two: "", d: ""})


def check_links_of_the_parents(d: str) -> None:
    one, two = folder(f"{d}/one"), folder(f"{d}/two")

    def links() -> tuple[int, int]:
        return os.stat(one).st_nlink, os.stat(two).st_nlink

    os.mkdir(f"{one}/child")
    equal("before", links(), (3, 2))
    os.rename(f"{one}/child", f"{two}/child")
    equal("moved", links(), (2, 3))
    equal("its parent", os.stat(f"{two}/child/..").st_ino, os.stat(two).st_ino)
    os.mkdir(f"{one}/child")
    os.rename(f"{one}/child", f"{two}/child")
    equal("replaced", links(), (2, 3))
    file(f"{one}/file")
    renameat2(f"{one}/file", f"{two}/child", RENAME_EXCHANGE)
    equal("exchanged with a file", links(), (3, 2))


def check_replaced_file_loses_a_link(d: str) -> None:
    for kind in NON_DIRECTORIES:
        new = make(kind, f"{d}/new")
        os.link(new, f"{d}/second", follow_symlinks=False)
        file(f"{d}/old")
        stamps(f"over {kind}", partial(os.rename, f"{d}/old", new), {f"{d}/second": "c"})
        equal(f"links of {kind}", os.lstat(f"{d}/second").st_nlink, 1)
        os.unlink(new)
        os.unlink(f"{d}/second")


def check_replaced_open_file(d: str) -> None:
    path = file(f"{d}/file", data=b"old")
    file(f"{d}/new", data=b"new!")
    with descriptor(path, os.O_RDWR) as fd:
        os.rename(f"{d}/new", path)
        equal("links", os.fstat(fd).st_nlink, 0)
        equal("old", os.pread(fd, 10, 0), b"old")
        os.pwrite(fd, b"OLDER", 0)
        equal("new", content(path), b"new!")
        os.fchmod(fd, 0o600)
        equal("mode of the new", stat.S_IMODE(os.stat(path).st_mode), 0o644)


def check_renamed_open_file(d: str) -> None:
    path = file(f"{d}/file", data=b"text")
    os.mkdir(f"{d}/deep")
    with descriptor(path, os.O_RDWR | os.O_APPEND) as fd:
        os.rename(path, f"{d}/deep/renamed")
        os.write(fd, b" and more")
        os.fchmod(fd, 0o640)
        equal("through the new name", content(f"{d}/deep/renamed"), b"text and more")
        equal("mode", stat.S_IMODE(os.stat(f"{d}/deep/renamed").st_mode), 0o640)
        equal("links", os.fstat(fd).st_nlink, 1)
        equal("path of the descriptor", os.readlink(f"/proc/self/fd/{fd}"), f"{d}/deep/renamed")


def check_directory_in_use(d: str) -> None:
    """Open children, open directories and working directories survive a rename."""
    os.makedirs(f"{d}/a/b/c")
    file(f"{d}/a/b/c/file", data=b"text")

    def work() -> None:
        os.chdir(f"{d}/a/b/c")
        with descriptor("file", os.O_RDWR) as fd, descriptor("..", os.O_DIRECTORY) as parent:
            os.rename(f"{d}/a", f"{d}/z")
            os.mkdir(f"{d}/a")
            equal("cwd", os.getcwd(), f"{d}/z/b/c")
            equal("list", os.listdir(parent), ["c"])
            os.rename(f"{d}/z/b", f"{d}/a/bb")
            equal("cwd", os.getcwd(), f"{d}/a/bb/c")
            os.pwrite(fd, b"TEXT", 0)
            equal("relative", content("file"), b"TEXT")
            file("new", data=b"made later")
            equal("by its path", content(f"{d}/a/bb/c/new"), b"made later")
            equal("openat", outcome(os.stat, "c/new", dir_fd=parent), "ok")
            equal("up", os.stat("../..").st_ino, os.stat(f"{d}/a").st_ino)
            equal("nothing left", os.listdir(f"{d}/z"), [])

    run(ROOT, work)


def check_noreplace(d: str) -> None:
    for old_kind, new_kind in product(("regular", "dir", "symlink"), MAKERS):
        old, new = make(old_kind, f"{d}/old"), make(new_kind, f"{d}/new")
        before = _look(old), _look(new)
        calls(
            call("EEXIST", renameat2, old, new, RENAME_NOREPLACE), label=f"{old_kind} to {new_kind}"
        )
        equal("both stay", (_look(old), _look(new)), before)
        remove(new)
        calls(call("ok", renameat2, old, new, RENAME_NOREPLACE))
        equal("moved", (_look(new), os.path.lexists(old)), (before[0], False))
        remove(new)
    path = file(f"{d}/file")
    calls(call("EEXIST", renameat2, path, path, RENAME_NOREPLACE))
    calls(call("ENOENT", renameat2, f"{d}/missing", f"{d}/new", RENAME_NOREPLACE))


def check_exchange(d: str) -> None:
    one, two = folder(f"{d}/one"), folder(f"{d}/two")
    for first, second in product(MAKERS, MAKERS):
        old, new = make(first, f"{one}/x"), make(second, f"{two}/y")
        before = _look(old), _look(new)
        stamps(
            f"exchange {first} and {second}",
            partial(renameat2, old, new, RENAME_EXCHANGE),
            {one: "mc", two: "mc", d: ""},
        )
        equal(f"exchanged {first} and {second}", (_look(new), _look(old)), before)
        remove(old)
        remove(new)


def check_exchange_errors(d: str) -> None:
    path = folder(f"{d}/a")
    os.makedirs(f"{path}/b")
    file(f"{path}/full")
    file(f"{d}/file", data=b"file")
    calls(
        call("ENOENT", renameat2, path, f"{d}/missing", RENAME_EXCHANGE),
        call("ENOENT", renameat2, f"{d}/missing", path, RENAME_EXCHANGE),
        call("EINVAL", renameat2, path, f"{path}/b", RENAME_EXCHANGE),
        call("EINVAL", renameat2, f"{path}/b", path, RENAME_EXCHANGE),
        call("EINVAL", renameat2, path, f"{d}/file", RENAME_EXCHANGE | RENAME_NOREPLACE),
        call("EINVAL", renameat2, path, f"{d}/file", 1 << 10),
        call("ok", renameat2, path, f"{d}/file", RENAME_EXCHANGE),
    )
    equal("full directory under the file's name", sorted(os.listdir(f"{d}/file")), ["b", "full"])
    equal("file under the directory's name", content(path), b"file")
    with descriptor(path) as fd:
        renameat2(path, f"{d}/file", RENAME_EXCHANGE)
        equal("descriptor", os.read(fd, 9), b"file")


def check_save_by_rename(d: str) -> None:
    """Saving as editors do: readers see the old or the new text, never a part."""
    path = file(f"{d}/file", data=b"0")
    for number in range(100):
        with open(f"{d}/file.tmp", "wb") as stream:
            stream.write(b"%d" % number * (number + 1))
        os.rename(f"{d}/file.tmp", path)
        equal("text", content(path), b"%d" % number * (number + 1))
        equal("size", os.stat(path).st_size, len(b"%d" % number * (number + 1)))
    equal("alone", os.listdir(d), ["file"])
