"""The writer of files: it writes them whole, compares them first, and can undo that."""

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gitguardfs.base.errors import UserError
from gitguardfs.options import config_files
from gitguardfs.options.config_files import BACKUP_SUFFIX, FileChange
from tests.support.bending import exchanged_in_a_loop
from tests.support.mounting import area

CONTENT = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(CONTENT, CONTENT)
def test_a_change_is_made_and_undone_to_the_byte(
    tmp_path: Path, before: bytes | None, after: bytes | None
) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    if before is not None:
        path.write_bytes(before)
    change = config_files.plan(str(path), after)
    config_files.write(change)
    assert content(path) == after
    config_files.revert(change)
    assert content(path) == before
    assert bool(change.diff()) == (before != after)
    assert [p for p in tmp_path.iterdir() if p != path] == []


def test_a_replaced_file_keeps_its_mode_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_text("old\n")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12, 34)
    before = path.stat()
    config_files.write(config_files.plan(str(path), "new\n"), backup=True)
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip
    saved = tmp_path / f"fstab{BACKUP_SUFFIX}"
    assert saved.read_text() == "old\n"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o640


def test_a_new_file_is_readable_for_all_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        config_files.write(config_files.plan(str(tmp_path / "x.service.d" / "share.conf"), "text"))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "x.service.d" / "share.conf").stat().st_mode) == 0o644


def test_a_file_that_somebody_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_text("old\n")
    change = config_files.plan(str(path), "new\n")
    path.write_text("somebody else's\n")
    with pytest.raises(UserError, match="changed meanwhile"):
        config_files.write(change)
    assert path.read_text() == "somebody else's\n"


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fstab"
    path.write_text("old\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        config_files.write(config_files.plan(str(path), "new\n"))
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_meets_a_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_text("old\n")
    with path.open() as reader:
        config_files.write(config_files.plan(str(path), "new\n"))
        assert reader.read() == "old\n"


def test_the_last_drop_in_takes_its_directory_along_and_others_stay(tmp_path: Path) -> None:
    ours = tmp_path / "a.service.d" / "share.conf"
    change = FileChange(str(ours), None, b"x")
    config_files.write(change)
    config_files.revert(change)
    assert not ours.parent.exists()
    config_files.write(change)
    (ours.parent / "mine.conf").write_text("y")
    config_files.revert(change)
    assert os.listdir(ours.parent) == ["mine.conf"]


def test_check_names_what_differs_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [config_files.plan(str(tmp_path / name), "text") for name in ("a", "b")]
    config_files.write(changes[0])
    changes[0] = config_files.plan(str(tmp_path / "a"), "text")
    assert config_files.check_or_write(changes, check=True) == 1
    assert capsys.readouterr().out == f"{tmp_path}/b: differs\n"
    assert not (tmp_path / "b").exists()
    assert config_files.check_or_write(changes, check=False) == 0
    again = [config_files.plan(str(tmp_path / name), "text") for name in ("a", "b")]
    assert config_files.check_or_write(again, check=True) == 0


def test_the_first_original_is_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_text("first\n")
    for text in ("second\n", "third\n"):
        config_files.write(config_files.plan(str(path), text), backup=True)
    assert (tmp_path / f"fstab{BACKUP_SUFFIX}").read_text() == "first\n"


def test_a_symlink_of_roots_is_followed_and_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "real/fstab", tmp_path / "fstab"
    real.parent.mkdir()
    real.write_text("old\n")
    link.symlink_to("real/fstab")
    change = config_files.plan(str(link), "new\n")
    config_files.write(change, backup=True)
    assert link.is_symlink() and real.read_text() == "new\n"
    assert (tmp_path / f"fstab{BACKUP_SUFFIX}").read_text() == "old\n"
    config_files.revert(change)
    assert link.is_symlink() and real.read_text() == "old\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_symlink_of_another_users_is_refused(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "fstab"
    real.write_text("old\n")
    link.symlink_to(real)
    os.chown(link, 1000, 1000, follow_symlinks=False)
    with pytest.raises(UserError, match="another user's"):
        config_files.write(config_files.plan(str(link), "new\n"))
    assert link.is_symlink() and real.read_text() == "old\n"


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    link = tmp_path / "masked.service"
    link.symlink_to("/dev/null")
    with pytest.raises(UserError, match="not a regular file"):
        config_files.write(config_files.plan(str(link), "new\n"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@as_root
def test_a_symlink_of_roots_where_a_user_can_put_it_is_refused(tmp_path: Path) -> None:
    """Anybody may rename root's symlinks in a directory of their own."""
    (tmp_path / "users").mkdir()
    (tmp_path / "real").write_text("old\n")
    (tmp_path / "users/fstab").symlink_to(tmp_path / "real")
    os.chown(tmp_path / "users", 1000, 1000)
    with pytest.raises(UserError, match=f"and leads to {tmp_path}/real"):
        config_files.plan(str(tmp_path / "users/fstab"), "new\n")
    assert (tmp_path / "real").read_text() == "old\n"


@as_root
def test_a_directory_that_a_user_exchanges_for_a_symlink_leads_no_write_elsewhere() -> None:
    with area() as here:
        users, victim = here / "users", here / "victim"
        for directory in (users, users / "units", victim):
            directory.mkdir()
        (victim / "file").write_text("old\n")
        (users / "link").symlink_to(victim)
        for path in (users, users / "units", users / "link"):
            os.chown(path, 1000, 1000, follow_symlinks=False)
        written = 0
        with exchanged_in_a_loop(users / "units", users / "link"):
            for number in range(400):
                with suppress(UserError, OSError):
                    config_files.write(config_files.plan(str(users / "units/file"), f"{number}\n"))
                    written += 1
        assert [path.name for path in victim.iterdir()] == ["file"]
        assert (victim / "file").read_text() == "old\n"
        assert written > 0


def test_a_fifo_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fstab")
    with pytest.raises(UserError, match="not a regular file"):
        config_files.write(config_files.plan(str(tmp_path / "fstab"), "new\n"))
    assert stat.S_ISFIFO((tmp_path / "fstab").stat().st_mode)
