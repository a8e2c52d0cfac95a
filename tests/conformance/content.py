"""Data: offsets, appending, truncation, holes, copies, synchronous and direct I/O."""

import mmap
import os
import shutil
import threading

from tests.conformance.tools import ALICE, call, calls, content, descriptor, equal, file, folder

RDWR_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
GIB = 1 << 30


def _pattern(size: int, seed: int = 0) -> bytes:
    block = bytes((number * 7 + seed) % 251 for number in range(251))
    return (block * (size // 251 + 1))[:size]


def check_sizes_round_trip(d: str) -> None:
    for size in (0, 1, 511, 4095, 4096, 4097, 65_536, 131_071, 131_073, 1_048_576, 3_000_001):
        data = _pattern(size, size)
        path = file(f"{d}/{size}", data=data)
        equal(f"{size} back", content(path) == data, True)
        equal("size", os.stat(path).st_size, size)
        with descriptor(path) as fd:
            equal("past the end", os.pread(fd, 10, size), b"")
            equal("tail", os.pread(fd, 10, max(size - 3, 0)), data[max(size - 3, 0) :][:10])


def check_offsets(d: str) -> None:
    with descriptor(f"{d}/file", RDWR_NEW) as fd:
        equal("write", os.write(fd, b"0123456789"), 10)
        equal("position", os.lseek(fd, 0, os.SEEK_CUR), 10)
        equal("pwrite", os.pwrite(fd, b"ABC", 2), 3)
        equal("position stays", os.lseek(fd, 0, os.SEEK_CUR), 10)
        equal("pread", os.pread(fd, 4, 1), b"1ABC")
        equal("end", os.lseek(fd, -3, os.SEEK_END), 7)
        equal("read", os.read(fd, 100), b"789")
        equal("at the end", os.read(fd, 100), b"")
        equal("beyond", os.lseek(fd, 100, os.SEEK_SET), 100)
        equal("read beyond", os.read(fd, 1), b"")
        os.write(fd, b"!")
        equal("hole", os.pread(fd, 200, 9), b"9" + bytes(90) + b"!")
        calls(call("EINVAL", os.lseek, fd, -1, os.SEEK_SET), call("EINVAL", os.pread, fd, 1, -1))
        equal("vectors", os.pwritev(fd, [b"ab", b"", b"cdef"], 0), 6)
        parts = [bytearray(3), bytearray(3)]
        equal("vectors back", (os.preadv(fd, parts, 0), *map(bytes, parts)), (6, b"abc", b"def"))


def check_overlapping_writes(d: str) -> None:
    want = bytearray(40_000)
    with descriptor(f"{d}/file", RDWR_NEW) as fd:
        os.ftruncate(fd, len(want))
        for number in range(200):
            at, size = (number * 7919) % 35_000, (number * 613) % 5_000
            data = _pattern(size, number)
            want[at : at + size] = data
            os.pwrite(fd, data, at)
            if number % 20 == 0:
                equal("so far", os.pread(fd, len(want), 0) == bytes(want), True)
    equal("at the end", content(f"{d}/file") == bytes(want), True)


def check_beyond_4_gib(d: str) -> None:
    places = (2 * GIB - 2, 4 * GIB - 2, 4 * GIB + 5, 5 * GIB, 100 * GIB)
    path = f"{d}/file"
    with descriptor(path, RDWR_NEW) as fd:
        for number, place in enumerate(places):
            equal("write", os.pwrite(fd, b"mark%d" % number, place), 5)
        equal("size", os.fstat(fd).st_size, 100 * GIB + 5)
    with descriptor(path) as fd:
        for number, place in enumerate(places):
            equal("read", os.pread(fd, 5, place), b"mark%d" % number)
        equal("hole", os.pread(fd, 3, 3 * GIB), bytes(3))
        equal("seek", os.lseek(fd, -5, os.SEEK_END), 100 * GIB)
    found = os.stat(path)
    equal("sparse", found.st_blocks * 512 < 1_000_000, True)
    equal("not empty", found.st_blocks > 0, True)
    os.truncate(path, 4 * GIB + 6)
    equal("truncated", os.stat(path).st_size, 4 * GIB + 6)


def check_truncate(d: str) -> None:
    path = file(f"{d}/file", 0o644, ALICE, _pattern(10_000))
    for size in (5_000, 5_001, 0, 1, 4096, 100_000, 3):
        before = content(path)
        os.truncate(path, size)
        equal(f"to {size}", content(path) == (before + bytes(100_000))[:size], True)
        equal("size", os.stat(path).st_size, size)
    with descriptor(path, os.O_RDWR) as fd:
        for size in (10, 3, 70_000, 0):
            os.ftruncate(fd, size)
            equal("size", (os.fstat(fd).st_size, os.stat(path).st_size), (size, size))
        calls(call("EINVAL", os.ftruncate, fd, -1))
    with descriptor(path, os.O_RDONLY) as fd:
        calls(call("EINVAL", os.ftruncate, fd, 0))
    folder(f"{d}/folder")
    calls(
        call("EISDIR", os.truncate, f"{d}/folder", 0),
        call("EINVAL", os.truncate, path, -1),
        call("ENOENT", os.truncate, f"{d}/missing", 0),
        call("EFBIG", os.truncate, path, 2**62),
    )
    os.mkfifo(f"{d}/fifo")
    calls(call("EINVAL", os.truncate, f"{d}/fifo", 0))


def check_truncation_zeroes_the_tail(d: str) -> None:
    """Bytes that were cut off do not come back when the file grows again, cached or not."""
    path = file(f"{d}/file", data=b"s" * 9_000)
    with descriptor(path, os.O_RDWR) as fd, mmap.mmap(fd, 9_000) as area:
        equal("cached", area[8_999], ord("s"))
        os.ftruncate(fd, 100)
        os.ftruncate(fd, 9_000)
        equal("read", os.pread(fd, 9_000, 0) == b"s" * 100 + bytes(8_900), True)
        equal("mapped", area[:] == b"s" * 100 + bytes(8_900), True)
        os.ftruncate(fd, 100)
        os.pwrite(fd, b"e", 5_000)
        equal("hole", os.pread(fd, 9_000, 0) == b"s" * 100 + bytes(4_900) + b"e", True)


def check_append(d: str) -> None:
    path = file(f"{d}/file", data=b"start")
    with descriptor(path, os.O_RDWR | os.O_APPEND) as end, descriptor(path, os.O_RDWR) as fd:
        os.write(end, b"+1")
        equal("position", os.lseek(end, 0, os.SEEK_CUR), 7)
        os.pwrite(fd, b"++far", 20)
        os.lseek(end, 0, os.SEEK_SET)
        os.write(end, b"+2")
        equal("after another writer", content(path), b"start+1" + bytes(13) + b"++far+2")
        os.ftruncate(fd, 5)
        os.write(end, b"+3")
        equal("after truncation", content(path), b"start+3")
        os.pwrite(fd, b"S", 0)
        equal("read through it", os.pread(end, 100, 0), b"Start+3")


def check_two_appenders(d: str) -> None:
    """Two processes append records; none is lost, torn or overwritten."""
    path = file(f"{d}/log", 0o666)
    count, width = 300, 100

    def write(letter: bytes) -> None:
        with descriptor(path, os.O_WRONLY | os.O_APPEND) as fd:
            for number in range(count):
                os.write(fd, letter + b"%05d" % number + letter * (width - 7) + b"\n")

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    child = os.fork()
    if child == 0:
        try:
            write(b"c")
        finally:
            os._exit(0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.waitpid(child, 0)
    records = content(path).split(b"\n")[:-1]
    equal("records", len(records), 3 * count)
    for letter in (b"a", b"b", b"c"):
        own = [record for record in records if record.startswith(letter)]
        want = [letter + b"%05d" % n + letter * (width - 7) for n in range(count)]
        equal(f"in order {letter!r}", own, want)


def check_append_beside_a_mapping(d: str) -> None:
    """Pages that a mapping dirties are written back at their place, never at the end."""
    path = file(f"{d}/file", data=bytes(8192))
    with descriptor(path, os.O_RDWR | os.O_APPEND) as end, descriptor(path, os.O_RDWR) as fd:
        with mmap.mmap(end, 8192) as area, mmap.mmap(fd, 8192) as second:
            for number in range(20):
                area[number] = 65 + number
                second[4096 + number] = 97 + number
                os.write(end, b"%02d" % number)
                if number % 3 == 0:
                    area.flush()
                if number % 4 == 0:
                    os.fsync(end)
    appended = b"".join(b"%02d" % number for number in range(20))
    first, third = bytes(range(65, 85)), bytes(range(97, 117))
    want = first + bytes(4096 - 20) + third + bytes(4096 - 20) + appended
    equal("size", os.stat(path).st_size, len(want))
    equal("data", content(path) == want, True)


def check_synchronous_writes(d: str) -> None:
    for flag in (os.O_SYNC, os.O_DSYNC, os.O_SYNC | os.O_APPEND):
        path = f"{d}/{flag}"
        with descriptor(path, os.O_RDWR | os.O_CREAT | flag) as fd:
            for _ in range(3):
                os.write(fd, b"0123456789")
            equal("read", os.pread(fd, 100, 0), b"0123456789" * 3)


def check_direct_io(d: str) -> None:
    path = file(f"{d}/file", data=_pattern(16_384))
    with descriptor(path, os.O_RDWR | os.O_DIRECT) as fd, mmap.mmap(-1, 8192) as buffer:
        equal("read", os.preadv(fd, [buffer], 4096), 8192)
        equal("data", buffer[:] == _pattern(16_384)[4096 : 4096 + 8192], True)
        buffer[:] = b"D" * 8192
        equal("write", os.pwritev(fd, [buffer], 8192), 8192)
        equal("seen by cached readers", content(path)[8192:] == b"D" * 8192, True)
        equal("write at the end", os.pwritev(fd, [buffer], 16_384), 8192)
        equal("size", os.stat(path).st_size, 24_576)
        with descriptor(path, os.O_WRONLY) as cached:
            os.pwrite(cached, b"c" * 4096, 0)
        os.preadv(fd, [buffer], 0)
        equal("sees cached writes", buffer[:4096] == b"c" * 4096, True)


def check_copies(d: str) -> None:
    data = _pattern(300_000)
    source = file(f"{d}/source", data=data)
    with descriptor(source) as inp:
        with descriptor(f"{d}/range", RDWR_NEW) as out:
            copied = 0
            while copied < len(data):
                step = os.copy_file_range(inp, out, len(data) - copied, copied, copied)
                equal("copy_file_range moves on", step > 0, True)
                copied += step
            equal("at the end", os.copy_file_range(inp, out, 10, len(data)), 0)
        with descriptor(f"{d}/sendfile", RDWR_NEW) as out:
            sent = 0
            while sent < len(data):
                sent += os.sendfile(out, inp, sent, len(data) - sent)
    shutil.copy2(source, f"{d}/copy2")
    for name in ("range", "sendfile", "copy2"):
        equal(name, content(f"{d}/{name}") == data, True)
        equal(f"size of {name}", os.stat(f"{d}/{name}").st_size, len(data))
    equal("time of copy2", os.stat(f"{d}/copy2").st_mtime_ns, os.stat(source).st_mtime_ns)
    with descriptor(source, os.O_RDWR) as fd:
        os.copy_file_range(fd, fd, 1000, 0, 200_000)
        equal("within one file", os.pread(fd, 1000, 200_000) == data[:1000], True)


def check_fsync(d: str) -> None:
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        with descriptor(file(f"{d}/file", data=b"text"), flags) as fd:
            calls(call("ok", os.fsync, fd), call("ok", os.fdatasync, fd))
    with descriptor(d, os.O_RDONLY | os.O_DIRECTORY) as fd:
        calls(call("ok", os.fsync, fd), call("ok", os.fdatasync, fd))
    with descriptor(d, os.O_PATH) as fd:
        calls(call("EBADF", os.fsync, fd))


def check_blocks(d: str) -> None:
    path = file(f"{d}/file", data=b"x" * 100_000)
    with descriptor(path) as fd:
        os.fsync(fd)
    found = os.stat(path)
    equal("blocks", 100_000 <= found.st_blocks * 512 < 1_000_000, True)
    equal("block size", found.st_blksize >= 512, True)
    with descriptor(f"{d}/hole", RDWR_NEW) as fd:
        os.ftruncate(fd, 10 * GIB)
        equal("hole", (os.fstat(fd).st_size, os.fstat(fd).st_blocks < 100), (10 * GIB, True))
