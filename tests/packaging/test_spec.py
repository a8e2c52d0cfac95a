"""The spec file for Fedora, as far as Debian's rpm can tell: it builds, and its lists are whole.

Two things are stand-ins: Fedora's own macros, and pyfuse3, which is not built here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gitguardfs
from gitguardfs.base import installation
from tests.packaging.conftest import build, lost_links
from tests.support.commands import PROGRAMS, every_command
from tests.support.mounting import REPOSITORY

SPEC = REPOSITORY / "packaging/gitguardfs.spec"
MODULES = "/usr/lib64/gitguardfs"
FEDORA = {
    "_libdir": "/usr/lib64",
    "_sbindir": "/usr/bin",
    "_unitdir": "/usr/lib/systemd/system",
    "python3": sys.executable,
    "python3_version": "3.14",
    "pypi_source()": "https://pypi.example/%1-%2.tar.gz",
    "py_byte_compile()": "%1 -m compileall -q %2",
    "debug_package": "%nil",
    "__os_install_post": "%nil",
    # What Fedora finds out by itself needs its own programs.
    "_build_id_links": "none",
    "_use_internal_dependency_generator": "0",
}
PYFUSE3 = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "pyfuse3"
version = "3.5.0"

[tool.setuptools]
py-modules = ["pyfuse3"]
"""

pytestmark = pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpm is not installed")


def defined(**more: str) -> list[str]:
    found = {**FEDORA, **more}
    return [word for name, text in found.items() for word in ("--define", f"{name} {text}")]


def test_rpm_reads_it_and_it_has_our_version() -> None:
    done = subprocess.run(
        ["rpmspec", *defined(), "--query", "--queryformat", "%{VERSION} %{LICENSE}\n", SPEC],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{gitguardfs.__version__} MIT AND LGPL-2.1-or-later\n"
    assert done.stderr == ""


@pytest.fixture(scope="module")
def package(sdist: Path, place: Path) -> Path:
    top = place / "rpm"
    (top / "SOURCES").mkdir(parents=True)
    shutil.copy(sdist, top / "SOURCES")
    pyfuse3 = place / "pyfuse3"
    pyfuse3.mkdir()
    (pyfuse3 / "pyproject.toml").write_text(PYFUSE3)
    (pyfuse3 / "pyfuse3.py").touch()
    (pyfuse3 / "LICENSE").touch()
    build("build_sdist", pyfuse3, top / "SOURCES")
    done = subprocess.run(
        ["rpmbuild", *defined(_topdir=str(top)), "--nodeps", "-bb", SPEC],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Installed (but unpackaged)" not in done.stderr
    (found,) = (top / "RPMS").rglob("gitguardfs-*.rpm")
    return found


def query(package: Path, *what: str) -> str:
    return subprocess.run(
        ["rpm", "-qp", "--nosignature", *what, package], capture_output=True, text=True, check=True
    ).stdout


def test_it_has_programs_pages_completion_and_unit(package: Path) -> None:
    listed = query(package, "--list").splitlines()
    for program in (*PROGRAMS, "umount.fuse.gitguardfs"):
        assert f"/usr/bin/{program}" in listed
    assert "/usr/lib/systemd/system/gitguardfs@.service" in listed
    assert "/usr/lib/systemd/system/gitguardfs-changes.service" in listed
    for one in every_command():
        path = f"/usr/share/man/man{8 if one.words[0] == 'vm-mount' else 1}/{'-'.join(one.words)}"
        assert any(name.startswith(f"{path}.") for name in listed)
    for program in PROGRAMS:
        for name in (f"bash-completion/completions/{program}", f"zsh/site-functions/_{program}",
                     f"fish/vendor_completions.d/{program}.fish"):  # fmt: skip
            assert f"/usr/share/{name}" in listed
    scripts = [f"guest-setup/{name}" for name in installation.SCRIPT_NAMES]
    for name in ("gitguardfs/py.typed", "pyfuse3.py", *scripts):
        assert f"{MODULES}/{name}" in listed


@pytest.fixture(scope="module")
def tree(package: Path, place: Path) -> Path:
    """Unpack the package."""
    root = place / "rpm/unpacked"
    root.mkdir()
    with open(place / "rpm/archive", "wb") as archive:
        subprocess.run(["rpm2cpio", package], stdout=archive, check=True)
    with open(place / "rpm/archive", "rb") as archive:
        subprocess.run(
            ["cpio", "-id", "--quiet", "--no-absolute-filenames"],
            stdin=archive, cwd=root, check=True,
        )  # fmt: skip
    return root


def test_its_programs_find_their_modules(tree: Path) -> None:
    text = (tree / "usr/bin/gitguardfs").read_text()
    assert text.startswith("#!/usr/bin/python3 -I\n") and f'"{MODULES}"' in text
    assert "from gitguardfs.commands.gitguardfs import main" in text
    unit = (tree / "usr/lib/systemd/system/gitguardfs@.service").read_text()
    assert "ExecStart=/usr/bin/gitguardfs " in unit
    unit = (tree / "usr/lib/systemd/system/gitguardfs-changes.service").read_text()
    assert "ExecStart=/usr/bin/gitguard changes-in " in unit


def test_the_links_of_its_documents_lead_to_its_files(tree: Path) -> None:
    assert lost_links(tree) == {}


def test_it_is_not_removed_while_something_guards(package: Path) -> None:
    said = query(package, "--scripts")
    assert (
        "preuninstall scriptlet" in said
        and f"{MODULES}/guest-setup/refuse-removal.sh || exit 1" in said
    )


def test_it_is_not_installed_beside_a_checkout(package: Path, place: Path) -> None:
    script = query(package, "--queryformat", "%{PREIN}")
    (place / "checkout-of-rpm/lib/gitguardfs").mkdir(parents=True)
    for installed, code in ((place / "checkout-of-rpm", 1), (place / "rpm", 0)):
        done = subprocess.run(
            ["sh", "-c", script, "sh", "1"],
            env={**os.environ, "INSTALLED": str(installed)}, check=False,
        )  # fmt: skip
        assert done.returncode == code
