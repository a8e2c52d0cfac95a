"""The root file system in which vm-setup.sh has been run, and a session of its desktop."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.desktop.root import Prepared, System, overlaid, prepare
from tests.support.mounting import area


@dataclass(frozen=True)
class Desktop:
    """The prepared system, with what a test changes apart from it."""

    system: System
    upper: Path
    first_run: str
    apps_run: str

    def changed(self) -> set[str]:
        """Return the paths of what was written or removed since the context began."""
        return {
            str(path.relative_to(self.upper))
            for path in self.upper.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    return prepare()


@pytest.fixture(scope="module")
def desktop(prepared: Prepared) -> Iterator[Desktop]:
    with area() as work, overlaid(prepared.root, work) as (root, upper):
        with System.entered(root) as system:
            yield Desktop(system, upper, prepared.first_run, prepared.apps_run)
