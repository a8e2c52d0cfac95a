"""utimensat and what else moves the time stamps."""

import os
import time
from functools import partial
from itertools import pairwise

from tests.conformance.tools import (
    ALICE,
    MAKERS,
    NOBODY,
    NOW,
    OMIT,
    Moment,
    call,
    calls,
    descriptor,
    equal,
    file,
    folder,
    futimens,
    make,
    stamps,
    tick,
    utimensat,
)

SECOND = 1_000_000_000
WHENS: tuple[Moment, ...] = (
    (0, 0),
    (1, 1),
    (1_000_000_000, 123_456_789),
    (1_000_000_000, 999_999_999),
    (-1, 0),
    (-1, 999_999_999),
    (-(2**31), 0),
    (2**31 - 1, 999_999_999),
    (2**31, 5),
    (2**32, 7),
    (2**32 + 2**31, 0),
    (15_000_000_000, 1),
)
"""From 1901 to 2445, what an ext4 inode can hold."""


def _times(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_atime_ns, found.st_mtime_ns


def _ns(moment: Moment) -> int:
    return moment[0] * SECOND + moment[1]


def check_exact_times(d: str) -> None:
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}")
        for access, modification in zip(WHENS, reversed(WHENS), strict=True):
            utimensat(path, access, modification, follow=False)
            equal(f"{kind} {access} {modification}", _times(path), (_ns(access), _ns(modification)))


def check_omit_and_now(d: str) -> None:
    some: Moment = (1_000_000_000, 5)
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}")
        for access, modification in (
            (OMIT, some), (some, OMIT), (OMIT, OMIT), (NOW, NOW), (NOW, OMIT), (OMIT, NOW),
            (NOW, some), (some, NOW), (some, some),
        ):  # fmt: skip
            utimensat(path, (7, 7), (8, 8), follow=False)
            start = time.clock_gettime_ns(5)
            utimensat(path, access, modification, follow=False)
            for name, got, asked, old in zip(
                ("atime", "mtime"),
                _times(path),
                (access, modification),
                (7 * SECOND + 7, 8 * SECOND + 8),
                strict=True,
            ):
                label = f"{name} of {kind} after {access} {modification}"
                if asked == NOW:
                    equal(label + " is now", start <= got <= time.time_ns(), True)
                else:
                    equal(label, got, old if asked == OMIT else _ns(asked))


def check_follows_unless_told(d: str) -> None:
    path = file(f"{d}/file")
    os.symlink("file", f"{d}/link")
    utimensat(path, (1, 0), (2, 0))
    utimensat(f"{d}/link", (3, 0), (4, 0), follow=False)
    equal("target", _times(path), (1 * SECOND, 2 * SECOND))
    equal("link", _times(f"{d}/link"), (3 * SECOND, 4 * SECOND))
    utimensat(f"{d}/link", (5, 0), (6, 0))
    equal("target", _times(path), (5 * SECOND, 6 * SECOND))
    equal("link mtime", _times(f"{d}/link")[1], 4 * SECOND)


def check_stamps_of_utimensat(d: str) -> None:
    for kind in ("regular", "dir", "symlink", "fifo"):
        path = make(kind, f"{d}/{kind}")
        for access, modification, moved in (
            ((1, 0), OMIT, "c"),
            (OMIT, NOW, "mc"),
            (NOW, OMIT, "c"),
            (OMIT, OMIT, ""),
        ):
            stamps(
                f"utimensat {kind} {access} {modification}",
                partial(utimensat, path, access, modification, follow=False),
                {path: moved, d: ""},
            )


def check_futimens(d: str) -> None:
    path = file(f"{d}/file", 0o644, ALICE)
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with descriptor(path, flags) as fd:
            for access, modification in pairwise(WHENS):
                futimens(fd, access, modification)
                equal("times", _times(path), (_ns(access), _ns(modification)))
            futimens(fd, OMIT, (9, 9))
            equal("omit", _times(path), (_ns(WHENS[-2]), 9 * SECOND + 9))
            calls(call("EPERM", futimens, fd, (1, 0), (1, 0)), by=NOBODY)


