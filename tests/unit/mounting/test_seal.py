"""The seal's decisions; the mounts themselves are made in tests/mount."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gitguardfs.base.errors import Exit, UserError, os_error
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import bypasses, covers, seal
from gitguardfs.private.store import let_in
from tests.support.mounting import PLACE


class Kernel:
    """Mounts on one path, and what was done to them."""

    def __init__(self, path: Path, *stack: tuple[str, str]) -> None:
        self.path = str(path)
        self.stack = [
            MountInfo(device="0:9", mount_point=os.fsencode(path), fstype=kind, source=name)
            for kind, name in stack
        ]

    def top_at(self, path: str) -> MountInfo | None:
        return self.stack[-1] if path == self.path and self.stack else None

    def stack_of(self, _fd: int) -> list[MountInfo]:
        return self.stack[::-1]

    def detach(self, mount: MountInfo) -> bool:
        assert mount is self.stack[-1]
        self.stack.pop()
        return True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mountinfo, "top_at", self.top_at)
        monkeypatch.setattr(mountinfo, "stack_of", self.stack_of)
        monkeypatch.setattr(mountinfo, "detach", self.detach)


SEAL = (covers.FSTYPE, seal.NAME)
SHARE = ("9p", "projects")


@pytest.mark.parametrize(
    ("stack", "left"),
    [
        ([], 0),
        ([SHARE], 1),
        ([SHARE, SEAL], 1),
        ([SHARE, SEAL, SEAL], 1),
        ([SEAL], 0),
        ([SHARE, ("ext4", seal.NAME)], 2),
        ([SHARE, SEAL, ("tmpfs", "another")], 3),
    ],
)
def test_only_stale_seals_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: list[tuple[str, str]], left: int
) -> None:
    kernel = Kernel(tmp_path, *stack)
    kernel.install(monkeypatch)
    seal.check_free(str(tmp_path))
    seal.remove_stale(str(tmp_path))
    assert len(kernel.stack) == left


def test_a_seal_in_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, SHARE, SEAL)
    kernel.install(monkeypatch)
    holder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UserError) as error:
        seal.check_free(str(tmp_path))
    assert error.value.code is Exit.MOUNT
    assert len(kernel.stack) == 2
    assert os.listdir("/proc/self/fd") == before
    os.close(holder)


@pytest.mark.parametrize(
    ("stack", "root"),
    [
        ([], False), ([SHARE], True), ([("virtiofs", "p")], True), ([("ext4", "/dev/vda")], False),
        ([SHARE, SEAL], True), ([SHARE, ("fuse.own", "agent")], True),
        ([("fuse.gitguardfs", "p")], False),
    ],
)  # fmt: skip
def test_share_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: list[tuple[str, str]], root: bool
) -> None:
    Kernel(tmp_path, *stack).install(monkeypatch)
    fd = os.open(tmp_path, os.O_PATH)
    assert seal.is_share(fd) == root
    os.close(fd)


@pytest.fixture
def area() -> Iterator[Path]:
    """A directory that every user can reach."""
    with TemporaryDirectory(dir=PLACE) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(
    ("parent", "source", "reachable"),
    [
        (0o755, 0o755, True),
        (0o711, 0o701, True),
        (0o755, 0o700, False),
        (0o700, 0o777, False),
        (0o750, 0o777, False),
        (0o744, 0o777, False),
    ],
)
def test_reachable_by_others(area: Path, parent: int, source: int, reachable: bool) -> None:
    path = area / "parent/source"
    path.mkdir(parents=True)
    path.chmod(source)
    path.parent.chmod(parent)
    assert seal.is_reachable_by_others(str(path), os.geteuid()) == reachable


def test_an_access_list_lets_others_in(area: Path) -> None:
    path = area / "parent/source"
    path.mkdir(parents=True)
    path.chmod(0o755)
    let_in(str(path.parent), 4242, 0)
    assert seal.is_reachable_by_others(str(path), os.geteuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
@pytest.mark.parametrize(
    ("parent_owner", "parent_mode", "source_owner", "reachable"),
    [
        ((0, 0), 0o755, (1000, 1000), True),
        ((1000, 1000), 0o700, (1000, 1000), True),
        ((0, 1000), 0o710, (1000, 1000), True),
        ((0, 0), 0o710, (1000, 1000), False),
        ((0, 0), 0o700, (1000, 1000), False),
    ],
)
def test_root_s_source_may_be_another_user_s(
    area: Path,
    parent_owner: tuple[int, int],
    parent_mode: int,
    source_owner: tuple[int, int],
    reachable: bool,
) -> None:
    path = area / "parent/source"
    path.mkdir(parents=True)
    path.chmod(0o700)
    os.chown(path, *source_owner)
    path.parent.chmod(parent_mode)
    os.chown(path.parent, *parent_owner)
    assert seal.is_reachable_by_others(str(path), 0) == reachable


@pytest.mark.parametrize(("wanted", "sealed"), [(True, True), (None, True), (False, False)])
def test_a_guard_that_fails_seals_nothing_that_was_to_stay_open(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, sealed: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(seal, "_seal_if_needed", lambda *_: True)  # as for the root of a share
    error = UserError("no mount point", "mkdir it")
    said = seal.fail_closed("/mnt/projects", wanted, error)
    assert ("umount /mnt/projects opens it" in str(said)) == sealed
    assert (said is error) == (not sealed)


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        (lambda: [_there("9p", "p"), _there(*SEAL)], "is sealed until it is guarded"),
        (lambda: [_there("9p", "p")], "is NOT sealed, users can reach it: Too many open files"),
        (lambda: _fail(), "it is not known whether /mnt/projects is sealed: Too many open files"),
    ],
)
def test_out_of_descriptors_a_seal_is_seen(
    monkeypatch: pytest.MonkeyPatch, listed: Callable[[], list[MountInfo]], says: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(seal, "_seal_if_needed", _fail)
    monkeypatch.setattr(mountinfo, "listed", listed)
    assert says in seal.fail_closed("/mnt/projects", None, UserError("x")).hint


def _there(fstype: str, source: str) -> MountInfo:
    number = 2 if fstype == covers.FSTYPE else 1
    return MountInfo(
        device="0:9", mount_point=b"/mnt/projects", fstype=fstype, source=source, mnt_id=number,
        parent_id=number - 1,
    )  # fmt: skip


def _fail(*_: object) -> list[MountInfo]:
    raise os_error(errno.EMFILE)


def test_in_a_chroot_that_lists_no_mount_of_the_source_a_message_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mountinfo, "listed", lambda: [])
    said, hint = bypasses.describe("/srv/p", 43, 1)
    assert "/srv/p" in said and "chroot" in said and hint


def test_commands_about_a_seal_can_be_pasted_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "/mnt/my $(share)"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(seal, "_seal_if_needed", lambda *_: True)
    assert f"umount '{source}' opens it" in seal.fail_closed(source, True, UserError("x")).hint

    def fails(*_: object) -> bool:
        raise UserError("no")

    monkeypatch.setattr(seal, "_seal_if_needed", fails)
    there = MountInfo(device="0:9", mount_point=os.fsencode(source), fstype="9p", source="p")
    monkeypatch.setattr(mountinfo, "listed", lambda: [there])
    assert f"umount -i -l '{source}' unm" in seal.fail_closed(source, True, UserError("x")).hint
