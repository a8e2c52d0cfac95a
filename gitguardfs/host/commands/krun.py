"""``gitguard krun``: runs an agent in a microVM of podman and krun that guards the project."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import click

from gitguardfs.base import quote
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.command_line import CommandGroup
from gitguardfs.host.commands.shared_options import (
    PROJECT,
    choice,
    of_guard,
    of_machine,
    warn_of_secrets,
)
from gitguardfs.host.share import krun_text as krun
from gitguardfs.host.share import kvm, sandbox
from gitguardfs.host.share.directory import existing_directory
from gitguardfs.host.share.krun_text import ContainerNetwork, KrunSpec
from gitguardfs.host.share.packages import check_installed

DRY_RUN = click.option("--dry-run", is_flag=True, help="Print podman's command; run nothing.")

NETWORKS = {
    ContainerNetwork.OPEN: "The network is open: the agent reaches whatever containers reach here.",
    ContainerNetwork.NONE: (
        "The network is closed: the agent reaches nothing, no model's service either."
    ),
}


EPILOG = """\b
Examples:
  gitguard krun init --project ~/projects/shop    write the files
  gitguard krun build --project ~/projects/shop   make the image
  gitguard krun run --project ~/projects/shop     a shell in the microVM

It needs Linux with /dev/kvm, podman, and crun built with libkrun. docs/krun.md of the source says
more.

\b
Exit codes: 0 done, 2 wrong usage, 3 anything else; run: those of the command.
"""

INIT_EPILOG = """\b
Examples:
  gitguard krun init --project ~/projects/shop --network none
  gitguard krun init --memory 4096M -o git=readonly,protect=.github
"""

RUN_EPILOG = """\b
Examples:
  gitguard krun run                               a shell
  gitguard krun run -- claude --continue          one command
"""


@click.group(cls=CommandGroup, epilog=EPILOG)
def command() -> None:
    """Run an agent in a microVM of podman and krun that sees the project through the guard."""


@command.command("init", short_help="Write .agent-sandbox for a project.", epilog=INIT_EPILOG)
@PROJECT
@of_machine
@choice("--network", kind=ContainerNetwork, default=ContainerNetwork.OPEN,
        text="What the agent reaches: what containers reach, or nothing.")  # fmt: skip
@of_guard
@click.option("--force", is_flag=True, help="Overwrite files that were changed by hand.")
def init(project: str, force: bool, **given: Any) -> int:
    """Write .agent-sandbox: Dockerfile, compose file and entrypoint, to be read and changed.

    The directory is in your own state directory, never in the project: there the agent could
    change what you build next.
    """
    real = existing_directory(project)
    spec = KrunSpec(project=real, uid=os.geteuid(), gid=os.getegid(), **given)
    path, written = sandbox.write(spec, force=force)
    for name in written:
        click.echo(f"{path}/{name}: written")
    click.echo(NETWORKS[spec.network])
    click.echo(f"Next: {quote.shell(['gitguard', 'krun', 'build', '--project', real])}")
    warn_of_secrets(real)
    return Exit.OK


@command.command("build", short_help="Build the image.")
@PROJECT
@DRY_RUN
def build(project: str, dry_run: bool) -> int:
    """Build the image of the microVM; it contains the same gitguardfs that runs here."""
    spec = sandbox.load(existing_directory(project))
    path = sandbox.path_of(spec.project)
    words = krun.build(spec, path)
    if dry_run:
        click.echo(quote.shell(words))
        return Exit.OK
    check_installed("podman")
    sandbox.refresh(path)
    os.execvp(words[0], words)  # noqa: S606


@command.command(
    "run",
    short_help="Run a command, or a shell, as the agent.",
    epilog=RUN_EPILOG,
    context_settings={"ignore_unknown_options": True},
)
@PROJECT
@DRY_RUN
@click.argument("words", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def run(project: str, dry_run: bool, words: tuple[str, ...]) -> int:
    """Run COMMAND, or a shell, as the agent in a microVM; its exit code is that of the command.

    Put -- before a COMMAND that has options.
    """
    spec = sandbox.load(existing_directory(project))
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    arguments = krun.run(spec, words, terminal=terminal)
    if dry_run:
        click.echo(quote.shell(arguments))
        return Exit.OK
    check_installed("podman", krun.RUNTIME)
    _require_kvm()
    _require_image(spec)
    os.execvp(arguments[0], arguments)  # noqa: S606


def _require_kvm() -> None:
    if not kvm.is_usable():
        what = "/dev/kvm cannot be used, and krun needs hardware virtualisation"
        raise UserError(what, kvm.hint(), Exit.SYSTEM)


def _require_image(spec: KrunSpec) -> None:
    done = subprocess.run(["podman", "image", "exists", spec.image], check=False)
    if done.returncode != 0:
        build = quote.shell(["gitguard", "krun", "build", "--project", spec.project])
        raise UserError(f"there is no image {spec.image}", f"{build} makes it", Exit.SYSTEM)
