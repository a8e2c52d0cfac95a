"""In a guest of Lima's: can the user ask Lima's guest agent, a daemon of root's, for anything?"""

from __future__ import annotations

import os

from gitguardfs.doctor import run_as
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.run_as import NoAnswer
from gitguardfs.findings import Result, Row


def check(context: Context) -> list[Result]:
    """Return nothing where there is no such daemon."""
    user, path = context.user, context.system.lima_socket
    if user is None or not os.path.lexists(path):
        return []
    row = Row(
        "rights.lima",
        f"{user.name} cannot connect to Lima's guest agent",
        f"{user.name} can connect to Lima's guest agent, and is root by it",
    )
    try:
        # Connecting takes the right to write to the socket (unix(7)).
        is_open = run_as.run_as(os.access, path, os.W_OK, user=user)
    except (NoAnswer, OSError) as error:
        return [row.unknown(f"could not be checked: {error}", f"ls -l {path}: it must be root's")]
    if is_open:
        hint = "Lima 2.1.3 or later keeps it closed: update Lima, then restart the machine"
        return [row.finding(path, hint)]
    return [row.ok()]
