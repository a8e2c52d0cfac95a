"""The same checks on a plain directory and on mounts: the answers must not differ.

Where they do differ, a FUSE file system of this kind cannot or must not answer alike.
``test_known_differences`` holds what can be asserted of these:

- Devices can be made but not opened (EACCES): the mount is nodev. It is nosuid too, so set-id
  bits, where they are allowed at all, are shown and have no effect.
- A symlink or a directory that is moved to where a text would lead out of the work tree is EXDEV.
- RENAME_WHITEOUT is refused: it would put a device in place of a guarded name.
- ioctl (chattr, FIEMAP) is ENOTTY unless it is asked for; with it, the flags of files.
- A file that is open for reading and writing has no holes for SEEK_DATA and SEEK_HOLE.
- With pyfuse3, O_TMPFILE and fallocate(2) are EOPNOTSUPP (posix_fallocate falls back on writing,
  and holes cannot be punched), and SEEK_DATA and SEEK_HOLE see one extent of data.
- Extended attributes are EOPNOTSUPP unless they are asked for; with them, access lists.
- st_dev, f_fsid and f_type are the mount's own.
- The time of the last access moves when the daemon reads, not when the kernel's cache answers.
- O_DIRECT accepts offsets and buffers that are not aligned.
- Locks are kept by the guest's kernel and say nothing to the host.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance import all_checks
from tests.conformance.tools import (
    ALICE,
    call,
    calls,
    descriptor,
    equal,
    fallocate,
    file,
    make_char,
    owner_of,
    renameat2,
    run,
)
from tests.support.mounting import Mounted, area, gitguardfs

HANG_LIMIT = 120
"""Seconds for a check that may wait for a process that never answers."""
CHECKS = all_checks()
RACES = ("content-two_appenders", "between-callers_are_told_apart")
"""Checks in which processes compete."""
MOUNTS: dict[str, tuple[str, ...]] = {
    "uncached": ("--allow-suid", "--cache-timeout", "0"),
    "mapped": ("--allow-suid", "--map", "501/1000:@20/@1000", "--local=deps"),
}
RENAME_WHITEOUT = 4
O_TMPFILE = os.O_TMPFILE | os.O_RDWR


@pytest.fixture(scope="module", params=["plain", "own", *MOUNTS])
def tree(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The directory that one backend shows."""
    with ExitStack() as stack:
        here = stack.enter_context(area())
        (here / "source").mkdir()
        if request.param == "plain":
            yield here / "source"
            return
        if request.param == "own":  # a directory of the guest's own
            own = ("--allow-suid", "--local", "own", f"--local-store={here}/store")
            mounted = stack.enter_context(gitguardfs(here / "source", here / "view", *own))
            (mounted.path / "own").mkdir()
            yield mounted.path / "own"
            return
        options = (*MOUNTS[request.param], f"--local-store={here}/store")
        mounted = stack.enter_context(gitguardfs(here / "source", here / "view", *options))
        yield mounted.path


@pytest.fixture
def directory(tree: Path, request: pytest.FixtureRequest) -> str:
    path = tree / f"check{len(os.listdir(tree))}"
    path.mkdir()
    path.chmod(0o777)
    return str(path)


@pytest.mark.timeout(HANG_LIMIT)
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in RACES])
def test_conformance(name: str, directory: str) -> None:
    CHECKS[name](directory)


@pytest.mark.every_processor
@pytest.mark.timeout(HANG_LIMIT)
@pytest.mark.parametrize("name", RACES)
def test_conformance_of_processes_that_compete(name: str, directory: str) -> None:
    CHECKS[name](directory)


@pytest.fixture(scope="module")
def mapped() -> Iterator[Mounted]:
    """A mount whose share belongs to 501:20, shown as 1000:1000."""
    with area() as here:
        (here / "source").mkdir()
        os.chown(here / "source", 501, 20)
        options = (*MOUNTS["mapped"], f"--local-store={here}/store")
        with gitguardfs(here / "source", here / "view", *options) as mounted:
            yield mounted


