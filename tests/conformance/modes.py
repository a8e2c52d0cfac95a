"""chmod, access and what permission bits allow."""

import os
import stat
from functools import partial

from tests.conformance.tools import (
    ALICE,
    MAKERS,
    NOBODY,
    call,
    calls,
    descriptor,
    equal,
    file,
    make,
    mode_of,
    outcome,
    rejected,
    run,
    stamps,
)


def check_chmod_sets_every_mode(d: str) -> None:
    for kind in MAKERS:
        if kind == "symlink":
            continue
        path = make(kind, f"{d}/{kind}")
        for mode in (
            0o000,
            0o111,
            0o222,
            0o444,
            0o640,
            0o755,
            0o777,
            0o1777,
            0o2755,
            0o4755,
            0o7777,
        ):
            os.chmod(path, mode)
            equal(f"chmod {mode:o} of {kind}", mode_of(path), mode)
            equal(f"type of {kind} after chmod", os.lstat(path).st_mode & ~0o7777, _type(kind))


def _type(kind: str) -> int:
    return {
        "regular": stat.S_IFREG,
        "dir": stat.S_IFDIR,
        "fifo": stat.S_IFIFO,
        "block": stat.S_IFBLK,
        "char": stat.S_IFCHR,
        "socket": stat.S_IFSOCK,
    }[kind]


def check_chmod_follows_symlinks(d: str) -> None:
    file(f"{d}/target", 0o644)
    os.symlink("target", f"{d}/link")
    os.chmod(f"{d}/link", 0o600)
    equal("mode of the target", mode_of(f"{d}/target"), 0o600)
    equal("mode of the link", mode_of(f"{d}/link"), 0o777)
    os.symlink("nothing", f"{d}/dangling")
    calls(call("ENOENT", os.chmod, f"{d}/dangling", 0o600))


def check_chmod_stamps(d: str) -> None:
    for kind in ("regular", "dir", "fifo", "socket", "block", "char"):
        path = make(kind, f"{d}/{kind}", ALICE)
        stamps(f"chmod {kind}", partial(os.chmod, path, 0o711), {path: "c", d: ""})
        stamps(f"same chmod {kind}", partial(os.chmod, path, 0o711), {path: "c"})
        refused = rejected(partial(run, NOBODY, os.chmod, path, 0o777), "EPERM")
        stamps(f"refused chmod {kind}", refused, {path: ""})
        equal(f"mode after a refused chmod of {kind}", mode_of(path), 0o711)


def check_fchmod(d: str) -> None:
    path = file(f"{d}/file", 0o644, ALICE)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        with descriptor(path, flags) as fd:
            os.fchmod(fd, 0o751)
            equal("by path", mode_of(path), 0o751)
            equal("by descriptor", mode_of(fd), 0o751)
            calls(call("EPERM", os.fchmod, fd, 0o777), by=NOBODY)
            calls(call("ok", os.fchmod, fd, 0o640), by=ALICE)
            equal("by path", mode_of(path), 0o640)
    with descriptor(path, os.O_PATH) as fd:
        calls(call("EBADF", os.fchmod, fd, 0o777))
        os.chmod(f"/proc/self/fd/{fd}", 0o600)
        equal("through /proc", mode_of(path), 0o600)
    with descriptor(d, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fchmod(fd, 0o755)
        equal("directory", mode_of(d), 0o755)


def check_descriptor_keeps_its_rights(d: str) -> None:
    path = file(f"{d}/file", 0o600, ALICE, b"before")

    def work() -> bytes:
        with descriptor(path, os.O_RDWR) as fd:
            os.fchmod(fd, 0o000)
            os.pwrite(fd, b"after!", 0)
            refused = outcome(os.open, path, os.O_RDONLY)
            return os.pread(fd, 100, 0) + refused.encode()

    equal("open descriptor of a file with mode 0", run(ALICE, work), b"after!EACCES")

    def create_without_rights() -> int:
        with descriptor(f"{d}/new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o000) as fd:
            return os.write(fd, b"12345")

    equal("write to a new file of mode 0", run(ALICE, create_without_rights), 5)
    equal("its mode", mode_of(f"{d}/new"), 0)
