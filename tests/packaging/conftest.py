"""Fixtures that are built once: the source distribution, the Debian package, their contents."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import broken_links
from tests.support.mounting import REPOSITORY, area

MADE = (".git", ".venv", "__pycache__", "*.egg-info", "/build", "dist", ".*_cache", ".hypothesis")
"""Files that work in a checkout leaves and that are not part of the source."""


def build(hook: str, source: Path, target: Path) -> Path:
    """Build ``source`` as pip does, by a hook of its build system."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code, target],
        cwd=source, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Deprecat" not in done.stderr, done.stderr
    return target / done.stdout.splitlines()[-1]


def bundle_by(modules: Path, work: Path) -> bytes:
    """Return what ``gitguard share --bundle`` of an installation in ``modules`` packs."""
    start = "from gitguardfs.commands.gitguard import main; main()"
    subprocess.run(
        [sys.executable, "-c", start, "share", "--bundle", work / "bundle.tar"],
        env={**os.environ, "PYTHONPATH": str(modules)}, cwd="/", check=True, timeout=60,
    )  # fmt: skip
    return (work / "bundle.tar").read_bytes()


def lost_links(tree: Path) -> dict[str, list[str]]:
    """Return the links of each document in an unpacked package that lead to no file of it."""
    directory = tree / "usr/share/doc/gitguardfs"
    documents = {str(path.relative_to(directory)): path for path in directory.rglob("*.md")}
    here = [*REPOSITORY.glob("docs/*.md"), *(REPOSITORY / name for name in (
        "README.md", "SECURITY.md", "CONTRIBUTING.md", "packaging/README.md"))]  # fmt: skip
    assert {str(path.relative_to(REPOSITORY)) for path in here} <= set(documents)
    return {name: found for name, path in documents.items() if (found := broken_links(path))}


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    with area() as here:
        yield here


@pytest.fixture(scope="session")
def checkout(place: Path) -> Path:
    """A copy, since a build leaves files beside its source."""
    copy = place / "checkout"
    shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(*MADE))
    return copy


@pytest.fixture(scope="session")
def sdist(checkout: Path, place: Path) -> Path:
    before = {path for path in checkout.rglob("*") if path.is_file()}
    (place / "dist").mkdir()
    path = build("build_sdist", checkout, place / "dist")
    for made in {path for path in checkout.rglob("*") if path.is_file()} - before:
        made.unlink()
    return path


@pytest.fixture(scope="session")
def unpacked(sdist: Path, place: Path) -> Path:
    (place / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", sdist, "-C", place / "unpacked", "--no-same-owner"], check=True)
    (top,) = (place / "unpacked").iterdir()
    os.chmod(top, 0o755)
    return top


@pytest.fixture(scope="session")
def deb(checkout: Path, place: Path) -> Path:
    """Build the Debian package."""
    done = subprocess.run(
        [checkout / "packaging/build-deb.sh", place / "deb"],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Path(done.stdout.splitlines()[-1])
