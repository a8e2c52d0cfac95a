"""Notes on the user's partial clones that lack files, for which the agent's git refuses a lot.

Only root knows the daemon's options, and sees the whole store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from gitguardfs.base.constants import PRIVATE_STORE
from gitguardfs.base.errors import shown
from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor.context import Context
from gitguardfs.private import store


def check(context: Context) -> list[Result]:
    """Note each work tree in the store of a view with ``--git=private`` that lacks files."""
    if not context.is_root or context.option("git") != "private":
        return []
    return list(_notes(context.option("private-store") or PRIVATE_STORE))


def _notes(path: str) -> Iterator[Result]:
    row = Row("git.partial", "the human's clone is partial, and lacks files", "")
    for entry in store.entries(path):
        with suppress(FileNotFoundError):
            command = store.read(os.path.join(entry.path, store.HOST, store.LACKS))
            if not entry.is_former:
                yield row.note(
                    f"{shown(entry.work_tree)}: the agent's git refuses to switch to a commit that"
                    " lacks some of them",
                    f"on the host: {shown(command.strip())}",
                )
