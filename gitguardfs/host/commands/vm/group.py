"""``gitguard vm``: a sandbox VM for a coding agent, with the project guarded and an allowlist."""

from __future__ import annotations

import click

from gitguardfs.commands.command_line import CommandGroup
from gitguardfs.host.commands.vm import config, egress, guest, images, machine, secret, up

EPILOG = """\b
Examples:
  gitguard vm up --agent claude             a shell in it, with an agent
  gitguard vm run claude                    the agent itself
  gitguard vm up --allow npm -- npm test    one command
  gitguard vm ssh                           another shell, while the VM runs
  gitguard vm doctor                        can the agent bypass the guard?
  gitguard vm watch                         what the proxy blocks, as it comes
  gitguard vm blocked                       what the proxy has blocked
  gitguard vm allow 'GET https://example.org/docs/*'
  gitguard vm config edit                   your file with options of vm up
  gitguard vm secret set --preset github    a token that the guest never has
  gitguard vm list                          the VMs of all projects

Other names: start is up, shell is ssh, down is stop, ls is list, rm and delete are reset.

In docs/ of the source, vm.md says more, and egress.md has the rules of the allowlist.

\b
Exit codes: up, run and ssh return the status of their shell or command.
Otherwise: 0 done, 1 findings of doctor, 2 wrong usage, 3 any other error.
"""

ALIASES = {"start": "up", "shell": "ssh", "down": "stop", "rm": "reset", "delete": "reset"}
"""Names that similar programs use."""
COMMANDS = (
    up.up, guest.run, guest.ssh, guest.doctor, guest.forward, guest.ssh_config, guest.connect,
    machine.list_, machine.status, machine.logs, machine.stop, machine.reset,
    config.config, egress.blocked, egress.watch, egress.allow, egress.proxy, secret.secret,
    images.images,
)  # fmt: skip


@click.group(name="vm", cls=CommandGroup, aliases=ALIASES, epilog=EPILOG)
def command() -> None:
    """Run an agent in a VM: the project is guarded, and only requests on an allowlist get out.

    The first `vm up` fetches an image of Debian and sets a guest up, once for all projects. It
    needs QEMU and ssh, but not root. The agent's user has no sudo; `vm ssh --root` lets you
    administer the guest.
    """


for one in COMMANDS:
    command.add_command(one)
