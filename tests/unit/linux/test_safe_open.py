"""Opening a path as root: which symlinks are followed."""

import os
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.linux import safe_open

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make root's files")


def place(path: Path) -> str:
    fd = safe_open.open_directory(str(path), True)
    try:
        return safe_open.path_of(fd)
    finally:
        os.close(fd)


def test_a_symlink_of_roots_where_only_root_writes_is_followed(tmp_path: Path) -> None:
    (tmp_path / "var/home/me").mkdir(parents=True)
    (tmp_path / "home").symlink_to("var/home")
    (tmp_path / "absolute").symlink_to(tmp_path / "home")
    for name in ("home/me", "absolute/me", "home/../home/me"):
        assert place(tmp_path / name) == f"{tmp_path}/var/home/me"
    found = safe_open.resolve(f"{tmp_path}/absolute/me/x/y")
    os.close(found.fd)
    assert found.path == f"{tmp_path}/var/home/me/x/y"
    assert found.missing == ("x", "y")
    paths = [component.path for component in found.components]
    assert paths[0] == "/" and paths[-2:] == [f"{tmp_path}/var/home", f"{tmp_path}/var/home/me"]
    assert [os.path.dirname(path) for path in paths[1:]] == paths[:-1]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
@pytest.mark.parametrize("target", ["real", "/etc"])
def test_a_symlink_of_roots_that_others_can_move_is_refused(
    tmp_path: Path, mode: int, target: str
) -> None:
    """Anybody who may write there can rename it, or bring it there from elsewhere."""
    users = tmp_path / "users"
    (users / "real").mkdir(parents=True)
    (users / "link").symlink_to(target)
    users.chmod(mode)
    with pytest.raises(UserError, match=rf"others can change, and leads to {target}"):
        place(users / "link")


def test_a_symlink_of_roots_in_a_users_directory_is_refused(tmp_path: Path) -> None:
    users = tmp_path / "users"
    (users / "real").mkdir(parents=True)
    (users / "link").symlink_to("real")
    os.chown(users, 1000, 1000)
    with pytest.raises(UserError, match="others can change"):
        place(users / "link")
    os.chown(users, 0, 0)
    assert place(users / "link") == f"{users}/real"
    os.chown(users / "link", 1000, 1000, follow_symlinks=False)
    with pytest.raises(UserError, match="not root's, and leads to real"):
        place(users / "link")


def test_where_a_refused_symlink_leads_is_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("\x1b[2J")
    os.chown(tmp_path / "link", 1000, 1000, follow_symlinks=False)
    with pytest.raises(UserError) as said:
        place(tmp_path / "link")
    assert "leads to \\x1b[2J" in str(said.value)


def test_what_is_not_there_and_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for name, error in [
        ("a/b", FileNotFoundError),
        ("a/../b", FileNotFoundError),
        ("dangling", FileNotFoundError),
        ("file", NotADirectoryError),
        ("file/x", NotADirectoryError),
        ("loop", OSError),
    ]:
        with pytest.raises(error):
            place(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        safe_open.open_directory("", True)


def test_a_walk_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    before = os.listdir("/proc/self/fd")
    for name in ("a/b", "link/b", "a/../a/b", "file", "a/x/y", "link/x"):
        try:
            place(tmp_path / name)
        except OSError:
            continue
    assert os.listdir("/proc/self/fd") == before


def test_a_relative_path_starts_where_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    for path in ("b", "./b", "../a/b"):
        fd = safe_open.open_directory(path, True)
        assert safe_open.path_of(fd) == f"{tmp_path}/a/b"
        os.close(fd)
    found = safe_open.resolve("b/new")
    os.close(found.fd)
    assert found.path == f"{tmp_path}/a/b/new"
    assert [one.path for one in found.components] == [f"{tmp_path}/a", f"{tmp_path}/a/b"]


def test_a_path_that_fails_leaves_no_descriptor_of_the_others_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = os.listdir("/proc/self/fd")
    for paths in (["/", f"{tmp_path}/file", "/proc/self"], [f"{tmp_path}/file", "/proc/self"]):
        with pytest.raises(NotADirectoryError):
            safe_open.resolve_all(paths)
        assert os.listdir("/proc/self/fd") == before
