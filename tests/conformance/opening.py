"""open(2): flags, creation, errors."""

import fcntl
import os

from tests.conformance.tools import (
    ALICE,
    BOB,
    MAKERS,
    NOBODY,
    ROOT,
    User,
    call,
    calls,
    content,
    descriptor,
    equal,
    file,
    folder,
    make,
    mode_of,
    outcome,
    owner_of,
    stamps,
)

CREATE = os.O_WRONLY | os.O_CREAT
EXCLUSIVE = CREATE | os.O_EXCL


def check_mode_and_umask(d: str) -> None:
    for asked, umask, want in (
        (0o755, 0, 0o755),
        (0o151, 0, 0o151),
        (0o777, 0o022, 0o755),
        (0o666, 0o077, 0o600),
        (0o345, 0o070, 0o305),
        (0o501, 0o345, 0o400),
        (0o000, 0, 0),
        (0o1777, 0, 0o1777),
        (0o4755, 0, 0o4755),
        (0o6777, 0o022, 0o6755),
    ):
        calls(call("ok", os.open, f"{d}/file", CREATE, asked), by=ALICE, umask=umask)
        equal(f"open {asked:o} umask {umask:o}", oct(mode_of(f"{d}/file")), oct(want))
        equal("owner", owner_of(f"{d}/file"), (1000, 1000))
        os.unlink(f"{d}/file")


def check_mode_of_an_existing_file_stays(d: str) -> None:
    path = file(f"{d}/file", 0o640, ALICE, b"data")
    calls(call("ok", os.open, path, CREATE, 0o777))
    equal("mode", mode_of(path), 0o640)
    equal("owner", owner_of(path), (1000, 1000))
    equal("data", content(path), b"data")


def check_exclusive(d: str) -> None:
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}")
        calls(call("EEXIST", os.open, path, EXCLUSIVE))
        calls(call("EEXIST", os.open, path, EXCLUSIVE), by=ALICE)
    equal("nothing made behind a dangling link", os.path.lexists(f"{d}/nowhere"), False)
    calls(
        call("ok", os.open, f"{d}/fresh", EXCLUSIVE),
        call("EEXIST", os.open, f"{d}/fresh", EXCLUSIVE),
    )


def check_creation_through_a_dangling_symlink(d: str) -> None:
    os.symlink("target", f"{d}/link")
    calls(call("ok", os.open, f"{d}/link", CREATE, 0o600))
    equal("target", mode_of(f"{d}/target"), 0o600)
    os.symlink("missing/target", f"{d}/further")
    calls(call("ENOENT", os.open, f"{d}/further", CREATE, 0o600))


def check_truncation(d: str) -> None:
    path = file(f"{d}/file", 0o666, ALICE, b"0123456789")
    with descriptor(path) as other:
        stamps(
            "O_TRUNC",
            lambda: calls(call("ok", os.open, path, os.O_WRONLY | os.O_TRUNC)),
            {path: "mc"},
        )
        equal("size", os.fstat(other).st_size, 0)
        equal("read", os.read(other, 10), b"")
    os.chmod(path, 0o444)
    file(f"{d}/full", 0o444, ROOT, b"keep")
    calls(
        call("EACCES", os.open, f"{d}/full", os.O_RDONLY | os.O_TRUNC),
        call("EACCES", os.open, f"{d}/full", os.O_WRONLY | os.O_TRUNC),
        by=ALICE,
    )
    equal("kept", content(f"{d}/full"), b"keep")


def check_owner_and_group_of_new_files(d: str) -> None:
    for owner, mode, user, want in (
        (ROOT, 0o777, ALICE, (1000, 1000)),
        (User(0, 1001), 0o777, ALICE, (1000, 1000)),
        (User(0, 1001), 0o2777, ALICE, (1000, 1001)),
        (User(65534, 65533), 0o2777, ROOT, (0, 65533)),
        (User(1001, 1001), 0o2770, User(1000, 1000, (1001,)), (1000, 1001)),
        (User(0, 1001), 0o777, User(1000, 65533), (1000, 65533)),
    ):
        parent = folder(f"{d}/parent", mode, owner)
        calls(call("ok", os.open, f"{parent}/new", CREATE, 0o644), by=user)
        equal(f"in {mode:o} {owner} by {user}", owner_of(f"{parent}/new"), want)
        os.unlink(f"{parent}/new")
        os.rmdir(parent)


def check_set_gid_of_new_files(d: str) -> None:
    """In a set-gid directory of a foreign group, set-gid with group execution is dropped."""
    parent = folder(f"{d}/parent", 0o2777, User(0, 1001))
    for user, asked, want in (
        (ALICE, 0o2755, 0o755),
        (ALICE, 0o2745, 0o2745),
        (BOB, 0o2755, 0o2755),
        (User(1000, 1000, (1001,)), 0o2755, 0o2755),
        (ROOT, 0o2755, 0o2755),
    ):
        calls(call("ok", os.open, f"{parent}/new", CREATE, asked), by=user, umask=0)
        equal(f"{asked:o} by {user}", oct(mode_of(f"{parent}/new")), oct(want))
        os.unlink(f"{parent}/new")


