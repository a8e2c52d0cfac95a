"""The source distribution is the repository; the wheel is whole."""

import email
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gitguardfs
from gitguardfs.base import installation
from tests.packaging.conftest import build, bundle_by


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_it_has_every_file_of_the_repository(checkout: Path, unpacked: Path) -> None:
    of_setuptools = {
        name for name in files_in(unpacked)
        if name in ("PKG-INFO", "setup.cfg") or name.startswith("gitguardfs.egg-info/")
    }  # fmt: skip
    assert files_in(checkout) - of_setuptools == files_in(unpacked) - of_setuptools


def test_what_is_run_can_be_run(checkout: Path, unpacked: Path) -> None:
    for name in files_in(checkout):
        assert os.access(unpacked / name, os.X_OK) == os.access(checkout / name, os.X_OK), name


@pytest.fixture(scope="module")
def wheel(unpacked: Path, place: Path) -> zipfile.ZipFile:
    """Build a wheel from the source distribution, as pip does."""
    (place / "wheel").mkdir(exist_ok=True)
    return zipfile.ZipFile(build("build_wheel", unpacked, place / "wheel"))


def test_the_wheel_has_the_package_and_what_a_guest_needs(
    wheel: zipfile.ZipFile, checkout: Path
) -> None:
    names = set(wheel.namelist())
    assert {f"gitguardfs/{name}" for name in files_in(checkout / "gitguardfs")} <= names
    assert "gitguardfs/py.typed" in names
    data = f"gitguardfs-{gitguardfs.__version__}.data/data/share/gitguardfs/guest-setup/install.sh"
    assert data in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_what_pip_installs_packs_for_a_guest_what_a_checkout_packs(
    wheel: zipfile.ZipFile, place: Path
) -> None:
    prefix = place / "wheel/prefix"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--ignore-installed"]
    subprocess.run([*pip, "--prefix", prefix, str(wheel.filename)], check=True, timeout=300)
    (modules,) = prefix.glob("lib/python*/site-packages")
    assert bundle_by(modules, place / "wheel") == installation.bundle()


def test_the_metadata_is_whole(wheel: zipfile.ZipFile) -> None:
    info = f"gitguardfs-{gitguardfs.__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["License-Expression"] == "MIT" and metadata["License"] is None
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert not [one for one in classifiers if one.startswith("License ::")]
    labels = {(url.partition(",")[0]) for url in metadata.get_all("Project-URL") or []}
    assert {"Homepage", "Documentation", "Source", "Changelog", "Issues"} <= labels
    programs = wheel.read(f"{info}/entry_points.txt").decode()
    for program in ("gitguardfs", "gitguard", "vm-mount", "umount.fuse.gitguardfs"):
        assert f"{program} = " in programs
