"""The Debian package on Debian 13: apt installs it, it guards, apt removes all of it.

No systemd runs here, and no guest; tests/guest/test_8_debian12.py has both. The tests stand in the
order of the package's life.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import gitguardfs
from tests.desktop.conftest import Desktop
from tests.desktop.root import AGENT, FROM_ARCHIVES, System
from tests.support import raw_calls
from tests.support.commands import PROGRAMS, every_command
from tests.support.mounting import REPOSITORY, area

UNIT = Path("usr/lib/systemd/system/gitguardfs@.service")
DPKG_SETTINGS = Path("etc/dpkg/dpkg.cfg.d/99mmdebstrap")
"""What keeps the images small would leave manual pages and documents out."""
OF_DPKG = (
    "var/lib/dpkg",
    "var/lib/apt",
    "var/lib/systemd",
    "var/log",
    "var/cache",
    "etc/ld.so.cache",
)
HOST = 4321
SOURCE, VIEW = Path("srv/source"), Path("srv/view")


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


def test_manual_pages_and_completion_are_where_the_system_looks(system: System) -> None:
    for name in ("man1/gitguard-vm-up.1", "man8/vm-mount.8", "man8/umount.fuse.gitguardfs.8"):
        assert (system.root / f"usr/share/man/{name}.gz").is_file()
    for program in PROGRAMS:
        for name in (f"zsh/vendor-completions/_{program}",
                     f"fish/vendor_completions.d/{program}.fish"):  # fmt: skip
            assert (system.root / "usr/share" / name).is_file()


def test_bash_completes_by_itself(system: System) -> None:
    """As bash-completion does at the first tab key: it loads the file, which asks the program."""
    ask = """
        . /usr/share/bash-completion/bash_completion && _comp_load gitguard || exit
        COMP_WORDS=(gitguard vm up --allow cra) COMP_CWORD=4 words=($(complete -p gitguard))
        "${words[4]}" gitguard cra --allow && echo "${COMPREPLY[@]}"
    """
    assert said(system, "bash", "-c", ask) == "crates\n"


def test_systemd_reads_the_unit_and_finds_its_program(system: System) -> None:
    service = "/" + str(UNIT.with_name("gitguardfs@srv-view.service"))
    done = system.run("systemd-analyze", "verify", "--recursive-errors=no", service)
    assert (done.returncode, done.stderr) == (0, "")
    starts = [line for line in (system.root / UNIT).read_text().splitlines()
              if line.startswith("ExecStart=")]  # fmt: skip
    assert [line.split()[0] for line in starts] == ["ExecStart=/usr/bin/gitguardfs"]


@pytest.fixture(scope="module")
def view(system: System) -> Iterator[Path]:
    """Mount a directory with a repository, as its package's user does; return its path outside."""
    root = system.root
    (root / SOURCE / ".git").mkdir(parents=True)
    (root / VIEW).mkdir()
    (root / SOURCE / ".git/config").write_text("[core]\n")
    (root / SOURCE / "file").write_text("text\n")
    for path in (root / SOURCE, *(root / SOURCE).rglob("*")):
        os.chown(path, HOST, HOST)
    said(system, "gitguardfs", f"/{SOURCE}", f"/{VIEW}", "--map", f"{HOST}:{AGENT}")
    yield root / VIEW
    if os.path.ismount(root / VIEW):
        raw_calls.umount(root / VIEW, raw_calls.MNT_DETACH)


def test_a_view_maps_and_guards(system: System, view: Path) -> None:
    assert (view / "file").stat().st_uid == AGENT
    for command in (
        ["cat", f"/{VIEW}/.git/config"],
        ["mv", f"/{VIEW}/.git", f"/{VIEW}/x"],
        ["mkdir", f"/{VIEW}/.GIT"],
    ):
        done = by_the_agent(system, *command)
        assert done.returncode == 1 and "Permission denied" in done.stderr, done
    done = by_the_agent(system, "sh", "-c", f"echo more >>/{VIEW}/file")
    assert (done.returncode, done.stderr) == (0, "")
    assert (system.root / SOURCE / "file").read_text() == "text\nmore\n"
    assert (system.root / SOURCE / ".git/config").read_text() == "[core]\n"


def test_an_upgrade_leaves_the_view_to_its_daemon(
    system: System, view: Path, package: Path
) -> None:
    done = apt_get(system, "install", "--reinstall", package)
    assert done.returncode == 0, done.stderr
    assert "still served by the previous version" in done.stdout
    assert (view / "file").read_text() == "text\nmore\n"


def test_what_serves_a_view_is_not_removed(system: System, view: Path) -> None:
    done = apt_get(system, "remove", "gitguardfs")
    assert done.returncode != 0
    said_by_both = done.stdout + done.stderr  # apt passes on what dpkg and the script print
    assert f"/{VIEW}\n" in said_by_both and "umount them first" in said_by_both
    assert gitguardfs.__version__ in said(system, "gitguardfs", "--version")
    assert by_the_agent(system, "cat", f"/{VIEW}/.git/config").returncode == 1
    said(system, "umount", f"/{VIEW}")
    assert not os.path.ismount(view)
    shutil.rmtree(system.root / SOURCE)
    view.rmdir()


def test_a_purge_leaves_nothing_of_it(system: System, before: set[str]) -> None:
    packed = {path.lstrip("/") for path in said(system, "dpkg", "-L", "gitguardfs").splitlines()}
    assert str(UNIT) in packed
    done = apt_get(system, "autoremove", "--purge", "gitguardfs")
    assert done.returncode == 0, done.stdout + done.stderr
    after = files_of(system)
    # Something else may want a package that came with it, and keep that.
    assert {path for path in after - before if path in packed or "gitguard" in path} == set()
    assert before - after == set()
