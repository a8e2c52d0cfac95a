"""``gitguard vm``: a sandbox VM for a coding agent, with the project guarded and an allowlist."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from typing import Any

import click

from gitguardfs.command_line import LOCAL_OR_DEPS, NO_LOCAL, Command, CommandGroup, local_names
from gitguardfs.egress.presets import PRESETS
from gitguardfs.errors import Exit, UserError, shown
from gitguardfs.render.size import mebibytes
from gitguardfs.vm.images_command import images as images_command

GIT_MODES = ("private", "readonly", "deny")
NEEDED = ("platformdirs", "yaml", "pycdlib", "qemu.qmp", "mitmproxy")
"""Modules of the packages that the extra ``vm`` installs."""

EPILOG = """\b
Examples:
  gitguard vm up --allow anthropic          a shell in the guest
  gitguard vm up --allow npm -- npm test    one command
  gitguard vm ssh                           another shell, while the VM runs
  gitguard vm blocked                       what the proxy has blocked
  gitguard vm allow 'GET https://example.org/docs/*'

In docs/ of the source, vm.md says more, and egress.md has the rules of the allowlist.

\b
Exit codes: up and ssh return the status of their shell or command.
Otherwise: 0 done, 2 wrong usage, 3 any other error.
"""

UP_EPILOG = """\b
Examples:
  gitguard vm up --allow anthropic --allow npm
  gitguard vm up --hide .env --hide '*.pem'     hides these names too, from now on
  gitguard vm up --local deps --local .cache    keeps these on the guest's own disk
  gitguard vm up --image ~/my-image.qcow2       instead of the pinned cloud image
  gitguard vm up --guard host                   guards .git against the guest's root too

Settings are remembered for the next start; vm status shows them, vm reset deletes them.
"""

SSH_EPILOG = """\b
Examples:
  gitguard vm ssh                                  a shell as the agent
  gitguard vm ssh 'cd ~/projects/hello && make'    one line for the shell
  gitguard vm ssh --root apt install nodejs        as the guest's root
"""

ALLOW_EPILOG = """\b
Examples:
  gitguard vm allow 'GET https://example.org/docs/*'
  gitguard vm allow 'POST https://api.example.org/v1/messages'
"""

FORWARD_EPILOG = """\b
Examples:
  gitguard vm forward 3000         127.0.0.1:3000 leads to port 3000 of the guest
  gitguard vm forward 8080:3000    127.0.0.1:8080 leads to port 3000 of the guest
"""

SSH_CONFIG_EPILOG = """\b
Examples:
  gitguard vm ssh-config >>~/.ssh/config
