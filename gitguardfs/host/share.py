"""``gitguard share``: how a virtual machine gets a directory of the host, ready to copy."""

from __future__ import annotations

import grp
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress

import click

from gitguardfs import mounts, program
from gitguardfs.arguments import respelled
from gitguardfs.errors import Exit, UserError
from gitguardfs.host.spec import (
    UTM_TAG,
    Guard,
    Host,
    ShareSpec,
    Target,
    Transport,
    existing_directory,
)
from gitguardfs.render import hostguard, share_json, share_text

EPILOG = """\b
Examples:
  gitguard share ~/projects --tag projects
      a QEMU of your own, over 9p
  gitguard share ~/projects --tag projects --transport virtiofs --memory 4096
      the same over virtiofs, which is faster and needs a daemon
  gitguard share ~/projects --tag projects --transport virtiofs --for libvirt
      XML for virsh edit
  gitguard share ~/projects --for utm
      what to choose in UTM on a Mac
  gitguard share ~/projects --tag projects --guard host --run
      guard .git here, below the export: out of reach even for guest root

\b
Exit codes: 0 done, 2 wrong usage, 3 anything else.
"""

COMMAND_LIMIT = 10.0
"""Seconds for a program that only says how the system is set up."""


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, respelled(args))


@click.command(cls=_Command, epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("directory")
@click.option(
    "--tag",
    metavar="TAG",
    default=UTM_TAG,
    show_default=True,
    help="By what name the guest mounts the share: 31 bytes at most.",
)
@click.option(
    "--transport",
    type=click.Choice([transport.value for transport in Transport]),
    default=Transport.NINEP.value,
    show_default=True,
    help="What carries the share.",
)
@click.option(
    "--for",
    "target",
    type=click.Choice([target.value for target in Target]),
    default=Target.QEMU.value,
    show_default=True,
    help="What runs the virtual machine.",
)
@click.option(
    "--guard",
    type=click.Choice([guard.value for guard in Guard]),
    default=Guard.GUEST.value,
    show_default=True,
    help="Where .git is guarded; on the host, root in the guest cannot get round it.",
)
@click.option("--run", is_flag=True, help="With --guard host: start it now.")
@click.option("--memory", metavar="MIB", type=int, help="The machine's memory.  [default: 2048]")
@click.option("--cpus", metavar="N", type=int, help="The machine's processors.  [default: 2]")
@click.option(
    "--disk", metavar="PATH", help="The machine's disk.  [default: agent.qcow2 beside DIRECTORY]"
)
@click.option("--json", "as_json", is_flag=True, help="Print an object, commands as lists.")
def command(
    directory: str,
    tag: str,
    transport: str,
    target: str,
    guard: str,
    run: bool,
    memory: int | None,
    cpus: int | None,
    disk: str | None,
    as_json: bool,
) -> int:
    """Show how a virtual machine is given DIRECTORY, and what to do in the guest then.

    Nothing is changed, unless --run starts the guard on the host.
    """
    if disk == "":
        raise UserError("the disk's path is empty", "--disk PATH, or leave it out")
    disk = disk and os.path.realpath(disk)
    machine = {"memory": memory, "cpus": cpus, "disk": disk}
    stated = {name: value for name, value in machine.items() if value is not None}
    if stated and target != Target.QEMU:
        raise UserError(f"--{next(iter(stated))} is for a machine that QEMU starts", "--for qemu")
    if run and guard != Guard.HOST:
        raise UserError("--run starts the guard on the host", "add --guard host")
    spec = ShareSpec(
        directory=existing_directory(directory),
        tag=tag,
        transport=Transport(transport),
        target=Target(target),
        guard=Guard(guard),
        host=_host(),
        **stated,  # type: ignore[arg-type]
    )
    if run:
        _start(spec)
    if as_json:
        click.echo(json.dumps(share_json.as_object(spec, running=run), indent=2))
    else:
        click.echo(share_text.render(spec, running=run), nl=False)
    return Exit.OK


def _host() -> Host:
    uid, gid = os.geteuid(), os.getegid()
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return Host(
        uid=uid,
        gid=gid,
        group=group,
        runtime="/run" if uid == 0 else os.environ.get("XDG_RUNTIME_DIR"),
        selinux=needs_label(_os_release(), _getenforce()),
    )


def needs_label(os_release: Mapping[str, str], getenforce: str | None) -> bool:
    """Whether this is a Fedora, or one of its kin, with SELinux on (os-release(5))."""
    kin = {os_release.get("ID", ""), *os_release.get("ID_LIKE", "").split()}
    return "fedora" in kin and getenforce != "Disabled"


def _os_release() -> Mapping[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _getenforce() -> str | None:
    if shutil.which("getenforce") is None:
        return None
    try:
        done = subprocess.run(
            ["getenforce"], capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip()


def _start(spec: ShareSpec) -> None:
    """Do what the printed commands do; the mount's own messages go to standard error."""
    _make_directories(spec.mountpoint)
    mount = program.command(*hostguard.arguments(spec))
    done = subprocess.run(mount, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        codes = [code for code in Exit if code == done.returncode]
        raise UserError(
            "the guard was not started",
            "the reason is in the line above",
            codes[0] if codes else Exit.SYSTEM,
        )
    top = mounts.top_at(os.path.realpath(spec.mountpoint))
    if top is None or top.fstype != mounts.FSTYPE:
        raise UserError(
            "the guard was not started", f"nothing is mounted at {spec.mountpoint}", Exit.MOUNT
        )


def _make_directories(mountpoint: str) -> None:
    """Make the mount point in a directory that is closed to all others, also if it is there."""
    parent = os.path.dirname(mountpoint)
    with suppress(FileExistsError):
        os.mkdir(parent, 0o700)
    try:
        fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{parent}: {error.strerror}", "move it away", Exit.SYSTEM) from None
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise UserError(f"{parent} belongs to another user", "move it away", Exit.SYSTEM)
        os.fchmod(fd, 0o700)
        with suppress(FileExistsError):  # or a dead mount, which the start clears away
            os.mkdir(os.path.basename(mountpoint), 0o700, dir_fd=fd)
    finally:
        os.close(fd)
