"""The shell scripts of guest-setup/: what they promise; a dry run changes nothing."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[3] / "guest-setup"
INSTALL = "install.sh"
QUICKSTART = "quickstart.sh"

CHANGING = (
    *("apt-get", "chmod", "chown", "cp", "dnf", "gcc", "gitguardfs", "install", "mkdir", "mktemp"),
    *("modprobe", "mount", "mv", "pip", "python3", "rm", "setpriv", "umount"),
)

APT_WITH_EVERYTHING = """
if [ $# -eq 1 ]; then echo ' 500 http://deb.example.org stable/main amd64 Packages'; exit; fi
printf '%s:\\n  Installed: (none)\\n  Candidate: 3.2.1-2+b1\\n' "$2"
"""
APT_WITH_AN_OLD_PYFUSE3 = APT_WITH_EVERYTHING.replace("3.2.1", "3.1.0")
APT_WITHOUT_PYFUSE3 = f"""
if [ "${{2:-}}" = python3-pyfuse3 ]; then exit; fi
{APT_WITH_EVERYTHING}
"""
PYTHON_WITHOUT_PIP = """
[ "$3" = venv ] || exec /usr/bin/python3 "$@"
mkdir -p "$5/bin" && ln -s /bin/false "$5/bin/python3"
"""
NOTHING_IS_INSTALLED = "exit 1"
EVERYTHING_IS_INSTALLED = "printf installed"

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_ID="13"\n'
UBUNTU = 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n'
MINT = 'ID=linuxmint\nID_LIKE="ubuntu debian"\n'
FEDORA = 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=42\n'
ARCH = 'NAME="Arch Linux"\nID=arch\n'


PROGRAM = """
import os

def main() -> None:
    print(os.environ.get("_GITGUARDFS_COMPLETE", "gitguardfs, version 1.2.3"))
"""

SHARED = "fish/vendor_completions.d/gitguardfs.fish"


class Guest:
    """A pretended system: its os-release, its /usr/local, and the tools it finds first on PATH."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.local = root / "usr-local"
        self.local.mkdir()
        (self.local / "sbin").mkdir()
        self.checkout = root / "checkout"
        self.copy_checkout()
        self.os_release = root / "os-release"
        self.changes = root / "changes"
        self.mountinfo = root / "mountinfo"
        self.mountinfo.write_text("22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n")
        for name in CHANGING:
            self.tool(name, f'echo "{name} $*" >> "{self.changes}"')
        self.tool("apt-cache", APT_WITH_EVERYTHING)
        self.tool("dpkg-query", NOTHING_IS_INSTALLED)
        self.tool("rpm", NOTHING_IS_INSTALLED)
        self.system(DEBIAN)

    def copy_checkout(self) -> None:
        shutil.copytree(SETUP, self.checkout / "guest-setup")
        common = self.checkout / "guest-setup" / "common.sh"
        text = common.read_text()
        assert text.count("=/usr/local/") == 3
        common.write_text(text.replace("=/usr/local/", f"={self.local}/"))
        package = self.checkout / "gitguardfs"
        (package / "__pycache__").mkdir(parents=True)
        (package / "__pycache__" / "stale.pyc").write_text("")
        (package / "__init__.py").write_text("")
        (package / "commands").mkdir()
        (package / "commands/__init__.py").write_text("")
        (package / "commands/gitguardfs.py").write_text(PROGRAM)
        for name in ("gitguard", "vm_mount"):
            (package / "commands" / f"{name}.py").write_text(PROGRAM)

    def tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def system(self, os_release: str) -> None:
        self.os_release.write_text(os_release)

    def run(
        self, script: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **variables,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "OS_RELEASE": str(self.os_release),
            "FSTAB": str(self.os_release.parent / "fstab"),
            "UNITS": str(self.os_release.parent / "units"),
            "MOUNTINFO": str(self.mountinfo),
            "SBIN": str(self.local / "sbin"),
            "PACKAGED": str(self.local / "packaged"),
        }
        return subprocess.run(
            [str(self.checkout / "guest-setup" / script), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def plan(self, script: str, *arguments: str) -> str:
        """Return what a dry run prints; assert that it changed nothing."""
        before = self.installed()
        result = self.run(script, "--dry-run", *arguments)
        assert result.stderr == ""
        assert result.returncode == 0
        assert not self.changes.exists(), self.changes.read_text()
        assert self.installed() == before
        return result.stdout.replace(str(self.local), "/usr/local")

    def installed(self) -> list[str]:
        return sorted(str(path.relative_to(self.local)) for path in self.local.rglob("*"))


def packages(plan: str, manager: str) -> list[str]:
    """Return the packages that the plan gives to a package manager."""
    lines = [line for line in plan.splitlines() if f"{manager} install" in line]
    words = [word for line in lines for word in line.split(f"{manager} install")[1].split()]
    return [word for word in words if not word.startswith("-") and "::" not in word]


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


@pytest.mark.parametrize("script", [INSTALL, QUICKSTART])
def test_an_unknown_option_is_refused_by_name(guest: Guest, script: str) -> None:
    result = guest.run(script, "--frobnicate")
    assert result.returncode == 2
    assert "--frobnicate" in result.stderr
    assert not guest.changes.exists()


@pytest.mark.parametrize("system", [DEBIAN, UBUNTU, MINT])
def test_debian_family_takes_the_distribution_packages(guest: Guest, system: str) -> None:
    guest.system(system)
    plan = guest.plan(INSTALL)
    wanted = ["fuse3", "python3", "python3-pyfuse3", "python3-trio", "python3-click"]
    assert packages(plan, "apt-get") == wanted
    assert "DEBIAN_FRONTEND=noninteractive" in plan
    assert plan.index("apt-get update") < plan.index("apt-get install")
    assert "pip" not in plan
    assert "dnf" not in plan


def test_without_a_pyfuse3_package_a_virtual_environment_is_built(guest: Guest) -> None:
    guest.system(UBUNTU)
    guest.tool("apt-cache", APT_WITHOUT_PYFUSE3)
    plan = guest.plan(INSTALL)
    wanted = ["fuse3", "libfuse3-dev", "gcc", "python3-dev", "python3-venv", "pkg-config"]
    assert packages(plan, "apt-get") == wanted
    assert "python3-pyfuse3" in plan


def test_a_pyfuse3_package_that_is_too_old_is_not_taken(guest: Guest) -> None:
    guest.tool("apt-cache", APT_WITH_AN_OLD_PYFUSE3)
    for is_installed in (NOTHING_IS_INSTALLED, EVERYTHING_IS_INSTALLED):
        guest.tool("dpkg-query", is_installed)
        plan = guest.plan(INSTALL)
        assert "python3-pyfuse3 is 3.1.0-2+b1" in plan
        assert "'pyfuse3>=3.2'" in plan and "python3-pyfuse3" not in packages(plan, "apt-get")


def test_fedora_builds_a_virtual_environment(guest: Guest) -> None:
    guest.system(FEDORA)
    plan = guest.plan(INSTALL)
    wanted = ["fuse3", "fuse3-devel", "gcc", "python3-devel", "pkgconf-pkg-config"]
    assert packages(plan, "dnf") == wanted
    assert "apt-get" not in plan
    assert "-m venv --clear /usr/local/lib/gitguardfs/venv" in plan
    assert re.search(r"-m pip install .*'pyfuse3>=3\.2' trio click$", plan, re.MULTILINE)


@pytest.mark.parametrize("system", [ARCH, ""], ids=["arch", "unnamed"])
def test_an_unknown_distribution_is_refused_in_one_line(guest: Guest, system: str) -> None:
    guest.system(system)
    result = guest.run(INSTALL, "--dry-run")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "Debian 12/13, Ubuntu 24.04+ or Fedora 41+" in result.stderr
    assert result.stdout == ""
    assert not guest.changes.exists()


def test_a_foreign_program_of_that_name_is_left_alone(guest: Guest) -> None:
    foreign = guest.local / "bin" / "gitguardfs"
    foreign.parent.mkdir()
    foreign.write_text("#!/bin/sh\n")
    result = guest.run(INSTALL, "--dry-run")
    assert result.returncode == 1
    assert str(foreign) in result.stderr
    assert "would run" not in guest.plan(INSTALL, "--uninstall")


@pytest.fixture
def root_guest(guest: Guest) -> Guest:
    """A guest whose file tools are the real ones, and that has every package."""
    if os.geteuid() != 0:
        pytest.skip("installing needs root")
    for name in CHANGING:
        (guest.bin / name).unlink()
    guest.tool("dpkg-query", EVERYTHING_IS_INSTALLED)
    return guest


def test_nothing_is_installed_beside_a_package(root_guest: Guest) -> None:
    (root_guest.local / "packaged").touch()
    before = root_guest.installed()
    done = root_guest.run(INSTALL)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "installed as a package" in done.stderr and "vm-mount --remove" in done.stderr
    assert root_guest.installed() == before


def test_installing_twice_leaves_one_clean_package(root_guest: Guest) -> None:
    for _ in range(2):
        result = root_guest.run(INSTALL)
        assert result.returncode == 0, result.stderr
        assert "gitguardfs, version 1.2.3 is installed" in result.stdout
    files = root_guest.installed()
    assert not [name for name in files if "stale" in name or name.endswith((".new", ".old"))]
    scripts = ("common", "install", "refuse-removal", "steps", "vm-apps")
    assert {
        "bin/gitguard", "bin/gitguardfs", "bin/vm-mount", "sbin/umount.fuse.gitguardfs",
        *(f"lib/gitguardfs/lib/guest-setup/{name}.sh" for name in scripts),
    } <= set(files)  # fmt: skip


def test_where_pyfuse3_cannot_be_built_it_is_left_out(root_guest: Guest) -> None:
    root_guest.system(FEDORA)
    root_guest.tool("rpm", "exit 0")
    root_guest.tool("python", PYTHON_WITHOUT_PIP)
    python = str(root_guest.bin / "python")
    done = root_guest.run(INSTALL, SYSTEM_PYTHON=python)
    assert done.returncode == 0, done.stderr
    assert "pyfuse3 could not be built" in done.stderr and f"run by {python}" in done.stdout
    assert "lib/gitguardfs/venv" not in root_guest.installed()


@pytest.mark.parametrize("script", [INSTALL, QUICKSTART])
def test_an_older_python_is_named(script: str, root_guest: Guest) -> None:
    root_guest.system(DEBIAN)
    root_guest.tool("dpkg-query", EVERYTHING_IS_INSTALLED)
    root_guest.tool("python", '[ "$2" = -V ] || exit 1; echo Python 3.10.12')
    done = root_guest.run(script, SYSTEM_PYTHON=str(root_guest.bin / "python"))
    assert done.returncode == 1
    assert "needs Python 3.11" in done.stderr and "Python 3.10.12" in done.stderr


def test_what_was_installed_installs_itself_anew(root_guest: Guest) -> None:
    """As in a guest that gets the files of the host's installation."""
    assert root_guest.run(INSTALL).returncode == 0
    before = root_guest.installed()
    shutil.rmtree(root_guest.checkout)
    root_guest.checkout = root_guest.local / "lib/gitguardfs/lib"
    again = root_guest.run(INSTALL)
    assert again.returncode == 0, again.stderr
    assert root_guest.installed() == before


def test_what_root_will_run_is_in_nobody_elses_hands(root_guest: Guest) -> None:
    package = root_guest.checkout / "gitguardfs"
    os.chown(package / "commands/gitguardfs.py", 1000, 1000)
    (package / "commands/gitguardfs.py").chmod(0o666)
    package.chmod(0o2777)
    assert root_guest.run(INSTALL).returncode == 0
    for path in (root_guest.local / "lib").rglob("*"):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (0, 0)
        assert status.st_mode & 0o7022 == 0, path


def test_the_launcher_ignores_the_callers_environment(root_guest: Guest, tmp_path: Path) -> None:
    assert root_guest.run(INSTALL).returncode == 0
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "gitguardfs.py").write_text("raise SystemExit('loaded the wrong module')")
    (trap / "re.py").write_text("raise SystemExit('loaded the wrong module')")
    result = subprocess.run(
        [str(root_guest.local / "bin" / "gitguardfs"), "--version"],
        cwd=trap,
        env={"PYTHONPATH": str(trap)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("gitguardfs, version 1.2.3\n", "")


def test_uninstall_removes_what_install_wrote_and_nothing_else(root_guest: Guest) -> None:
    assert root_guest.run(INSTALL).returncode == 0
    (root_guest.local / "bin" / "other").write_text("")
    (root_guest.local / "lib" / "other").write_text("")
    assert root_guest.run(INSTALL, "--uninstall").returncode == 0
    left = [path for path in root_guest.local.rglob("*") if path.is_symlink() or path.is_file()]
    assert sorted(left) == [root_guest.local / "bin/other", root_guest.local / "lib/other"]
    assert not (root_guest.local / "lib/gitguardfs").exists()


def test_a_foreign_file_stays(root_guest: Guest) -> None:
    foreign = root_guest.local / "share" / SHARED
    foreign.parent.mkdir(parents=True)
    foreign.write_text("foreign")
    done = root_guest.run(INSTALL)
    assert done.returncode == 0 and f"{foreign} was not written by this script" in done.stderr
    assert root_guest.run(INSTALL, "--uninstall").returncode == 0
    assert foreign.read_text() == "foreign"


def test_completion_that_cannot_be_made_is_no_obstacle(root_guest: Guest) -> None:
    (root_guest.checkout / "gitguardfs/commands/gitguard.py").write_text("raise OSError\n")
    done = root_guest.run(INSTALL)
    assert done.returncode == 0 and "there is no completion" in done.stderr
    assert "gitguardfs, version 1.2.3 is installed" in done.stdout


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o775, 0), (0o755, 1000)])
def test_nothing_is_installed_where_others_can_change_it(
    root_guest: Guest, mode: int, owner: int
) -> None:
    root_guest.local.chmod(mode)
    os.chown(root_guest.local, owner, 1000)
    done = root_guest.run(INSTALL)
    assert done.returncode == 1
    assert f"{root_guest.local} can be changed by others than root" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert root_guest.installed() == ["sbin"]
    root_guest.local.chmod(0o1777)
    os.chown(root_guest.local, 0, 0)
    assert root_guest.run(INSTALL).returncode == 0
