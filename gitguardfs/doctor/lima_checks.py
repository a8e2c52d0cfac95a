"""Checks, in a guest of Lima, that the user cannot connect to its guest agent, which is root."""

from __future__ import annotations

import os
import shlex

from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor.context import Context
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer


def check(context: Context) -> list[Result]:
    """Check access to the agent's socket. Returns no result if there is no socket."""
    user, path = context.user, context.system.lima_socket
    if user is None or not os.path.lexists(path):
        return []
    row = Row(
        "rights.lima",
        f"{user.name} cannot connect to Lima's guest agent",
        f"{user.name} can connect to Lima's guest agent, and become root by it",
    )
    try:
        # Connecting to a socket needs write permission on it (unix(7)).
        is_open = run_as.run_as(os.access, path, os.W_OK, user=user)
    except (NoAnswer, OSError) as error:
        return [
            row.unknown(
                f"could not be checked: {error}", f"ls -l {shlex.quote(path)}: it must be root's"
            )
        ]
    if is_open:
        hint = "Lima 2.1.3 or later keeps it closed: update Lima, then restart the machine"
        return [row.finding(path, hint)]
    return [row.ok()]
