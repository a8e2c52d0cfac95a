"""Fixtures of this tier: umount(8) finds the umount helper of this checkout."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.adapter.world import later
from tests.support import mounting, processors
from tests.support.mounting import PLACE, REPOSITORY, area, unmount
from tests.support.people import reachable_python
from tests.support.siege import Siege, siege
from tests.support.vm_world import systemd_world, world

__all__ = ["later", "systemd_world", "umount_helper", "world"]

HELPER = "umount.fuse.gitguardfs"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--session", default="", help="the session of root's mounts (--session)")


def pytest_configure(config: pytest.Config) -> None:
    mounting.SESSION = config.getoption("--session")


@pytest.fixture(scope="session", autouse=True)
def umount_helper() -> Iterator[None]:
    """umount(8) finds the helper of this checkout; /run/mount/utab is this process's own."""
    if os.geteuid() != 0:
        yield
        return
    with TemporaryDirectory(prefix="ggfs-sbin-", dir=PLACE) as work:
        covered = _install_helper(Path(work))
        yield
        subprocess.run(["umount", "-n", "-i", "-l", *covered, work], check=True)


@pytest.fixture(autouse=True)
def every_processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests in which processes compete use all processors, if the tier is bound to one of them."""
    marked = request.node.get_closest_marker("every_processor") is not None
    with processors.all_in_use() if marked else nullcontext():
        yield


@pytest.fixture(scope="module")
def field() -> Iterator[Siege]:
    """Return projects to attack, guarded and not, once for each module."""
    with siege() as ready:
        yield ready


@pytest.fixture(scope="session")
def node_modules() -> Iterator[Path]:
    """npm's programs, in a place that the guest's user can reach."""
    source = REPOSITORY / ".venv/node/node_modules"
    if not source.is_dir():
        pytest.skip("no programs of npm are installed")
    with area() as place:
        (place / "node_modules").mkdir()
        subprocess.run(["mount", "-n", "--bind", source, place / "node_modules"], check=True)
        yield place / "node_modules"
        unmount(place / "node_modules")


@pytest.fixture
def ordinary_users_can_mount(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start daemons by a Python that ordinary users can run."""
    with reachable_python() as python:
        monkeypatch.setattr(sys, "executable", python)
        yield


def _install_helper(work: Path) -> tuple[str, str]:
    """Mount what is needed, for this process's namespace alone; return where."""
    Path("/run/mount").mkdir(exist_ok=True)
    subprocess.run(["mount", "-n", "-i", "-t", "tmpfs", "none", "/run/mount"], check=True)
    subprocess.run(["mount", "-n", "-t", "tmpfs", "none", work], check=True)
    for name in ("upper", "work"):
        (work / name).mkdir()
    launcher = work / "upper" / HELPER
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})"
    launcher.write_text(
        f"#!{sys.executable} -I\n{code}\nfrom gitguardfs.commands.umount import main\nmain()\n"
    )
    launcher.chmod(0o755)
    sbin = os.path.realpath("/sbin")
    layers = f"lowerdir={sbin},upperdir={work}/upper,workdir={work}/work"
    subprocess.run(["mount", "-n", "-t", "overlay", "helper", "-o", layers, sbin], check=True)
    return sbin, "/run/mount"
