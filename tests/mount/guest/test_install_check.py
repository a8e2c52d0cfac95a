"""install.sh finds out whether umount(8) calls the umount helper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gitguardfs
from tests.support.mounting import REPOSITORY, area

CHECK = """
. "$1/guest-setup/common.sh"
eval "$(sed -n '/^check_umount_helper()/,/^}/p' "$1/guest-setup/install.sh")"
PREFIX=$2 BIN=$2 SBIN=/sbin
check_umount_helper
"""


@pytest.mark.parametrize("has_helper", [True, False])
def test_it_warns_only_where_the_seal_would_stay(has_helper: bool) -> None:
    helper = Path("/sbin/umount.fuse.gitguardfs")
    aside = Path("/sbin/aside")
    with area() as here:
        launcher = here / "gitguardfs"
        launcher.write_text(
            f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m gitguardfs "$@"\n'
        )
        launcher.chmod(0o755)
        if not has_helper:
            helper.rename(aside)
        try:
            done = subprocess.run(
                ["bash", "-euc", CHECK, "install.sh", REPOSITORY, here],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        finally:
            if not has_helper:
                aside.rename(helper)
        assert done.returncode == 0, done.stderr
        assert ("umount does not call" in done.stderr) == (not has_helper), done.stderr
        assert [path.name for path in here.iterdir()] == ["gitguardfs"]


ELSEWHERE = """
mount -t tmpfs none /usr/local
mkdir /usr/local/upper /usr/local/work
mount -t overlay -o lowerdir=/usr/sbin,upperdir=/usr/local/upper,workdir=/usr/local/work o /usr/sbin
rm -f /usr/sbin/umount.fuse.gitguardfs
"""
"""A /usr/local and a /usr/sbin of its own, in which nothing of gitguardfs is installed."""


@pytest.mark.skipif(
    subprocess.run(["/usr/bin/python3", "-c", "import pyfuse3"], check=False).returncode != 0,
    reason="the distribution's python3-pyfuse3 is not installed",
)
def test_what_gitguard_share_packs_installs_itself_elsewhere() -> None:
    start = "from gitguardfs.commands.gitguard import main; main()"
    tar, install = "tar -xf gitguardfs.tar", "sudo ./gitguardfs/guest-setup/install.sh"
    with area() as here:
        done = subprocess.run(
            [sys.executable, "-c", start, "share", "--bundle", "gitguardfs.tar"],
            cwd=here, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert tar in done.stdout and install in done.stdout
        in_guest = install.removeprefix("sudo ")
        script = f"{ELSEWHERE}{tar}\n{in_guest}\ncd /\ngitguard --version; vm-mount --version\n"
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script],
            cwd=here, env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), "the umount helper works, too"
    version = gitguardfs.__version__
    assert done.stdout.splitlines()[-2:] == [f"gitguard {version}", f"vm-mount {version}"]
