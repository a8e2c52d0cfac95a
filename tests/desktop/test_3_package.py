"""The Debian package on Debian 13: apt installs it, apt removes all of it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import gitguardfs
from tests.desktop.conftest import Desktop
from tests.desktop.root import FROM_ARCHIVES, System
from tests.support.commands import every_command
from tests.support.mounting import REPOSITORY, area

UNIT = Path("usr/lib/systemd/system/gitguardfs@.service")
DPKG_SETTINGS = Path("etc/dpkg/dpkg.cfg.d/99mmdebstrap")
"""What keeps the images small would leave manual pages and documents out."""
OF_DPKG = (
    "var/lib/dpkg", "var/lib/apt", "var/lib/systemd", "var/log", "var/cache", "etc/ld.so.cache",
)  # fmt: skip


def apt_get(system: System, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run apt-get without a network: what it needs is in the system."""
    command = ["unshare", "--net", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y"]
    return system.run(*command, FROM_ARCHIVES, *map(str, words))


def files_of(system: System) -> set[str]:
    """Return the paths of the system, except those that dpkg and apt keep for themselves."""
    found: set[str] = set()
    for top, directories, files in os.walk(system.root):
        here = os.path.relpath(top, system.root)
        directories[:] = [
            name for name in directories
            if not os.path.ismount(os.path.join(top, name))
            and os.path.normpath(f"{here}/{name}") not in OF_DPKG
        ]  # fmt: skip
        found.update(os.path.normpath(f"{here}/{name}") for name in (*directories, *files))
    return found - set(OF_DPKG)


@pytest.fixture(scope="module")
def before(desktop: Desktop) -> set[str]:
    (desktop.system.root / DPKG_SETTINGS).unlink()
    return files_of(desktop.system)


@pytest.fixture(scope="module")
def package(desktop: Desktop, before: set[str]) -> Iterator[Path]:
    """The package's path in the system."""
    with area() as work:
        done = subprocess.run(
            [REPOSITORY / "packaging/build-deb.sh", work],
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        (built,) = work.iterdir()
        shutil.copy(built, desktop.system.root / "tmp")  # a tmpfs
        yield Path("/tmp", built.name)


@pytest.fixture(scope="module")
def system(desktop: Desktop, package: Path) -> System:
    done = apt_get(desktop.system, "install", package)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return desktop.system


def said(system: System, *command: str | Path) -> str:
    """Run a command as root, which must succeed, and return what it printed."""
    done = system.run(*map(str, command))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_the_agent(system: System, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        system.as_user(list(map(str, command)), PATH="/usr/bin:/bin"),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_apt_does_not_install_it_beside_a_checkout(desktop: Desktop, package: Path) -> None:
    checkout = desktop.system.root / "usr/local/lib/gitguardfs"
    (checkout / "lib/gitguardfs").mkdir(parents=True)
    try:
        done = apt_get(desktop.system, "install", package)
    finally:
        shutil.rmtree(checkout)
    assert done.returncode != 0 and "install.sh --uninstall" in done.stdout + done.stderr
    assert not (desktop.system.root / "usr/bin/gitguardfs").exists()


def test_apt_installs_it_and_its_files_are_as_packed(system: System) -> None:
    assert said(system, "dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", "gitguardfs") == (
        f"installed {gitguardfs.__version__}"
    )
    assert said(system, "dpkg", "--verify", "gitguardfs") == ""
    assert said(system, "dpkg", "--audit") == ""


def test_what_it_depends_on_or_suggests_is_in_debian(system: System) -> None:
    fields = said(system, "dpkg-query", "-W", "-f=${Depends}, ${Suggests}", "gitguardfs")
    names = re.findall(r"(?:^|[,|] )([a-z0-9.+-]+)", fields)
    assert len(names) > 10
    for name in names:
        assert f"\nPackage: {name}\n" in "\n" + said(system, "apt-cache", "show", name), name


@pytest.mark.parametrize("words", [one.words for one in every_command()], ids=" ".join)
def test_a_command_starts_as_an_ordinary_user(system: System, words: tuple[str, ...]) -> None:
    done = by_the_agent(system, *words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {' '.join(words)}")


def test_bash_completes_by_itself(system: System) -> None:
    """As bash-completion does at the first tab key: it loads the file, which asks the program."""
    ask = """
        . /usr/share/bash-completion/bash_completion && _comp_load gitguard || exit
        COMP_WORDS=(gitguard vm up --allow cra) COMP_CWORD=4 words=($(complete -p gitguard))
        "${words[4]}" gitguard cra --allow && echo "${COMPREPLY[@]}"
    """
    assert said(system, "bash", "-c", ask) == "crates\n"


def test_a_purge_leaves_nothing_of_it(system: System, before: set[str]) -> None:
    packed = {path.lstrip("/") for path in said(system, "dpkg", "-L", "gitguardfs").splitlines()}
    assert str(UNIT) in packed
    done = apt_get(system, "autoremove", "--purge", "gitguardfs")
    assert done.returncode == 0, done.stdout + done.stderr
    after = files_of(system)
    # Something else may want a package that came with it, and keep that.
    assert {path for path in after - before if path in packed or "gitguard" in path} == set()
    assert before - after == set()
