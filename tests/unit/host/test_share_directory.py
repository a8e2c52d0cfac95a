"""Directories that `gitguard share` accepts, warns about and refuses."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gitguardfs.base.errors import UserError, os_error
from gitguardfs.host.commands import share
from gitguardfs.host.share.directory import directory_elsewhere, existing_directory, secrets_in


def gitguard_share(*arguments: str | Path) -> Result:
    return CliRunner().invoke(share.command, [str(a) for a in arguments], standalone_mode=False)


def test_a_directory_that_is_missing_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("absent", "file", "file/x", ""):
        with pytest.raises(UserError):
            existing_directory(path and str(tmp_path / path))
    assert existing_directory(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", ".git ", ".g\u200cit"])
def test_a_git_directory_and_what_is_below_it_are_refused(tmp_path: Path, name: str) -> None:
    below = tmp_path / name / "refs"
    below.mkdir(parents=True)
    (tmp_path / "link").symlink_to(below)
    for path in (below.parent, below, tmp_path / "link"):
        with pytest.raises(UserError, match=r"\.git"):
            existing_directory(str(path))
    assert existing_directory(str(tmp_path))


def test_a_bare_repository_and_what_is_below_it_are_refused(tmp_path: Path) -> None:
    bare = tmp_path / "repo"
    (bare / "refs" / "heads").mkdir(parents=True)
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    for path in (bare, bare / "refs" / "heads"):
        with pytest.raises(UserError, match="share a directory above it"):
            existing_directory(str(path))


def test_a_work_tree_can_be_shared(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert existing_directory(str(tmp_path)) == str(tmp_path)


def fails(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> None:
    """Let lstat of every ``name`` fail with ``error``."""
    real = os.lstat

    def lstat(path: str | bytes | Path) -> os.stat_result:
        if os.path.basename(os.fsdecode(path)) == name:
            raise os_error(error)
        return real(path)

    monkeypatch.setattr(os, "lstat", lstat)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_cannot_be_looked_at_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    fails(monkeypatch, ".ssh", error)
    assert secrets_in(str(tmp_path)) == [".ssh"]
    fails(monkeypatch, "HEAD", error)
    with pytest.raises(UserError, match="cannot tell"):
        existing_directory(str(tmp_path))


@pytest.mark.parametrize(
    "path",
    ["/", "/root", "/home", "/home/me", "/home/me/", "/Users/me", "/var/home/me", "/etc",
     "/etc/nginx", "/usr/local/src", "/home/me/.ssh", "/srv/x/.aws/y", "/srv/.config/gcloud/z"],
)  # fmt: skip
def test_homes_secrets_and_the_system_are_refused(path: str) -> None:
    with pytest.raises(UserError) as refused:
        directory_elsewhere(path)
    assert refused.value.hint and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "path",
    ["/home/me/src", "/root/src", "/srv", "/opt/x", "/workspace", "/home/me/.config/nvim",
     "/home/me/ssh", "/homestead", "/etcetera", "/Users/me/Library2"],
)  # fmt: skip
def test_directories_that_only_look_like_those_are_taken(path: str) -> None:
    assert directory_elsewhere(path) == path


def test_the_users_own_home_is_refused_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "there/me"
    (home / "src").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "link").symlink_to(home)
    for path in (home, tmp_path / "there", tmp_path / "link"):
        with pytest.raises(UserError, match="home directory"):
            existing_directory(str(path))
    assert existing_directory(str(home / "src")) == str(home / "src")


def test_secrets_in_the_directory_are_named(tmp_path: Path) -> None:
    assert gitguard_share(tmp_path).stderr == ""
    for name in (".ssh", ".aws", ".config/gcloud"):
        (tmp_path / name).mkdir(parents=True)
    said = gitguard_share(tmp_path)
    assert "warning" in said.stderr and ".ssh, .aws, .config/gcloud" in said.stderr
    (warning,) = json.loads(gitguard_share(tmp_path, "--json").stdout)["warnings"]
    assert warning in said.stderr and str(tmp_path) in warning


def test_a_directory_of_another_machine_is_described_and_said_to_be(tmp_path: Path) -> None:
    path = "/Users/me/my project"
    missing = gitguard_share(path, "--for", "utm")
    assert isinstance(missing.exception, UserError) and "--elsewhere" in str(missing.exception)
    said = gitguard_share(f"{path}/", "--for", "utm", "--elsewhere")
    assert said.exception is None and path in said.stdout
    assert "was not checked" in said.stderr
    for wrong in (["src"], [path, "--guard", "host", "--run"]):
        refused = gitguard_share(*wrong, "--elsewhere")
        assert isinstance(refused.exception, UserError)
    assert not os.path.exists("/Users")
