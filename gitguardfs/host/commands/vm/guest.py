"""Commands that reach into a VM: ``ssh``, ``run``, ``doctor``, ``forward``, ``ssh-config``, …"""

from __future__ import annotations

import sys

import click

from gitguardfs.commands.command_line import FAIL_ON, JSON
from gitguardfs.host.commands.vm.common import PROJECT, WORDS, NeedsExtra

SSH_EPILOG = """\b
Examples:
  gitguard vm ssh                                         a shell as the agent
  gitguard vm ssh 'cd ~/projects/hello && make'           a line for the shell
  gitguard vm ssh --root 'apt update && apt install npm'  as the guest's root
"""

RUN_EPILOG = """\b
Examples:
  gitguard vm run claude                          in a VM that runs, or is started
  gitguard vm run codex -- exec 'mend the tests'  with arguments
  gitguard vm run codex -- login                  log in, by your browser
  gitguard vm run ~/my-agent.toml                 one that your own file describes
"""

DOCTOR_EPILOG = """\b
Examples:
  gitguard vm doctor             while the VM runs
  gitguard vm doctor --attack    also the attacks on .git

docs/doctor.md of the source has all checks.

\b
Exit codes: 0 done, 1 findings (--fail-on), 2 wrong usage, 3 anything else, such as a VM that does
not run.
"""

FORWARD_EPILOG = """\b
Examples:
  gitguard vm forward 3000         127.0.0.1:3000 leads to port 3000 of the guest
  gitguard vm forward 8080:3000    127.0.0.1:8080 leads to port 3000 of the guest
"""

SSH_CONFIG_EPILOG = """\b
Examples:
  gitguard vm ssh-config >>~/.ssh/gitguard
  gitguard vm ssh-config --start >>~/.ssh/gitguard   a connection starts the VM

\b
And as the first line of ~/.ssh/config, before any Host *, which could
forward your SSH agent to the VM (of two values ssh takes the first):
  Include gitguard

\b
The block's first line names the host, for example:
  ssh gitguard-hello-1a2b3c4d
  scp notes.txt gitguard-hello-1a2b3c4d:projects/hello/
"""