"""

_SETTINGS: dict[str, Any] = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
_WORDS: dict[str, Any] = {"allow_interspersed_args": False}
"""Everything from the first argument on is the command for the guest."""


def _project(command: Any) -> Any:
    return click.option(
        "--project",
        metavar="DIR",
        help="The project.  [default: the current directory, or one above that has a VM]",
    )(command)


class _NeedsExtra(Command):
    """A command that needs the packages of the extra ``vm``; its --help does not."""

    def invoke(self, ctx: click.Context) -> Any:
        require_extra()
        return super().invoke(ctx)


class _Group(CommandGroup):
    command_class = _NeedsExtra


@click.group(name="vm", cls=_Group, epilog=EPILOG, context_settings=_SETTINGS)
def command() -> None:
    """Run an agent in a VM: the project is guarded, and only requests on an allowlist get out.

    The first `vm up` fetches an image of Debian and sets a guest up, once for all projects. It
    needs QEMU and ssh, but not root. The agent's user has no sudo; `vm ssh --root` lets you
    administer the guest.
    """


def require_extra() -> None:
    """Raise UserError if a package of the extra ``vm`` is not installed."""
    from gitguardfs.egress.proxy import EXTRA_HINT

    missing = [name for name in NEEDED if not _is_installed(name)]
    if missing:
        raise UserError(f"gitguard vm needs {', '.join(missing)}", EXTRA_HINT, Exit.SYSTEM)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that holds it
        return False


@command.command(
    short_help="Start the VM and open a shell in the project.",
    epilog=UP_EPILOG,
    context_settings={**_SETTINGS, **_WORDS},
)
@_project
@click.option("--image", metavar="IMAGE", help="A name (debian-13), a file, a directory with a "
              "kernel, or URL#sha512=HEX.  [default: debian-13]")  # fmt: skip
@click.option(
    "--memory", metavar="SIZE", help="The guest's memory, such as 8G or 4096M.  [default: 8G]"
)
@click.option("--cpus", metavar="N", type=int, help="The guest's processors.  [default: 4]")
@click.option("--guard", type=click.Choice(["guest", "host"]),
              help="Where .git is guarded.  [default: guest]")  # fmt: skip
@click.option("--git", type=click.Choice(GIT_MODES),
              help="private gives the agent a repository of its own, readonly lets it read .git, "
              "deny closes .git.  [default: private; with --guard host, deny]")  # fmt: skip
@click.option("--hide", metavar="GLOB", multiple=True,
              help="Hide files and directories of such a name. Repeatable. Adds to the "
              "remembered names; '' clears those.")  # fmt: skip
@LOCAL_OR_DEPS
@NO_LOCAL
@click.option("--hardened/--no-hardened", default=None,
              help="Do not let QEMU start programs; an SSH tunnel leads to the proxy.")  # fmt: skip
@click.option("--allow", "presets", metavar="PRESET", multiple=True,
              type=click.Choice(list(PRESETS)), help="Add a service's lines to the allowlist: "
              f"{', '.join(PRESETS)}. Repeatable.")  # fmt: skip
@click.option("--upstream-ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Also trust this certificate authority (PEM) for servers.")  # fmt: skip
@click.option("--git-name", metavar="NAME", help="The agent's name in git.  [default: AI Agent]")
@click.option("--git-email", metavar="MAIL",
              help="The agent's address in git.  [default: agent@internal.sandbox]")  # fmt: skip
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def up(
    project: str | None,
    presets: tuple[str, ...],
    words: tuple[str, ...],
    upstream_ca: str | None,
    memory: str | None,
    image: str | None,
    hide: tuple[str, ...],
    local: tuple[str, ...],
    no_local: bool,
    **given: Any,
) -> int:
    """Start the VM and open a shell in the project; leaving the shell stops the VM."""
    import shutil

    from gitguardfs.audit import trust
    from gitguardfs.vm import driver, images, secrets, settings, state, trusted_programs

    driver.refuse_root()
    where = state.find(project)
    if project is None and where.project != os.path.realpath(os.getcwd()):
        click.echo(f"sharing {shown(where.project)}, which has a VM", err=True)
    old = settings.load(where)
    wanted = {
        **given,
        "memory": None if memory is None else mebibytes(memory, "--memory"),
        "image": None if image is None else images.resolved(image),
        "hide": hide,
        "local": local_names(local, no_local),
    }
    new = settings.merged(old, wanted)
    paths = secrets.found(where.project, new.hide)
    if paths:
        click.echo(secrets.warning(paths), err=True)
    trusted_programs.check(where.project, *(["git"] if shutil.which("git") else []))
    if line := trust.line():
        click.echo(line, err=True)
    return driver.up(where, driver.UpArguments(new, presets, words, upstream_ca))


@command.command(
    short_help="Open another shell in the running VM.", epilog=SSH_EPILOG, context_settings=_WORDS
)
@_project
@click.option("--root", is_flag=True, help="Log in as the guest's root, to administer the guest.")
@click.argument("words", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def ssh(project: str | None, root: bool, words: tuple[str, ...]) -> int:
    """Open another shell in the running VM, or run a command there.

    A single argument is a line for the guest's shell; several are a command and its arguments.
    """
    import subprocess

    from gitguardfs.vm import keys, running, state
    from gitguardfs.vm import ssh as ssh_command

    guest = running.guest(state.existing(project), early=root)
    terminal = sys.stdin.isatty() and (not words or sys.stdout.isatty())
    user = keys.ADMIN if root else keys.AGENT
    return subprocess.call(ssh_command.session(guest, words, terminal, user))


@command.command(short_help="Show whether the VM runs, and its settings.")
@_project
def status(project: str | None) -> None:
    """Show whether VM and proxy run, the settings, and what to know of the allowlist.

    Of the allowlist: lines that are ignored, and WebSockets that are allowed and not looked into.
    """
    from gitguardfs.vm import report, state

    click.echo(report.status(state.existing(project)), nl=False)


@command.command(short_help="Print the logs of guest, QEMU and proxy.")
@_project
@click.option("-f", "--follow", is_flag=True, help="Also print what is written from now on.")
def logs(project: str | None, follow: bool) -> None:
    """Print the console of the guest, and the logs of QEMU and of the proxy."""
    from gitguardfs.vm import logs as vm_logs
    from gitguardfs.vm import state

    where = state.existing(project)
    with suppress(KeyboardInterrupt):
        for line in vm_logs.follow(where) if follow else vm_logs.lines(where):
            click.echo(line)


@command.command(short_help="Stop the VM.")
@_project
def stop(project: str | None) -> None:
    """Stop the VM, also one whose `vm up` was killed."""
    from gitguardfs.vm import running, state

    running.stop(state.existing(project))


@command.command(short_help="Delete the VM: disk, keys, allowlist, logs, logins.")
@_project
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def reset(project: str | None, yes: bool) -> None:
    """Delete the VM: its disk, keys, allowlist, logs and the logins in it. Images stay."""
    from gitguardfs.vm import running, state

    try:
        where = state.existing(project)
    except UserError as error:
        click.echo(error.message, err=True)
        return
    if not yes:
        click.confirm(
            f"Delete the VM of {shown(where.project)}, with its allowlist and every login made in"
            " it?",
            abort=True, err=True,
        )  # fmt: skip
    running.reset(where)


@command.command(short_help="Run the VM's proxy alone, until Ctrl-C.")
@_project
def proxy(project: str | None) -> None:
    """Run the VM's proxy alone, until Ctrl-C: to replace one that has ended."""
    from pathlib import Path

    from gitguardfs.egress import proxy as egress
    from gitguardfs.vm import report, state, trusted_programs

    where = state.existing(project)
    trusted_programs.check(where.project)
    if (pid := report.proxy_pid(where)) is not None:
        raise UserError(f"the proxy runs already (process {pid})", code=Exit.SYSTEM)
    click.echo(f"its files are in {where.directory}; Ctrl-C ends it", err=True)
    egress.run(Path(where.directory))


