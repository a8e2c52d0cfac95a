"""The Debian package, built on the host as a user builds it, in two versions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import gitguardfs
from tests.support.mounting import REPOSITORY, area

DIST = "dist"
"""Below the guest's checkout: where the packages are."""
VERSIONS = (gitguardfs.__version__, f"{gitguardfs.__version__}+1")
_PARTS = ("gitguardfs", "guest-setup", "packaging", "docs", "benchmarks", "pyproject.toml",
          "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md")  # fmt: skip


def build(checkout: Path) -> None:
    """Build the package of this version and of one that follows it, in the guest's checkout."""
    for version in VERSIONS:
        with area() as work:
            for name in _PARTS:
                if (REPOSITORY / name).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(REPOSITORY / name, work / name, ignore=ignored)
                else:
                    shutil.copy(REPOSITORY / name, work)
            package = work / "gitguardfs/__init__.py"
            text = package.read_text()
            assert text.count(VERSIONS[0]) == 1
            package.write_text(text.replace(VERSIONS[0], version))
            subprocess.run(
                [work / "packaging/build-deb.sh", checkout / DIST],
                check=True, capture_output=True, timeout=600,
            )  # fmt: skip
