"""``gitguard vm images``: the images and ready disks that VMs start from."""

from __future__ import annotations

import sys

import click

from gitguardfs.base import columns
from gitguardfs.base.errors import shown
from gitguardfs.commands.command_line import CommandGroup
from gitguardfs.host.commands.vm.common import NeedsExtra

EPILOG = """\b
Examples:
  gitguard vm images list
  gitguard vm images prune
"""


@click.group(
    name="images",
    cls=CommandGroup,
    short_help="List the images that VMs start from; delete unused ones.",
    epilog=EPILOG,
)
def images() -> None:
    """List the images that VMs start from, or delete those that no VM uses.

    A base is an image as it was fetched. A ready disk is a guest that was set up from one; it is
    made when it is needed, once for an image, an agent and a version of gitguardfs. VMs share both.
    """


@images.command(
    name="list", cls=NeedsExtra, short_help="List images and ready disks, and which VMs use them."
)
def list_() -> None:
    """List images and ready disks: name, kind, size, and which VMs use them."""
    from gitguardfs.host.vm import image_store, state

    cache = state.cache_directory()
    stored, errors = image_store.stored(cache)
    rows = [
        (shown(one.name), one.kind, f"{one.size >> 20} MiB",
         " ".join(one.users) or "no VM",
         (one.made_from and f"from {shown(one.made_from)}") + (one.agent and f", with {one.agent}"))
        for one in stored
    ]  # fmt: skip
    click.echo(f"in {shown(cache)}:" if rows else f"there is nothing in {shown(cache)}")
    for line in columns.table(rows, columns.width_of(sys.stdout)):
        click.echo(line)
    if errors:
        raise errors[0]


@images.command(cls=NeedsExtra, short_help="Delete images and ready disks that no VM uses.")
def prune() -> None:
    """Delete images and ready disks that no VM uses; what is needed later is made anew."""
    from gitguardfs.host.vm import image_store, state

    is_any = False
    for one in image_store.prune(state.cache_directory()):
        is_any = True
        click.echo(f"deleted {shown(one.name)} ({one.kind}, {one.size >> 20} MiB)")
    if not is_any:
        click.echo("there is nothing to delete")
