"""install.sh finds out whether umount(8) calls the umount helper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
