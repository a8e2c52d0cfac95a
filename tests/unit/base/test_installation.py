"""A guest gets the files of this installation, wherever that is."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from gitguardfs.base import installation
from gitguardfs.base.errors import UserError

REPOSITORY = Path(__file__).parents[3]


def test_a_checkout_is_copied_without_what_is_made_of_it(tmp_path: Path) -> None:
    target = tmp_path / "files"
    assert installation.copy_to(str(target)) is True
    assert sorted(os.listdir(target)) == ["gitguardfs", "guest-setup"]
    copied = {path.relative_to(target) for path in target.rglob("*") if path.is_file()}
    expected = {
        path.relative_to(REPOSITORY)
        for path in (REPOSITORY / "gitguardfs").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    scripts = {Path("guest-setup", name) for name in installation.SCRIPT_NAMES}
    assert copied == expected | scripts
    assert (target / "gitguardfs/commands/gitguardfs.py").read_bytes() == (
        REPOSITORY / "gitguardfs/commands/gitguardfs.py"
    ).read_bytes()
    assert os.listdir(tmp_path) == ["files"]


def test_a_wheel_has_what_a_guest_needs() -> None:
    """``pip`` puts data-files below the prefix; package data goes with the package."""
    tool = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert tool["data-files"] == {
        f"share/{installation.PACKAGE}/{installation.SCRIPTS}": [
            f"{installation.SCRIPTS}/{name}" for name in installation.SCRIPT_NAMES
        ]
    }
    package = REPOSITORY / "gitguardfs"
    listed = {
        path for pattern in tool["package-data"]["gitguardfs"] for path in package.glob(pattern)
    }
    others = {p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert others <= listed


def test_it_is_brought_up_to_date_and_otherwise_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "files"
    installation.copy_to(str(target))
    before = target.stat().st_ino
    assert installation.copy_to(str(target)) is False
    assert target.stat().st_ino == before
    for spoil in ("gitguardfs/commands/gitguardfs.py", "guest-setup/install.sh"):
        (target / spoil).write_text("")
        assert installation.copy_to(str(target)) is True
    (target / "gitguardfs/fs/more.py").write_text("")
    assert installation.copy_to(str(target)) is True
    assert not (target / "gitguardfs/fs/more.py").exists()
    assert os.listdir(tmp_path) == ["files"]


def test_scripts_are_found_beside_the_package_or_below_its_prefix(tmp_path: Path) -> None:
    holder = tmp_path / "lib/python3.13/site-packages"
    holder.mkdir(parents=True)
    with pytest.raises(UserError):
        installation.script_directory(str(holder))
    share = tmp_path / "share/gitguardfs/guest-setup"
    shutil.copytree(REPOSITORY / "guest-setup", share)
    assert installation.script_directory(str(holder)) == str(share)
    shutil.copytree(REPOSITORY / "guest-setup", holder / "guest-setup")
    assert installation.script_directory(str(holder)) == str(holder / "guest-setup")


def test_what_is_packed_is_the_same_however_it_was_installed(tmp_path: Path) -> None:
    """As by the package: other owners, modes and times, scripts elsewhere, and compiled files."""
    here = installation.bundle()
    prefix = tmp_path / "usr"
    holder = prefix / "lib/python3/dist-packages"
    shutil.copytree(REPOSITORY / "gitguardfs", holder / "gitguardfs")
    shutil.copytree(REPOSITORY / "guest-setup", prefix / "share/gitguardfs/guest-setup")
    for path in prefix.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o640)
        os.utime(path, (1, 1))
    (holder / "gitguardfs/__pycache__/x.pyc").parent.mkdir(exist_ok=True)
    for stray in ("__pycache__/x.pyc", "notes.env", "host/.x.py.swp"):
        (holder / "gitguardfs" / stray).touch()
    assert installation.bundle(str(holder)) == here


def test_what_is_packed_is_unpacked_in_one_directory(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(installation.bundle())
    done = subprocess.run(
        ["tar", "-xvf", "b.tar"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "" and "gitguardfs/guest-setup/install.sh" in done.stdout.splitlines()
    assert os.listdir(tmp_path / "gitguardfs") and len(os.listdir(tmp_path)) == 2
    assert os.access(tmp_path / "gitguardfs/guest-setup/install.sh", os.X_OK)
