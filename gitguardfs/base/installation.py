"""The installation that runs: the command that runs it again, and copies of it for guests.

It is a checkout, a pipx environment, a distribution's package, or made by install.sh. A copy is
laid out as a checkout, but without the host's tools. So a guest or an image runs the same code as
its host.
"""

from __future__ import annotations

import filecmp
import io
import os
import shutil
import sys
import tarfile
import tempfile

import gitguardfs
from gitguardfs.base.errors import Exit, UserError

PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(gitguardfs.__file__))
PACKAGE_PARENT = os.path.dirname(PACKAGE_DIRECTORY)
"""The directory that contains this package."""

PACKAGE = "gitguardfs"
SCRIPTS = "guest-setup"
AGENT_NAMES = ("aider", "claude", "codex", "opencode")
"""Agents that a guest can have; each has a file that says what it needs."""
SCRIPT_NAMES = ("common.sh", "install.sh", "refuse-removal.sh", "steps.sh", "vm-apps.sh",
                *(f"agents/{name}.toml" for name in AGENT_NAMES))  # fmt: skip
BUNDLE_TIME = 946684800
"""The time of all files in a bundle: 2000-01-01, since tar warns of files from 1970."""
_PACKED = (".py", "py.typed", ".sh", ".cjs", ".service", ".txt", ".yaml", ".md",
           "Dockerfile")  # fmt: skip
"""Ends of the names of a package's files; what else lies in a checkout stays there."""


def command(*arguments: str, program: str = PACKAGE) -> list[str]:
    """Return the argument list that runs ``program ARGUMENTS`` with this interpreter and code.

    Python's -I keeps modules of the working directory and the environment out, which ``-m`` would
    load. It also drops the launcher's sys.path, so the code text sets the path itself.
    """
    start = f"from gitguardfs.commands.{program} import main; main()"
    code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r}); {start}"
    return [sys.executable, "-I", "-c", code, *arguments]


def text(path: str) -> str:
    """Return the text of a file of this package, by its path in the package. Raises OSError."""
    with open(os.path.join(PACKAGE_DIRECTORY, path), encoding="utf-8") as file:
        return file.read()


def script_directory(parent: str = PACKAGE_PARENT) -> str:
    """Return where guest-setup is: beside the package, or below ``share`` of its prefix.

    Raises UserError if neither place has it.
    """
    prefix = os.path.join(parent, os.pardir, os.pardir, os.pardir)
    places = (os.path.join(parent, SCRIPTS), os.path.join(prefix, "share", PACKAGE, SCRIPTS))
    for place in map(os.path.normpath, places):
        if all(os.path.isfile(os.path.join(place, name)) for name in SCRIPT_NAMES):
            return place
    raise UserError(
        f"this installation has no {SCRIPTS}, with which a guest installs gitguardfs",
        "reinstall gitguardfs: pipx install, or guest-setup/install.sh of a checkout",
        Exit.SYSTEM,
    )


def copy_to(directory: str, parent: str = PACKAGE_PARENT) -> bool:
    """Copy package and scripts to ``directory``; return whether that changed it.

    The directory is replaced as a whole, so that a start never finds half of it. Raises UserError,
    OSError.
    """
    scripts = script_directory(parent)
    above = os.path.dirname(directory)
    work = tempfile.mkdtemp(prefix=f".{os.path.basename(directory)}.", dir=above)
    try:
        new = os.path.join(work, "new")
        shutil.copytree(os.path.join(parent, PACKAGE), f"{new}/{PACKAGE}", ignore=_left_out)
        os.makedirs(f"{new}/{SCRIPTS}/agents")
        for name in SCRIPT_NAMES:
            shutil.copy(os.path.join(scripts, name), f"{new}/{SCRIPTS}/{name}")
        if os.path.isdir(directory):
            if _same(filecmp.dircmp(directory, new, ignore=[])):
                return False
            os.rename(directory, os.path.join(work, "old"))
        os.rename(new, directory)
        return True
    finally:
        shutil.rmtree(work)


def _left_out(directory: str, names: list[str]) -> set[str]:
    """Return the ``names`` in a directory that are no part of a guest's copy, for copytree."""
    return {
        name
        for name in names
        if name.startswith((".", "__pycache__"))
        or os.path.join(directory, name).endswith(f"/{PACKAGE}/host")
        or not (name.endswith(_PACKED) or os.path.isdir(os.path.join(directory, name)))
    }


def bundle(parent: str = PACKAGE_PARENT) -> bytes:
    """Return a tar with the directory PACKAGE, from which a guest installs this gitguardfs.

    One version gives the same bytes, however it is installed and whoever makes them. Raises
    UserError, OSError.
    """
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as work:
        copy_to(os.path.join(work, PACKAGE), parent)
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(os.path.join(work, PACKAGE), PACKAGE, filter=_of_nobody)
    return packed.getvalue()


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Take out of a tar's member what differs between two who make it."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = BUNDLE_TIME
    member.mode = 0o755 if member.isdir() or member.name.endswith(".sh") else 0o644
    return member


def _same(pair: filecmp.dircmp[str]) -> bool:
    if pair.left_only or pair.right_only or pair.common_funny:
        return False
    contents = filecmp.cmpfiles(pair.left, pair.right, pair.common_files, shallow=False)
    return contents[0] == pair.common_files and all(map(_same, pair.subdirs.values()))