def test_known_differences(mapped: Mounted) -> None:
    d = str(mapped.path / "differences")
    os.mkdir(d)
    os.chmod(d, 0o777)
    path = file(f"{d}/file", 0o666, data=b"text" + bytes(100_000))
    make_char(f"{d}/null")
    os.makedirs(f"{d}/dir/deeper")
    os.symlink("../../above", f"{d}/dir/deeper/link")
    calls(
        call("EXDEV", os.rename, f"{d}/dir/deeper", f"{d}/../deeper"),
        call("EXDEV", os.rename, f"{d}/dir/deeper/link", f"{d}/../link"),
        call("EACCES", os.open, f"{d}/null", os.O_RDONLY),
        call("EINVAL", renameat2, path, f"{d}/new", RENAME_WHITEOUT),
        call("ENOTSUP", os.listxattr, path),
        call("ENOTSUP", os.getxattr, path, "user.test"),
        call("ENOTSUP", os.setxattr, path, "user.test", b"x"),
        call("ENOTSUP", os.removexattr, path, "user.test"),
    )


def test_what_pyfuse3_does_not_carry() -> None:
    with area() as here:
        (here / "source").mkdir()
        with gitguardfs(here / "source", here / "view", "--session", "pyfuse3") as mounted:
            path = file(f"{mounted.path}/file", data=b"text" + bytes(100_000))
            calls(call("ENOTSUP", os.open, mounted.path, O_TMPFILE))
            with descriptor(path, os.O_RDWR) as fd:
                calls(call("ENOTSUP", fallocate, fd, 0, 0, 200_000))
                equal("one extent", os.lseek(fd, 0, os.SEEK_DATA), 0)
                equal("one extent", os.lseek(fd, 0, os.SEEK_HOLE), 100_004)


def test_mapped_owners(mapped: Mounted) -> None:
    """Files that 1000 makes in the view are 501's on the share, and the other way round."""
    view, source = str(mapped.path), str(mapped.source)
    equal("root of the view", owner_of(view), (1000, 1000))

    def make_both() -> None:
        os.mkdir(f"{view}/dir")
        os.symlink("x", f"{view}/link")
        with descriptor(f"{view}/file", os.O_CREAT | os.O_WRONLY) as fd:
            os.fchmod(fd, 0o640)

    run(ALICE, make_both)
    for name in ("dir", "link", "file"):
        equal(f"{name} in the view", owner_of(f"{view}/{name}"), (1000, 1000))
        equal(f"{name} on the share", owner_of(f"{source}/{name}"), (501, 20))
    os.chown(f"{view}/file", 0, 0)
    equal("chown to root", owner_of(f"{source}/file"), (0, 0))
    os.chown(f"{view}/file", 1000, -1)
    equal("chown of the user alone", owner_of(f"{source}/file"), (501, 0))
    os.chown(f"{view}/file", -1, 1000)
    equal("chown of the group alone", owner_of(f"{source}/file"), (501, 20))
    os.chown(f"{source}/dir", 20, 501)
    equal("users and groups apart", owner_of(f"{source}/dir"), (20, 501))


def test_mapped_set_gid_directory(mapped: Mounted) -> None:
    os.mkdir(mapped.source / "shared")
    os.chown(mapped.source / "shared", 0, 20)
    os.chmod(mapped.source / "shared", 0o2770)
    member = ALICE._replace(uid=1001, gid=1001, groups=(1000,))
    run(member, os.mkdir, str(mapped.path / "shared" / "made"))
    made = mapped.source / "shared" / "made"
    equal("owner on the share", owner_of(str(made)), (1001, 20))
    equal("set-gid", bool(os.stat(made).st_mode & stat.S_ISGID), True)
    equal("group in the view", owner_of(str(mapped.path / "shared" / "made")), (1001, 1000))
