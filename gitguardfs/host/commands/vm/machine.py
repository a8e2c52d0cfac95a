"""Commands about the VM as a whole: ``list``, ``status``, ``logs``, ``stop`` and ``reset``."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress

import click

from gitguardfs.base import columns
from gitguardfs.base.errors import UserError, shown
from gitguardfs.commands.command_line import JSON
from gitguardfs.host.commands.vm.common import PROJECT, NeedsExtra

LIST_EPILOG = """\b
Examples:
  gitguard vm list
  gitguard vm list --json | jq -r '.[] | select(.state == "running").project'
  gitguard vm reset --project DIR    deletes the VM of a project
"""


@click.command(
    name="list", cls=NeedsExtra, short_help="List the VMs of all projects.", epilog=LIST_EPILOG
)
@JSON
def list_(as_json: bool) -> None:
    """List the VMs of all projects: state, age, size of the disk, ports and project.

    A port is one of this machine's 127.0.0.1, with the guest's port behind the colon if that is
    another one; that of port 22 is for SSH. A VM with the state "none" has no disk yet: it has
    settings, or secrets, for its first start.
    """
    import json

    from gitguardfs.host.vm import listing

    found = listing.vms()
    width = columns.width_of(sys.stdout)
    click.echo(json.dumps(found, indent=2) if as_json else listing.text(found, width))


@click.command(cls=NeedsExtra, short_help="Show what runs, the settings, what crosses the border.")
@PROJECT
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def status(project: str | None, as_json: bool) -> None:
    """Show whether VM and proxy run, the settings, and what crosses the border.

    Of the allowlist: the lines with their last use, those that are ignored, and WebSockets that are
    allowed and not looked into.
    """
    import json

    from gitguardfs.host.vm import state, status_text
    from gitguardfs.host.vm.status import facts

    found = facts(state.existing(project))
    width = columns.width_of(sys.stdout)
    text = json.dumps(found, indent=2) + "\n" if as_json else status_text.text(found, width)
    click.echo(text, nl=False)


@click.command(cls=NeedsExtra, short_help="Print the logs of guest, QEMU and proxy.")
@PROJECT
@click.option("-f", "--follow", is_flag=True, help="Also print what is written from now on.")
def logs(project: str | None, follow: bool) -> None:
    """Print the console of the guest, and the logs of QEMU and of the proxy."""
    from gitguardfs.host.vm import logs as vm_logs
    from gitguardfs.host.vm import state

    where = state.existing(project)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    with suppress(KeyboardInterrupt):
        for line in (vm_logs.follow if follow else vm_logs.lines)(where, width):
            click.echo(line)


@click.command(cls=NeedsExtra, short_help="Stop the VM.")
@PROJECT
def stop(project: str | None) -> None:
    """Stop the VM, also one whose `vm up` was killed."""
    from gitguardfs.host.vm import running, state

    running.stop(state.existing(project))


@click.command(
    cls=NeedsExtra, short_help="Delete the VM: disk, keys, secrets, allowlist, logs, logins."
)
@PROJECT
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def reset(project: str | None, yes: bool) -> None:
    """Delete the VM: its disk, keys, allowlist, logs and the logins in it. Images stay.

    The values of its secrets are deleted from the keyring, or from the file that has them.
    """
    from gitguardfs.host.vm import running, state

    try:
        where = state.existing(project)
    except UserError as error:
        click.echo(error.message, err=True)
        return
    if not yes:
        click.confirm(
            f"Delete the VM of {shown(where.project)}, with its allowlist, its secrets and every"
            " login made in it?",
            abort=True, err=True,
        )  # fmt: skip
    for line in running.reset(where):
        click.echo(f"warning: {shown(line)}", err=True)
