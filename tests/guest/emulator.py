"""A QEMU that is fast enough: the machine's own, or a newer one of the same distribution."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from shlex import quote

from tests.guest.image import CACHE, NEW, locked, run, say
from tests.support import leftovers

NAME = "qemu-system-x86_64"
SLOW = (9, 0)
"""Versions below this one are replaced if the distribution has a newer one."""
BACKPORTS = "bookworm-backports"
PACKAGES = ("qemu-system-x86", "qemu-system-data", "seabios")
ARCHIVE = "http://deb.debian.org/debian"
_PLACE = CACHE.absolute() / f"qemu-{BACKPORTS}"
_SHARE = _PLACE / "usr/share"
_START = f"""#!/bin/bash
exec -a {NAME} {quote(str(_PLACE / "usr/bin" / NAME))} \\
    -L {quote(str(_SHARE / "qemu"))} -L {quote(str(_SHARE / "seabios"))} "$@"
"""
"""Debian's QEMU looks for firmware in /usr/share only, where that of the machine's own is."""


@functools.cache
def directory() -> Path:
    """Return the directory of the QEMU to use.

    If no newer one can be fetched, that is the machine's own. Raises FileNotFoundError if it has
    none.
    """
    own = shutil.which(NAME)
    if own is None:
        raise FileNotFoundError(f"not installed: {NAME}")
    if version_of(Path(own)) >= SLOW or not _is_debian_12():
        return Path(own).parent
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked("qemu"):
        try:
            if not _PLACE.exists():
                _unpack()
            version_of(_PLACE / "bin" / NAME)
        except (RuntimeError, OSError) as error:
            say(f"no newer QEMU, so that guests take a third longer: {error}")
            return Path(own).parent
    return _PLACE / "bin"


def search_path() -> str:
    """Return PATH, changed so that the QEMU to use is found. Raises FileNotFoundError."""
    found = os.environ["PATH"]
    return found if shutil.which(NAME) == str(directory() / NAME) else f"{directory()}:{found}"


def version_of(program: Path) -> tuple[int, int]:
    """Return the major and minor version of a QEMU.

    Raises OSError if it cannot be started, RuntimeError if it fails.
    """
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    found = re.search(r"version (\d+)\.(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"{program} --version ended with {done.returncode}: {done.stderr}")
    return int(found[1]), int(found[2])


def _is_debian_12() -> bool:
    try:
        return "VERSION_CODENAME=bookworm" in Path("/etc/os-release").read_text().splitlines()
    except FileNotFoundError:
        return False


def _unpack() -> None:
    """Fetch the packages with apt, which checks their signatures. Raises RuntimeError, OSError."""
    say(f"fetching QEMU of {BACKPORTS} (10 seconds) ...")
    with leftovers.directory(NEW, CACHE) as work:
        new = work / "qemu"
        sources = work / "sources.list"
        sources.write_text(f"deb {ARCHIVE} {BACKPORTS} main\n")
        for needed in ("lists/partial", "cache/archives/partial"):
            (work / needed).mkdir(parents=True)
        apt = [
            "apt-get",
            "--quiet",
            "--option=APT::Sandbox::User=root",  # apt's own user cannot write here
            "--option=Acquire::http::Timeout=20",
            f"--option=Dir::Etc::SourceList={sources}",
            "--option=Dir::Etc::SourceParts=/dev/null",
            f"--option=Dir::State::Lists={work}/lists",
            f"--option=Dir::Cache={work}/cache",
        ]
        run([*apt, "update", "--error-on=any"])
        run([*apt, "download", *PACKAGES], cwd=work)
        for package in work.glob("*.deb"):
            run(["dpkg-deb", "--extract", str(package), str(new)])
        start = new / "bin" / NAME
        start.parent.mkdir()
        start.write_text(_START)
        for each in (new, start.parent, start):
            each.chmod(0o755)
        new.rename(_PLACE)
