"""The files of the Debian package. The guest and desktop tiers test its life on a system."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gitguardfs.base import installation
from tests.packaging.conftest import bundle_by, lost_links

pytestmark = pytest.mark.skipif(
    shutil.which("dh_python3") is None, reason="debhelper is not installed"
)


@pytest.fixture(scope="module")
def tree(deb: Path, place: Path) -> Path:
    """Unpack the package."""
    subprocess.run(["dpkg-deb", "--extract", deb, place / "deb/unpacked"], check=True)
    return place / "deb/unpacked"


def test_the_links_of_its_documents_lead_to_its_files(tree: Path) -> None:
    assert lost_links(tree) == {}


def test_it_packs_for_a_guest_what_a_checkout_packs(tree: Path, place: Path) -> None:
    packed = bundle_by(tree / "usr/share/gitguardfs", place / "deb")
    assert packed == installation.bundle()


def test_it_is_not_installed_beside_a_checkout(deb: Path, place: Path) -> None:
    subprocess.run(["dpkg-deb", "--control", deb, place / "deb/control"], check=True)
    (place / "installed/lib/gitguardfs").mkdir(parents=True)
    for installed, code in ((place / "installed", 1), (place / "deb", 0)):
        done = subprocess.run(
            [place / "deb/control/preinst", "install"],
            env={**os.environ, "INSTALLED": str(installed)}, check=False,
        )  # fmt: skip
        assert done.returncode == code
