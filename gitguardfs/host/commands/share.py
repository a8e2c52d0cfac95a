"""``gitguard share``: prints how to share a directory of the host with a virtual machine."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import click

from gitguardfs.base import installation
from gitguardfs.base.constants import UTM_TAG
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.command_line import CURRENT, RespelledCommand, in_project
from gitguardfs.host.audit import trust
from gitguardfs.host.commands.shared_options import choice, cpus, size
from gitguardfs.host.share import share_settings
from gitguardfs.host.share.directory import directory_elsewhere, existing_directory, secrets_in
from gitguardfs.host.share.share_spec import (
    GuardPlacement,
    Hypervisor,
    MachineNetwork,
    ShareSpec,
    Transport,
)
from gitguardfs.host.share.this_host import RUNTIME, this_host
from gitguardfs.options import config_files

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
      guard .git here and share the view: out of reach even for guest root
  gitguard share --bundle gitguardfs.tar
      gitguardfs itself, for the guest to install

docs/qemu-utm-libvirt.md of the source goes through it step by step.

\b
Exit codes: 0 done, 2 wrong usage, 3 anything else.
"""

TAR_MAGIC = slice(257, 265)
"""Where a tar says that it is one (tar(5))."""
OTHERWISE = "; --elsewhere if another machine has it"
"""What else this command can do about a directory that does not exist."""


@click.command(cls=RespelledCommand, epilog=EPILOG)
@in_project(CURRENT)
@click.option("--tag", metavar="TAG", default=UTM_TAG, show_default=True,
              help="The name by which the guest mounts the share: 31 bytes at most.")  # fmt: skip
@choice("--transport", kind=Transport, default=Transport.P9, text="What carries the share.")
@choice("--for", "hypervisor", kind=Hypervisor, default=Hypervisor.QEMU,
        text="What runs the virtual machine.")  # fmt: skip
@choice("--guard", kind=GuardPlacement, default=GuardPlacement.GUEST,
        text="Where .git is guarded; on the host, root in the guest cannot bypass it.")  # fmt: skip
@click.option("--run", is_flag=True, help="With --guard host: start the guard now.")
@size("--memory", "The machine's memory.  [default: 2G]")
@cpus("The machine's processors.  [default: 2]")
@click.option(
    "--disk", metavar="PATH", help="The machine's disk.  [default: agent.qcow2 beside PROJECT]"
)
@choice("--network", kind=MachineNetwork,
        text="What the machine may reach: open is the internet, your network and services on this "
        "machine's 127.0.0.1; restricted is nothing, with ssh as the way in.  "
        "[default: open]")  # fmt: skip
@click.option("--elsewhere", is_flag=True,
              help="PROJECT is on another machine, for example a Mac: do not check it "
              "here.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object, commands as lists.")
@click.option(
    "--bundle",
    metavar="FILE",
    help="Write a tar of gitguardfs itself, which a guest installs; without PROJECT.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    project: str | None,
    tag: str,
    transport: Transport,
    hypervisor: Hypervisor,
    guard: GuardPlacement,
    run: bool,
    elsewhere: bool,
    as_json: bool,
    bundle: str | None,
    **machine: Any,
) -> int:
    """Show how to share PROJECT with a virtual machine, and what to do in the guest then.

    PROJECT is the directory of one project, or of several.

    Changes nothing, unless --run starts the guard on the host or --bundle writes FILE.
    """
    if bundle is not None:
        given = click.core.ParameterSource.COMMANDLINE
        if any(ctx.get_parameter_source(name) is given for name in ctx.params if name != "bundle"):
            raise UserError("--bundle FILE goes alone", "run gitguard share PROJECT besides")
        return _write_bundle(bundle)
    directory = project or "."
    stated = {name: value for name, value in machine.items() if value is not None}
    if stated and hypervisor != Hypervisor.QEMU:
        raise UserError(f"--{next(iter(stated))} is for a machine that QEMU starts", "--for qemu")
    if "disk" in stated:
        stated["disk"] = os.path.realpath(stated["disk"])
    if run and guard != GuardPlacement.HOST:
        raise UserError("--run starts the guard on the host", "add --guard host")
    if run and elsewhere:
        raise UserError("--run starts the guard here", "leave --elsewhere out")
    real = directory_elsewhere(directory) if elsewhere else existing_directory(directory, OTHERWISE)
    spec = ShareSpec(
        directory=real,
        tag=tag,
        transport=transport,
        hypervisor=hypervisor,
        guard=guard,
        host=this_host(),
        **stated,
    )
    warnings = list(_warnings(real, elsewhere))
    if spec.uses_runtime and not (elsewhere or os.path.isdir(spec.host.runtime)):
        runtime = f"{spec.host.runtime} does not exist yet"
        warnings.append(f"warning: {runtime}: log in as this user, or set {RUNTIME}")
    if run:
        from gitguardfs.host.share import start_guard  # not importable on macOS

        if start_guard.start(spec):
            warnings.append(f"the guard was running already at {spec.mountpoint}")
    git = None if elsewhere else trust.line()
    if as_json:
        click.echo(json.dumps(share_settings.as_object(spec, run, warnings, git), indent=2))
    else:
        click.echo(share_settings.as_text(spec, run, git), nl=False)
    for text in warnings:
        click.echo(f"gitguard share: {text}", err=True)
    return Exit.OK


def _write_bundle(file: str) -> int:
    if file == "-":
        raise UserError("--bundle writes a file, not to the terminal", "--bundle gitguardfs.tar")
    change = config_files.plan(file, installation.bundle())
    if change.before and not change.before[TAR_MAGIC].startswith(b"ustar"):
        raise UserError(f"{file} exists and is no tar", "choose another FILE")
    try:
        config_files.write(change)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", code=Exit.SYSTEM) from None
    name = shlex.quote(os.path.basename(file))
    click.echo(f"{file}: copy it into the guest, and there")
    click.echo(f"    tar -xf {name}\n    sudo ./gitguardfs/guest-setup/install.sh")
    return Exit.OK


def _warnings(directory: str, elsewhere: bool) -> Iterator[str]:
    """Yield warnings about a directory that may be shared."""
    if elsewhere:
        yield f"{directory} was not checked, and the programs are those of this machine"
    elif secrets := secrets_in(directory):
        listed = ", ".join(secrets)
        yield f"warning: {directory} holds {listed}: the guest can read and change what is there"
