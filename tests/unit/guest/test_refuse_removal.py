"""The checks before a package is removed, no share may be left open, and before it is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "guest-setup/refuse-removal.sh"
OTHERS = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "fstab").write_text("# /a /b fuse.gitguardfs x 0 0\n/dev/vda / ext4 defaults 0 1\n")
    (tmp_path / "units/multi-user.target.wants").mkdir(parents=True)
    (tmp_path / "mountinfo").write_text(OTHERS)
    return tmp_path


def ask(machine: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin", "FSTAB": str(machine / "fstab"), "UNITS": str(machine / "units"),
        "MOUNTINFO": str(machine / "mountinfo"),
    }  # fmt: skip
    return subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)


def test_where_nothing_guards_it_may_go(machine: Path) -> None:
    done = ask(machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in ("fstab", "units/multi-user.target.wants"):
        path = machine / name
        path.rmdir() if path.is_dir() else path.unlink()
    assert ask(machine).returncode == 0


@pytest.mark.parametrize(
    "line",
    ["/mnt/p /home/me/p fuse.gitguardfs map=1:2 0 0", "/mnt/c# /home/me/p fuse.gitguardfs",
     "gitguardfs#/mnt/p /home/me/p fuse defaults 0 0", "  /mnt/p /home/me/p gitguardfs x"],
)  # fmt: skip
def test_a_line_of_fstab_keeps_it(machine: Path, line: str) -> None:
    with open(machine / "fstab", "a") as fstab:
        fstab.write(f"{line}\n")
    done = ask(machine)
    assert done.returncode == 1
    assert line in done.stderr and "vm-mount --remove" in done.stderr
    assert "# /a /b" not in done.stderr


def test_a_service_that_is_enabled_keeps_it(machine: Path) -> None:
    link = machine / "units/multi-user.target.wants/gitguardfs@home-me-p.service"
    link.symlink_to("/nowhere")
    done = ask(machine)
    assert done.returncode == 1 and str(link) in done.stderr


@pytest.mark.parametrize("optional", ["", "shared:5 ", "shared:5 master:2 "])
def test_a_view_of_roots_keeps_it(machine: Path, optional: str) -> None:
    super_options = "fuse.gitguardfs /mnt/p rw,user_id=0,group_id=0"
    line = f"60 22 0:50 / /home/me/p rw,nosuid {optional}- {super_options}\n"
    (machine / "mountinfo").write_text(OTHERS + line)
    done = ask(machine)
    assert done.returncode == 1
    assert "/home/me/p\n" in done.stderr and "umount" in done.stderr


def test_no_user_can_keep_it(machine: Path) -> None:
    line = "60 22 0:50 / /home/me/p rw - fuse.gitguardfs /x rw,user_id=1000,group_id=0\n"
    (machine / "mountinfo").write_text(OTHERS + line)
    assert ask(machine).returncode == 0


@pytest.mark.parametrize(
    ("reason", "there", "refused"),
    [
        ("install", True, True), ("1", True, True), ("install", False, False), ("1", False, False),
        ("upgrade", True, False), ("2", True, False), ("abort-upgrade", True, False),
    ],
)  # fmt: skip
def test_a_package_is_not_installed_beside_a_checkout(
    tmp_path: Path, reason: str, there: bool, refused: bool
) -> None:
    """The reasons are those of dpkg and of rpm. install.sh looks for the package."""
    if there:
        (tmp_path / "lib/gitguardfs").mkdir(parents=True)
    done = subprocess.run(
        [SCRIPT.parents[1] / "packaging/refuse-install.sh", reason],
        env={"PATH": "/usr/bin:/bin", "INSTALLED": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (int(refused), int(refused))
    assert (f"{tmp_path}/lib/guest-setup/install.sh --uninstall" in done.stderr) == refused