def check_creation_stamps(d: str) -> None:
    stamps("create", lambda: os.close(os.open(f"{d}/new", EXCLUSIVE)), {d: "mc"})
    stamps(
        "create what is there",
        lambda: os.close(os.open(f"{d}/new", CREATE)),
        {d: "", f"{d}/new": ""},
    )
    stamps("exclusive", lambda: calls(call("EEXIST", os.open, f"{d}/new", EXCLUSIVE)), {d: ""})
    born = os.lstat(f"{d}/new")
    equal("one moment", born.st_mtime_ns, born.st_ctime_ns)
    equal("one moment", born.st_mtime_ns, born.st_atime_ns)


def check_directories(d: str) -> None:
    calls(
        call("ok", os.open, d, os.O_RDONLY),
        call("ok", os.open, d, os.O_RDONLY | os.O_DIRECTORY),
        call("EISDIR", os.open, d, os.O_WRONLY),
        call("EISDIR", os.open, d, os.O_RDWR),
        call("EISDIR", os.open, d, os.O_RDONLY | os.O_TRUNC),
        call("EISDIR", os.open, d, os.O_RDONLY | os.O_CREAT),
        call("EISDIR", os.open, d, os.O_WRONLY | os.O_TRUNC),
        call("EINVAL", os.open, d, os.O_RDONLY | os.O_CREAT | os.O_DIRECTORY),
    )
    with descriptor(d) as fd:
        calls(call("EISDIR", os.read, fd, 1), call("EBADF", os.write, fd, b"x"))
        calls(call("EINVAL", os.ftruncate, fd, 0))


def check_directory_and_nofollow_flags(d: str) -> None:
    folder(f"{d}/dir")
    file(f"{d}/regular", 0o644)
    for name in ("dir", "regular", "missing"):
        os.symlink(name, f"{d}/to-{name}")
    directory, nofollow = os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_NOFOLLOW
    calls(
        call("ENOTDIR", os.open, f"{d}/regular", directory),
        call("ok", os.open, f"{d}/to-dir", directory),
        call("ENOTDIR", os.open, f"{d}/to-regular", directory),
        call("ENOENT", os.open, f"{d}/to-missing", directory),
        call("ok", os.open, f"{d}/dir", nofollow),
        call("ok", os.open, f"{d}/regular", nofollow),
        call("ELOOP", os.open, f"{d}/to-regular", nofollow),
        call("ELOOP", os.open, f"{d}/to-dir", nofollow),
        call("ELOOP", os.open, f"{d}/to-missing", nofollow),
        call("ENOTDIR", os.open, f"{d}/to-dir", nofollow | os.O_DIRECTORY),
        call("ok", os.open, f"{d}/to-dir/.", nofollow),
        call("ok", os.open, f"{d}/to-regular", nofollow | os.O_PATH),
        call("ELOOP", os.open, f"{d}/to-missing", nofollow | os.O_CREAT),
        call("ENOTDIR", os.open, f"{d}/regular/", os.O_RDONLY),
        call("EISDIR", os.open, f"{d}/missing/", CREATE),
        call("ENOENT", os.open, f"{d}/missing", os.O_RDONLY),
        call("ENOENT", os.open, f"{d}/missing", os.O_WRONLY | os.O_TRUNC),
    )


def check_flags_of_the_description(d: str) -> None:
    path = file(f"{d}/file", 0o644, data=b"text")
    for flags in (
        os.O_RDONLY,
        os.O_WRONLY,
        os.O_RDWR,
        os.O_RDWR | os.O_APPEND,
        os.O_WRONLY | os.O_SYNC,
    ):
        with descriptor(path, flags) as fd:
            equal("F_GETFL", fcntl.fcntl(fd, fcntl.F_GETFL) & ~0o100000, flags)
            want = "EBADF" if flags & os.O_ACCMODE == os.O_WRONLY else "ok"
            equal("read", outcome(os.pread, fd, 1, 0), want)
            want = "EBADF" if flags & os.O_ACCMODE == os.O_RDONLY else "ok"
            equal("write", outcome(os.pwrite, fd, b"t", 0), want)
    with descriptor(path, os.O_RDWR) as fd:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"+end")
        equal("append set later", content(path)[-4:], b"+end")


def check_path_descriptors(d: str) -> None:
    inside = folder(f"{d}/dir")
    file(f"{inside}/file", 0o600, ALICE, b"data")
    with descriptor(f"{inside}/file", os.O_PATH) as fd:
        calls(
            call("EBADF", os.read, fd, 1),
            call("EBADF", os.ftruncate, fd, 1),
            call("ok", os.fstat, fd),
            call("ok", os.open, f"/proc/self/fd/{fd}", os.O_RDWR),
        )
        calls(call("EACCES", os.open, f"/proc/self/fd/{fd}", os.O_RDWR), by=NOBODY)
    with descriptor(inside, os.O_PATH) as fd:
        with open(
            "file", "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=fd)
        ) as stream:
            equal("openat", stream.read(), b"data")
        equal("fstatat", os.stat("file", dir_fd=fd).st_size, 4)


def check_new_file_is_seen_at_once(d: str) -> None:
    """A lookup that failed must not hide what is made next."""
    for user in (ROOT, ALICE):
        for number in range(20):
            path = f"{d}/{user.uid}-{number}"
            equal("missing", outcome(os.stat, path), "ENOENT")
            calls(call("ok", os.open, path, EXCLUSIVE), by=user)
            equal("there", outcome(os.stat, path), "ok")
            os.unlink(path)
            equal("gone", outcome(os.stat, path), "ENOENT")
