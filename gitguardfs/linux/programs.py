"""Runs the system's programs, with nothing inherited from our caller's environment."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.base.errors import Exit, UserError

Ids = tuple[int, int]
"""uid and gid."""
ENVIRONMENT = {"PATH": SYSTEM_PATH, "LC_ALL": "C"}
"""The environment of every program that root runs here: root's own may be an ordinary user's."""
COMMAND_LIMIT = 120.0
"""Seconds for one command; starting a service may take systemd's 90."""


def call(command: Sequence[str], user: Ids | None = None, directory: int | None = None) -> None:
    """Run a program to its end, in ``directory`` (a descriptor) or in /.

    Raises UserError, with what the program wrote to standard error, if it fails.
    """
    ids: dict[str, object] = {}
    if user is not None:
        ids = {"user": user[0], "group": user[1], "extra_groups": []}
    try:
        done = subprocess.run(
            command,
            check=False,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_LIMIT,
            umask=0o022,
            cwd="/" if directory is None else f"/proc/self/fd/{directory}",
            start_new_session=True,  # ^C must reach us, and not end the program
            **ids,  # type: ignore[call-overload]  # the three of them go together
        )
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed", code=Exit.SYSTEM) from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{shlex.join(command)} did not finish within {COMMAND_LIMIT:.0f} seconds",
            code=Exit.SYSTEM,
        ) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").split("\n")
        reason = "; ".join(
            line.strip() for line in lines if line.strip() and "dmesg(1)" not in line
        )
        raise UserError(reason or f"{shlex.join(command)} failed", code=Exit.MOUNT)
