"""Names the partial clones of the human's that lack files, for which the agent's git refuses a lot.

Only root knows the daemon's options, and sees the whole store.
"""

from __future__ import annotations

from gitguardfs.base.constants import PRIVATE_STORE
from gitguardfs.base.errors import shown
from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor.context import Context
from gitguardfs.private import partial, seeding, store


def check(context: Context) -> list[Result]:
    """Note each work tree in the store of a view with ``--git=private`` that lacks files."""
    if not context.is_root or context.option("git") != "private":
        return []
    row = Row("git.partial", "the human's clone is partial, and lacks files", "")
    entries = store.entries(context.option("private-store") or PRIVATE_STORE)
    return [
        row.note(
            f"{shown(entry.work_tree)}: the agent's git refuses to switch to a commit that lacks"
            " some of them", f"on the host: {partial.COMMAND}",
        )
        for entry in entries
        if not entry.is_former and seeding.lacks_files(entry.path)
    ]  # fmt: skip