@command.command(short_help="Show what was blocked, and what would allow it.")
@_project
def blocked(project: str | None) -> None:
    """Show the requests that the proxy has blocked, and the line that would allow each."""
    from pathlib import Path

    from gitguardfs.egress import reports
    from gitguardfs.vm import state

    click.echo(reports.blocked_text(Path(state.existing(project).directory)))


@command.command(short_help="Add a line to the allowlist.", epilog=ALLOW_EPILOG)
@_project
@click.argument("line", nargs=-1, required=True)
def allow(project: str | None, line: tuple[str, ...]) -> None:
    """Add LINE to the allowlist. It counts from the next request on.

    A line is METHOD https://host/path, with * in the path only. Be specific: a GET can carry data
    out too. WS instead of METHOD allows a WebSocket; the proxy does not see what passes in it.
    """
    from pathlib import Path

    from gitguardfs.egress import reports
    from gitguardfs.vm import state

    click.echo(reports.allow(Path(state.existing(project).directory), " ".join(line)))


@command.command(
    short_help="Forward a local port into the VM, until Ctrl-C.", epilog=FORWARD_EPILOG
)
@_project
@click.argument("ports", metavar="PORT[:GUEST_PORT]")
def forward(project: str | None, ports: str) -> int:
    """Forward a port of this machine's 127.0.0.1 into the VM, until Ctrl-C: for a dev server."""
    from gitguardfs.vm import forwarding, running, state

    here, there = forwarding.ports_of(ports)
    return forwarding.run(running.guest(state.existing(project)), here, there)


@command.command(
    short_help="Print a block for ~/.ssh/config.", name="ssh-config", epilog=SSH_CONFIG_EPILOG
)
@_project
def ssh_config(project: str | None) -> None:
    """Print a block for ~/.ssh/config, for editors that work over SSH.

    The port changes with each start of the VM.
    """
    from gitguardfs.vm import running, state
    from gitguardfs.vm import ssh as ssh_command

    where = state.existing(project)
    click.echo(ssh_command.config(running.guest(where), f"gitguard-{where.name}"), nl=False)


command.add_command(images_command)
