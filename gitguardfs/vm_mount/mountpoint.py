"""Makes a mount point for quickstart.sh, whose shell cannot walk a path by descriptors."""

from __future__ import annotations

import os
import sys
from contextlib import closing

from gitguardfs.errors import UserError, shown
from gitguardfs.vm_mount import facts
from gitguardfs.vm_mount.steps_files import MakeDirectories


def main(program: str, path: str) -> None:
    """Make the directory ``path``. On an error, exit with one line that begins with ``program``."""
    try:
        make(path)
    except UserError as error:
        sys.exit(shown(f"{program}: {error}"))
    except OSError as error:
        sys.exit(shown(f"{program}: {path}: {error.strerror}"))


def make(path: str) -> None:
    """Make the missing directories of ``path``, as the owner of the nearest existing one.

    That user owns them afterwards. Because root's rights are not used, a user who may write there
    cannot redirect them to another place. Raises UserError, OSError.
    """
    with closing(facts.resolve_mountpoint(path)) as mountpoint:
        if mountpoint.missing:
            st = os.fstat(mountpoint.fd)
            owner = st.st_uid, st.st_gid
            MakeDirectories(mountpoint.missing, owner, by=owner, fd=mountpoint.fd).do()
