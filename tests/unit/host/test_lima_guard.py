"""The provisioning script that guards the project: what it does, in which order, and how often.

It runs for real, with the real install.sh, below a directory; stand-ins are what only a guest has:
the share that findmnt sees, useradd, and vm-mount, which writes down how it was called.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gitguardfs.base.constants import HOLDER
from gitguardfs.host.share import lima_yaml as lima
from gitguardfs.host.share.lima_yaml import LimaSpec
from tests.support.mounting import REPOSITORY, area

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as provisioning does")

VM_MOUNT = """
import sys

def main():
    with open({calls!r}, "a") as file:
        file.write("vm-mount " + " ".join(sys.argv[1:]) + "\\n")
"""
CLI = 'def main(): print("gitguardfs, version 1.2.3")\n'


@dataclass
class Guest:
    """A guest in a directory, as Lima leaves it when provisioning begins."""

    area: Path
    script: Path

    @property
    def holder(self) -> Path:
        return self.area / "lib/gitguardfs"

    @property
    def launcher(self) -> Path:
        return self.area / "local/bin/gitguardfs"

    def tool(self, name: str, text: str) -> None:
        (self.area / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.area / "bin" / name).chmod(0o755)

    def provision(self, lima_user: str = "me") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.script],
            env={
                "PATH": f"{self.area}/bin:{os.environ['PATH']}",
                "LIMA_CIDATA_USER": lima_user,
                "PARAM_name": "shop",
                "PARAM_options": "git=readonly,hide=a b",
                "OS_RELEASE": str(self.area / "os-release"),
                "SBIN": str(self.area / "local/sbin"),
            },
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def calls(self) -> list[str]:
        path = self.area / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def guest() -> Iterator[Guest]:
    with area() as here:
        made = Guest(here, here / "provision.sh")
        (here / "bin").mkdir()
        (here / "local/sbin").mkdir(parents=True)
        (here / "os-release").write_text("ID=debian\n")
        setup = made.holder / "setup"
        shutil.copytree(REPOSITORY / "guest-setup", setup / "guest-setup")
        common = setup / "guest-setup/common.sh"
        common.write_text(common.read_text().replace("=/usr/local/", f"={here}/local/"))
        for part in ("", "commands"):
            (setup / "gitguardfs" / part).mkdir(parents=True, exist_ok=True)
            (setup / "gitguardfs" / part / "__init__.py").write_text("")
        (setup / "gitguardfs/commands/gitguardfs.py").write_text(CLI)
        calls = str(here / "calls")
        (setup / "gitguardfs/commands/vm_mount.py").write_text(VM_MOUNT.format(calls=calls))
        # useradd and id know of one account more, once it was added.
        made.tool("useradd", f'echo "useradd $*" >>{calls}; touch {here}/account')
        made.tool("id", f"test -e {here}/account")
        made.tool("findmnt", "echo lima-0123")
        made.tool("dpkg-query", "printf installed")
        spec = LimaSpec(project="/home/me/shop", name="agent", setup="/s")
        script = yaml.safe_load(lima.render(spec))["provision"][0]["script"]
        made.script.write_text(script.replace(f"holder={HOLDER}", f"holder={made.holder}"))
        made.script.chmod(0o755)
        yield made


def test_the_first_start_makes_installs_and_guards(guest: Guest) -> None:
    guest.holder.chmod(0o755)
    done = guest.provision()
    assert done.returncode == 0, done.stderr
    assert guest.holder.stat().st_mode & 0o777 == 0o700
    assert guest.launcher.exists()
    assert guest.calls() == [
        "useradd --create-home --shell /bin/bash -- agent",
        f"vm-mount --tag lima-0123 --mount {guest.holder}/shares/project --map-mount"
        " /home/agent/shop -o git=readonly,hide=a b --user agent --style systemd -y",
    ]


def test_later_starts_install_what_is_new_and_nothing_else(guest: Guest) -> None:
    guest.provision()
    before = guest.launcher.stat().st_ino
    assert guest.provision().returncode == 0
    assert guest.launcher.stat().st_ino == before
    assert [call.split()[0] for call in guest.calls()] == ["useradd", "vm-mount", "vm-mount"]
    (guest.holder / "setup/gitguardfs/commands/gitguardfs.py").write_text(f"{CLI}# newer\n")
    assert guest.provision().returncode == 0
    assert guest.launcher.stat().st_ino != before


def test_without_the_share_nothing_is_guarded_and_it_says_so(guest: Guest) -> None:
    guest.tool("findmnt", "exit 1")
    done = guest.provision()
    assert done.returncode != 0 and "is not mounted" in done.stderr
    assert not [call for call in guest.calls() if call.startswith("vm-mount")]


def test_a_failed_installation_ends_it(guest: Guest) -> None:
    (guest.holder / "setup/gitguardfs/__init__.py").unlink()
    done = guest.provision()
    assert done.returncode != 0
    assert not [call for call in guest.calls() if call.startswith("vm-mount")]