def check_set_time_survives(d: str) -> None:
    """tar, cp -p, make and git depend on it: a time set last stays after close and reopen."""
    path = f"{d}/file"
    with descriptor(path, os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"text")
        futimens(fd, (11, 12), (13, 14))
        os.fchmod(fd, 0o600)
        os.fchown(fd, 1000, 1000)
    tick()
    equal("after close", os.lstat(path).st_mtime_ns, 13 * SECOND + 14)
    with descriptor(path) as fd:
        equal("after open", os.fstat(fd).st_mtime_ns, 13 * SECOND + 14)
        os.fsync(fd)
        os.read(fd, 10)
    os.rename(path, f"{d}/renamed")
    equal("after rename", os.lstat(f"{d}/renamed").st_mtime_ns, 13 * SECOND + 14)
    folder(f"{d}/folder")
    utimensat(f"{d}/folder", (1, 0), (2, 0))
    equal("folder", os.lstat(f"{d}/folder").st_mtime_ns, 2 * SECOND)


def check_stamps_of_data(d: str) -> None:
    path = file(f"{d}/file", data=b"some text")
    with descriptor(path, os.O_RDWR) as fd, descriptor(path, os.O_WRONLY | os.O_APPEND) as end:
        stamps("write", lambda: os.write(fd, b"X"), {path: "mc", d: ""})
        stamps("append", lambda: os.write(end, b"X"), {path: "mc", d: ""})
        stamps("ftruncate", lambda: os.ftruncate(fd, 3), {path: "mc", d: ""})
        stamps("ftruncate to the same size", lambda: os.ftruncate(fd, 3), {path: "mc"})
        stamps("read", lambda: os.pread(fd, 3, 0), {path: "", d: ""})
        stamps("empty write", lambda: os.write(fd, b""), {path: ""})
        stamps("fsync", lambda: os.fsync(fd), {path: ""})
    stamps("truncate", lambda: os.truncate(path, 100), {path: "mc", d: ""})
    stamps("truncate to the same size", lambda: os.truncate(path, 100), {path: "mc"})
    stamps("open for writing", lambda: calls(call("ok", os.open, path, os.O_RDWR)), {path: ""})
    stamps(
        "O_TRUNC of an empty file",
        lambda: calls(call("ok", os.open, file(f"{d}/e"), os.O_RDWR | os.O_TRUNC)),
        {d: "mc"},
    )
    stamps("list", lambda: os.listdir(d), {d: "", path: ""})


def check_a_copied_time_is_exact(d: str) -> None:
    """cp -p and rsync, of a file that is only moments old."""
    for number in range(60):
        source, copy = f"{d}/source{number}", f"{d}/copy{number}"
        file(source, data=b"x" * 100)
        file(copy, data=b"x" * 100)
        found = os.stat(source)
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
        equal("at once", _times(copy), (found.st_atime_ns, found.st_mtime_ns))
        utimensat(copy, OMIT, (found.st_ctime_ns // SECOND, found.st_ctime_ns % SECOND))
        equal("ctime as mtime", _times(copy)[1], found.st_ctime_ns)


def check_touched_file_is_not_newer_than_the_next(d: str) -> None:
    """ "now" and the time of a creation come from one clock."""
    for number in range(60):
        first, second = file(f"{d}/first{number}"), f"{d}/second{number}"
        os.utime(first)
        file(second)
        equal("order", os.stat(first).st_mtime_ns <= os.stat(second).st_mtime_ns, True)
        utimensat(first, NOW, NOW)
        with descriptor(second, os.O_WRONLY) as fd:
            os.write(fd, b"later")
        equal("written", os.stat(first).st_mtime_ns <= os.stat(second).st_mtime_ns, True)
