"""Parts that the commands of ``gitguard vm`` have in common."""

from __future__ import annotations

import importlib.util
from typing import Any

import click

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.command_line import Command

NEEDED = ("platformdirs", "yaml", "pycdlib", "qemu.qmp", "mitmproxy", "keyring")
"""Modules of the packages that the extra ``vm`` installs."""
WORDS: dict[str, Any] = {"allow_interspersed_args": False}
"""Everything from the first argument on is the command for the guest."""

PROJECT = click.option(
    "--project",
    metavar="DIR",
    help="The project.  [default: the current directory, or one above that has a VM or a "
    "gitguard.toml]",
)


class NeedsExtra(Command):
    """A command that needs the packages of the extra ``vm``; its --help does not."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises UserError if a package is not installed."""
        require_extra()
        return super().invoke(ctx)


def require_extra() -> None:
    """Raise UserError if a package of the extra ``vm`` is not installed."""
    from gitguardfs.host.egress.proxy import EXTRA_HINT

    missing = [name for name in NEEDED if not is_installed(name)]
    if missing:
        raise UserError(f"gitguard vm needs {', '.join(missing)}", EXTRA_HINT, Exit.SYSTEM)


def is_installed(name: str) -> bool:
    """Return whether a module is there; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that holds it
        return False
