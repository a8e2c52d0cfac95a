"""mmap and exec."""

import mmap
import os
import shutil
import subprocess

from tests.conformance.tools import (
    ALICE,
    ROOT,
    content,
    descriptor,
    equal,
    file,
    folder,
    outcome,
    run,
    stamps,
)

PAGE = mmap.PAGESIZE


def check_shared_mapping_and_files(d: str) -> None:
    """read(2) reads what a shared mapping wrote, and the other way round."""
    path = file(f"{d}/file", data=bytes(3 * PAGE))
    with descriptor(path, os.O_RDWR) as fd, mmap.mmap(fd, 3 * PAGE) as area:
        for at in (0, 100, PAGE - 2, 2 * PAGE + 5):
            area[at : at + 4] = b"mmap"
            equal("same descriptor", os.pread(fd, 4, at), b"mmap")
            area.flush()
            equal("another descriptor", content(path)[at : at + 4], b"mmap")
            os.pwrite(fd, b"file", at)
            equal("mapping", area[at : at + 4], b"file")
        with open(path, "r+b") as stream:
            stream.seek(PAGE)
            stream.write(b"other")
        equal("other descriptor", area[PAGE : PAGE + 5], b"other")
    equal("after unmapping", content(path)[PAGE : PAGE + 5], b"other")


def check_unflushed_mapping_is_kept(d: str) -> None:
    path = file(f"{d}/file", data=bytes(PAGE))
    with descriptor(path, os.O_RDWR) as fd:
        area = mmap.mmap(fd, PAGE)
    area[10:14] = b"late"
    equal("before unmapping", content(path)[10:14], b"late")
    area[20:25] = b"later"
    area.close()
    equal("after unmapping", content(path)[10:25], b"late" + bytes(6) + b"later")
    with descriptor(path) as fd:
        os.fsync(fd)
    equal("after fsync", content(path)[20:25], b"later")


def check_mapping_outlives_the_name(d: str) -> None:
    path = file(f"{d}/file", data=b"text" + bytes(PAGE))
    with descriptor(path, os.O_RDWR) as fd:
        area = mmap.mmap(fd, PAGE)
    os.unlink(path)
    area[:4] = b"TEXT"
    area.flush()
    equal("unlinked", area[:4], b"TEXT")
    area.close()
    path = file(f"{d}/other", data=b"text" + bytes(PAGE))
    with descriptor(path, os.O_RDWR) as fd:
        area = mmap.mmap(fd, PAGE)
    os.rename(path, f"{d}/renamed")
    area[:4] = b"TEXT"
    area.close()
    equal("renamed", content(f"{d}/renamed")[:4], b"TEXT")


def check_end_of_a_mapped_file(d: str) -> None:
    """Stores past the end of the file in its last page are not written."""
    path = file(f"{d}/file", data=b"short")
    with descriptor(path, os.O_RDWR) as fd, mmap.mmap(fd, 5) as area:
        area[0:5] = b"SHORT"
        area.flush()
    equal("size", os.stat(path).st_size, 5)
    with descriptor(path, os.O_RDWR) as fd, mmap.mmap(fd, 5) as area:
        os.ftruncate(fd, 2 * PAGE)
        area.resize(2 * PAGE)
        equal("grown", area[:] == b"SHORT" + bytes(2 * PAGE - 5), True)
        area[PAGE : PAGE + 3] = b"new"
        area.flush()
    equal("file", content(path)[PAGE : PAGE + 3], b"new")


def check_mapped_store_moves_mtime(d: str) -> None:
    path = file(f"{d}/file", data=bytes(PAGE))
    with descriptor(path, os.O_RDWR) as fd, mmap.mmap(fd, PAGE) as area:

        def store() -> None:
            area[0:4] = b"text"
            area.flush()
            os.fsync(fd)

        stamps("store", store, {path: "mc"})


def check_exec(d: str) -> None:
    script = file(f"{d}/script", 0o755, ALICE, b'#!/bin/sh\necho "$0:$1"\n')
    equal("script", subprocess.check_output([script, "x"]), f"{script}:x\n".encode())
    program = shutil.copy("/bin/echo", f"{d}/echo")
    os.chmod(program, 0o755)
    equal("program", subprocess.check_output([program, "hello"]), b"hello\n")
    equal("as a user", run(ALICE, subprocess.check_output, [program, "hello"]), b"hello\n")
    os.symlink("echo", f"{d}/link")
    equal("through a link", subprocess.check_output([f"{d}/link", "hello"]), b"hello\n")
    interpreted = file(f"{d}/interpreted", 0o755, data=f"#!{program} from\n".encode())
    equal(
        "as interpreter", subprocess.check_output([interpreted]), f"from {interpreted}\n".encode()
    )
    os.chmod(program, 0o644)
    for user in (ROOT, ALICE):
        equal("no x", run(user, outcome, subprocess.check_call, [program]), "EACCES")
    os.chmod(program, 0o711)
    equal("x without r", run(ALICE, subprocess.check_output, [program, "hello"]), b"hello\n")
    equal("directory", outcome(subprocess.check_call, [folder(f"{d}/folder")]), "EACCES")
    equal(
        "not a program",
        outcome(subprocess.check_call, [file(f"{d}/empty", 0o755, data=b"\1\2\3\4")]),
        "ENOEXEC",
    )


def check_replaced_program_runs_on(d: str) -> None:
    program = shutil.copy("/bin/cat", f"{d}/cat")
    os.chmod(program, 0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        os.unlink(program)
        shutil.copy("/bin/echo", program)
        os.chmod(program, 0o755)
        got, _ = process.communicate(b"still here")
    equal("old program", got, b"still here")
    equal("new program", subprocess.check_output([program, "new"]), b"new\n")