@click.command(
    cls=NeedsExtra,
    short_help="Open another shell in the running VM.",
    epilog=SSH_EPILOG,
    context_settings=WORDS,
)
@PROJECT
@click.option("--root", is_flag=True, help="Log in as the guest's root, to administer the guest.")
@click.argument("words", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def ssh(project: str | None, root: bool, words: tuple[str, ...]) -> int:
    """Open another shell in the running VM, or run a command there.

    A single argument is a line for the guest's shell; several are a command and its arguments.
    """
    import subprocess

    from gitguardfs.host.vm import keys, running, shared_login, state
    from gitguardfs.host.vm import ssh as ssh_command

    where = state.existing(project)
    guest = running.guest(where, early=root)
    if root:  # it may add the agent to a group
        shared_login.end(where)
    login = "" if root else shared_login.path(where)
    terminal = sys.stdin.isatty() and (not words or sys.stdout.isatty())
    user = keys.ADMIN if root else keys.AGENT
    try:
        return subprocess.call(ssh_command.session(guest, words, terminal, user, login=login))
    finally:
        if root:  # `vm up` may have logged in meanwhile: root can be in before
            shared_login.end(where)


@click.command(
    cls=NeedsExtra,
    short_help="Start the agent in the VM.",
    epilog=RUN_EPILOG,
    context_settings=WORDS,
)
@PROJECT
@click.argument("agent", metavar="AGENT")
@click.argument("words", metavar="[-- ARGS...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, project: str | None, agent: str, words: tuple[str, ...]) -> int:
    """Start an agent in the VM, with its terminal here; return its exit status.

    If the VM does not run, this starts it like `vm up --agent AGENT`, and stops it afterwards.
    While an agent without a key runs, the port by which your browser logs it in leads to it.
    """
    import subprocess

    from gitguardfs.host.commands.vm.up import up
    from gitguardfs.host.credentials import secrets
    from gitguardfs.host.vm import agents, forwarding, keys, running, settings, shared_login, state
    from gitguardfs.host.vm import ssh as ssh_command
    from gitguardfs.host.vm.up_options import NO_AGENT

    if agent == NO_AGENT:
        raise click.UsageError("name an agent")
    where = state.find(project)
    line = agents.run_words(words[1:] if words[:1] == ("--",) else words)
    if not running.is_running(where):
        return int(ctx.invoke(up, project=project, words=line, agent=agent))
    agents.check_is_in(where, agent)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    guest = running.guest(where)
    found = agents.of(settings.load(where))
    names = (secret.name for secret in secrets.load(where.files.directory))
    login = shared_login.path(where)
    with forwarding.for_login(where, guest, found.login_ports(names) if found else ()):
        return subprocess.call(ssh_command.session(guest, line, terminal, keys.AGENT, login=login))


@click.command(
    cls=NeedsExtra,
    short_help="Check in the guest that the project is guarded.",
    epilog=DOCTOR_EPILOG,
)
@PROJECT
@click.option("--attack", is_flag=True, help="Carry out the attacks on .git; they write into the "
              "project.")  # fmt: skip
@JSON
@FAIL_ON
def doctor(project: str | None, attack: bool, as_json: bool, fail_on: str) -> int:
    """Run `gitguard doctor` as root of the running VM: can the agent bypass the guard?

    It checks all directories that the VM shares, as the agent's user. Its text and its exit code
    are the guest's own.
    """
    from gitguardfs.host.vm import guest_doctor, state

    given = {"--attack": attack, "--json": as_json}
    words = [*(name for name, is_given in given.items() if is_given), "--fail-on", fail_on]
    return guest_doctor.run(state.existing(project), words)


@click.command(
    cls=NeedsExtra,
    short_help="Forward a local port into the VM, until Ctrl-C.",
    epilog=FORWARD_EPILOG,
)
@PROJECT
@click.argument("ports", metavar="PORT[:GUEST_PORT]")
def forward(project: str | None, ports: str) -> int:
    """Forward a port of this machine's 127.0.0.1 into the VM, until Ctrl-C: for a dev server."""
    from gitguardfs.host.vm import forwarding, running, state
    from gitguardfs.host.vm.ports import parsed

    port = parsed(ports)
    where = state.existing(project)
    return forwarding.run(where, running.guest(where), port)


@click.command(
    cls=NeedsExtra,
    short_help="Print a block for ~/.ssh/config.",
    name="ssh-config",
    epilog=SSH_CONFIG_EPILOG,
)
@PROJECT
@click.option("--start", is_flag=True, help="A connection starts the VM, until gitguard vm stop.")
@click.option("--port", is_flag=True, help="With the port of this start, for programs without "
              "ProxyCommand; it holds until the VM stops.")  # fmt: skip
def ssh_config(project: str | None, start: bool, port: bool) -> None:
    """Print a block for ssh_config(5), for ssh, scp, rsync, and editors that work over SSH.

    The block stays right as long as project and gitguardfs are where they are: a command in it
    looks up the port, which is another one at each start of the VM.
    """
    from gitguardfs.host.vm import connecting, keys, running, settings, state, trusted_programs
    from gitguardfs.host.vm import ssh as ssh_command

    if start and port:
        raise click.UsageError("--port is of a VM that runs: leave --start out")
    where = state.existing(project)
    host = f"gitguard-{where.name}"
    if port:
        click.echo(ssh_command.config(running.guest(where), host), nl=False)
        return
    trusted_programs.check(settings.load(where), trusted_programs.SSH)
    pairs = keys.Keys(where.path(keys.DIRECTORY))
    seconds = connecting.START_LIMIT if start else ssh_command.CONNECT_LIMIT
    block = ssh_command.stable_config(pairs, host, connecting.words(where, start), seconds)
    click.echo(block, nl=False)


@click.command(cls=NeedsExtra, hidden=True)
@PROJECT
@click.option("--start", is_flag=True, help="Start the VM first, unless it runs.")
def connect(project: str | None, start: bool) -> None:
    """Connect standard input and output to the VM's sshd: for the block of vm ssh-config."""
    from gitguardfs.host.vm import connecting, state

    connecting.run(state.existing(project), start)
