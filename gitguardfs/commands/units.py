"""``gitguard units``: prints, writes or compares the files that mount a guarded share at boot."""

from __future__ import annotations

import os
from typing import Any

import click

from gitguardfs.base import installation
from gitguardfs.base.constants import SHARE_TYPES
from gitguardfs.base.errors import UserError
from gitguardfs.commands.command_line import GUARD_OPTIONS, LOCAL, RespelledCommand
from gitguardfs.guest import fstab, systemd
from gitguardfs.options import accounts, config_files, fstab_entries
from gitguardfs.options.guarded_share import GuardedShare, owner_map, with_local
from gitguardfs.options.id_maps import AUTO
from gitguardfs.options.parsing import split_values

FSTAB_FILE = "gitguardfs.fstab"
"""Not `fstab`: with ``--output /etc`` that would be the system's own file."""

EPILOG = """\b
Examples:
  gitguard units projects -m /mnt/raw -mm /home/agent/src --local deps
      two lines for /etc/fstab
  gitguard units share --transport virtiofs --style systemd \\
      -m /mnt/share -mm /home/agent/src --owner 501:20 --user agent \\
      --output /etc/systemd/system
      units; then: systemctl daemon-reload
      systemctl enable --now gitguardfs@home-agent-src.service
      and so gitguardfs-changes.service, for live changes

vm-mount writes the same and mounts. docs/guest.md of the source explains the lines.

\b
Exit codes: 0 done, 1 files differ (--check), 2 wrong usage, 3 anything else.
"""


@click.command(cls=RespelledCommand, epilog=EPILOG)
@click.argument("label", metavar="[TAG]", required=False)
@click.option("--tag", metavar="TAG", help="The share's mount tag, instead of TAG.")
@click.option(
    "--transport",
    type=click.Choice(SHARE_TYPES),
    default="9p",
    show_default=True,
    help="What carries the share.",
)
@click.option(
    "--style",
    type=click.Choice(["fstab", "systemd"]),
    default="fstab",
    show_default=True,
    help="What mounts it at boot.",
)
@click.option(
    "-m", "--mount", metavar="PATH", required=True, help="Where the raw share is mounted."
)
@click.option(
    "--map-mount",
    metavar="PATH",
    required=True,
    help="Where the guarded view is mounted. Also -mm.",
)
@click.option(
    "--map",
    "maps",
    metavar="MAP",
    multiple=True,
    help="As for gitguardfs: HOST:GUEST, @HOST:@GUEST, u1/u2:@g1/@g2. Repeatable.  [default: auto]",
)
@click.option(
    "--user", metavar="USER", help="Map the share's owner to this user of the guest (or UID:GID)."
)
@click.option(
    "--owner",
    metavar="UID:GID",
    default="1000:1000",
    show_default=True,
    help="With --user: the share's owner on the host (a Mac's first user is 501:20).",
)
@GUARD_OPTIONS
@LOCAL
@click.option("--output", metavar="DIR", help="Write the files to DIR instead of printing them.")
@click.option("--check", is_flag=True, help="Write nothing: exit 1 if the files in DIR differ.")
def command(
    label: str | None, tag: str | None, output: str | None, check: bool, style: str, **given: Any
) -> int:
    """Show what mounts the share TAG and its guard at each boot: fstab lines or systemd units.

    They mount the share first, then the guard. If the share is missing, the boot goes on without
    it.
    """
    if bool(tag) == bool(label):
        raise UserError("give the share's mount tag once", "gitguard units TAG, or --tag TAG")
    if check and not output:
        raise UserError("--check needs the files to compare", "--output DIR")
    spec = _spec(str(tag or label), **given)
    units = systemd.files(spec, _guard_command())
    files = {FSTAB_FILE: fstab.render(spec)} if style == "fstab" else units
    if output is None:
        click.echo(_listing(files), nl=False)
        return 0
    directory = os.path.abspath(output)
    changes = [config_files.plan(os.path.join(directory, n), text) for n, text in files.items()]
    if not check:
        for change in changes:
            _check_ours(change)
    return config_files.check_or_write(changes, check)


def _guard_command(parent: str = installation.PACKAGE_PARENT) -> str:
    """Return the path of gitguardfs in a guest: that of a package if this one is from a package."""
    is_packaged = parent.startswith("/usr/") and not parent.startswith("/usr/local/")
    return systemd.PACKAGED_COMMAND if is_packaged else systemd.COMMAND


def _check_ours(change: config_files.FileChange) -> None:
    """Raise UserError if the change would replace a file that gitguardfs did not write."""
    before = change.before
    if before is None or not change.is_needed:
        return
    if os.path.basename(change.path) == FSTAB_FILE:
        lines = [line for line in before.split(b"\n") if line.strip()]
        found = fstab_entries.entries(before)
        ours = len(found) == len(lines) and all(entry.is_ours for entry in found)
    else:
        ours = systemd.is_ours(before)
    if not ours:
        raise UserError(
            f"{change.path} was not written by gitguardfs", "move it away, or another --output"
        )


def _spec(
    tag: str,
    transport: str,
    mount: str,
    map_mount: str,
    maps: tuple[str, ...],
    user: str | None,
    owner: str,
    o: tuple[str, ...],
    local: tuple[str, ...],
) -> GuardedShare:
    if user and maps:
        raise UserError("--user and --map contradict one another", "give one of them")
    ids = _map(owner, user) if user else ",".join(maps)
    return GuardedShare(
        tag=tag,
        transport=transport,
        mount=_plain(mount),
        map_mount=_plain(map_mount),
        map=ids or AUTO,
        options=with_local(split_values(o), local),
    )


def _plain(path: str) -> str:
    """Return the path without the slash that a shell's completion appends to a directory."""
    return path.removesuffix("/") or path


def _map(owner: str, user: str) -> str:
    if ":" in user:
        guest = _ids(user, "--user")
    else:
        found = accounts.find(user)
        guest = found.uid, found.gid
    return owner_map(_ids(owner, "--owner"), guest)


def _ids(text: str, option: str) -> tuple[int, int]:
    uid, colon, gid = text.partition(":")
    if not colon or not uid or not gid:
        raise UserError(f"{option} {text!r} is not UID:GID")
    return accounts.user_id(uid), accounts.group_id(gid)


def _listing(files: dict[str, str]) -> str:
    if len(files) == 1:
        return next(iter(files.values()))
    return "\n".join(f"# === {name}\n{text}" for name, text in files.items())
