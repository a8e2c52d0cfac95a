"""Finds hooks and configuration with a second name, through which the agent may write them.

The guard protects names. A file that the user has moved into ``.git`` keeps the hard links that the
agent had made to it before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from stat import S_ISREG

from gitguardfs.base.findings import Severity
from gitguardfs.host.audit import fixes, rows
from gitguardfs.host.audit.audit import Audit


def check(audit: Audit, directory: int, path: str, names: Iterable[str]) -> None:
    """Add a finding for each file of ``names`` in a directory that has more than one link.

    ``path`` is the directory's own. A file outside of the share counts only if it is the user's:
    the agent has the user's rights there, and no more.
    """
    for name in names:
        try:
            st = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not S_ISREG(st.st_mode) or st.st_nlink == 1:
            continue
        if st.st_uid == audit.uid or audit.share.holds(path):
            file = os.path.join(path, name)
            detail = f"{file} has {st.st_nlink} hard links: the agent may write it by another name"
            audit.report(rows.LINKED, detail, fixes.copy(file), Severity.MEDIUM)
