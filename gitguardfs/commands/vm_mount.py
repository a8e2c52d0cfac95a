"""The program ``vm-mount``."""

from __future__ import annotations

from gitguardfs.commands.run import run
from gitguardfs.guest.run import command


def main() -> None:
    """Run ``vm-mount``. A user's mistake becomes one line and an exit code."""
    run(command, "vm-mount")
