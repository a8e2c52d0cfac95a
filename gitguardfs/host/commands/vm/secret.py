"""``gitguard vm secret``: keys and passwords that the proxy puts in, and the guest never has."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gitguardfs.base.errors import UserError, shown
from gitguardfs.commands.command_line import CommandGroup
from gitguardfs.host.commands.vm.common import PROJECT, NeedsExtra
from gitguardfs.host.credentials.presets import PRESETS

if TYPE_CHECKING:
    from gitguardfs.host.credentials.secrets import Place
    from gitguardfs.host.vm.state import State

EPILOG = """\b
Examples:
  gitguard vm secret set --preset anthropic
  gitguard vm secret set EXAMPLE_TOKEN --host api.example.org --bearer
  gitguard vm secret list
  gitguard vm secret rotate EXAMPLE_TOKEN
  gitguard vm secret remove EXAMPLE_TOKEN
"""

SET_EPILOG = """\b
Examples:
  gitguard vm secret set --preset github                      as GITHUB_TOKEN
  gitguard vm secret set WORK_TOKEN --preset github           another variable
  gitguard vm secret set API_KEY --host api.example.org --header X-Api-Key
  gitguard vm secret set CI_PASSWORD --host ci.example.org:8443 --basic build
  pass show example | gitguard vm secret set API_KEY --host api.example.org --bearer

\b
Presets, each with its usual variable:
""" + "".join(f"  {name:<12}{preset.variable}\n" for name, preset in PRESETS.items())


@click.group(
    cls=CommandGroup, epilog=EPILOG,
    short_help="Keys that the guest can use, but never has.",
)  # fmt: skip
def secret() -> None:
    """Let the guest use a key or password that it never has.

    The guest has a variable with a placeholder. In a request that the allowlist allows, the proxy
    puts the value in its place, for the host and the place that you name. The value is in your
    keyring, or in a file of yours.
    """


@secret.command(
    name="set", cls=NeedsExtra, epilog=SET_EPILOG,
    short_help="Add a secret.",
)  # fmt: skip
@PROJECT
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), help="A service with known hosts and places."
)
@click.option("--host", metavar="HOST", help="The only host that may get the value, by https; "
              "HOST:PORT for another port than 443.")  # fmt: skip
@click.option("--bearer", is_flag=True, help="The value follows Authorization: Bearer.")
@click.option("--basic", metavar="USER", help="It is this user's password (Authorization: Basic).")
@click.option("--header", metavar="FIELD", help="It is the whole of this header field.")
@click.option("--query", metavar="NAME", help="It is the whole of this parameter of the URL.")
@click.argument("name", required=False)
def set_secret(
    project: str | None,
    name: str | None,
    preset: str | None,
    host: str | None,
    bearer: bool,
    basic: str | None,
    header: str | None,
    query: str | None,
) -> None:
    """Add a secret, which the guest has as the variable NAME, with a placeholder.

    The value is asked for, and not shown; or it is read from standard input if that is no terminal.
    It is never an argument, which others on this machine could read.
    """
    from gitguardfs.host.vm import ending, secret_changes
    from gitguardfs.host.vm import state as states

    others = (host, basic, header, query)
    if preset is not None and (bearer or any(other is not None for other in others)):
        raise click.UsageError("--preset names the host and the places: give no others")
    chosen = PRESETS.get(preset or "")
    name = name or (chosen.variable if chosen else None)
    if name is None:
        raise click.UsageError("give --preset, or NAME and --host")
    secret_changes.check_name(name)
    if chosen:
        places = chosen.places
    elif host is None:
        raise click.UsageError(f"give --host, the only host that may get {name}; or --preset")
    else:
        places = (secret_changes.place(host, bearer, basic, header, query),)
    where = states.find(project)
    secret_changes.check_new(where, name)
    value = _value(name, places)
    with ending.by_exception():
        added = secret_changes.add(where, name, places, preset or "", value)
    click.echo(f"{name} is in {added.kept}, for the VM of {shown(where.project)}.")
    click.echo(f"It goes only to {', '.join(added.hosts)}, in {added.where}.")
    click.echo(_tell_guest(where, name))
    for hint in secret_changes.not_allowed(where, added):
        click.echo(hint)


@secret.command(
    name="list", cls=NeedsExtra,
    short_help="Show the secrets, without their values.",
)  # fmt: skip
@PROJECT
def list_secrets(project: str | None) -> None:
    """Show each secret's hosts and places, and where its value lies; never the value."""

    from gitguardfs.host.credentials import secrets
    from gitguardfs.host.vm import state as states

    directory = states.existing(project).files.directory
    found, suspended = secrets.load(directory), secrets.suspended_names(directory)
    for one in found:
        click.echo(f"{one.name}\n  to {', '.join(one.hosts)}\n  as {one.where}\n  in {one.kept}")
        if one.name in suspended:
            click.echo(f"  {secrets.why_suspended(one.name)}")
    if not found:
        click.echo("This VM has no secrets; gitguard vm secret set adds one.")


@secret.command(cls=NeedsExtra, short_help="Change a secret's value.")
@PROJECT
@click.argument("name")
def rotate(project: str | None, name: str) -> None:
    """Change a secret's value. It counts from the next request on, also in a running VM."""
    from gitguardfs.host.vm import secret_changes
    from gitguardfs.host.vm import state as states

    where = states.existing(project)
    places = secret_changes.named(where, name).places
    changed = secret_changes.rotate(where, name, _value(name, places))
    click.echo(f"{name} has its new value in {changed.kept}; it counts from the next request on.")


@secret.command(cls=NeedsExtra, short_help="Remove a secret.")
@PROJECT
@click.argument("name")
def remove(project: str | None, name: str) -> None:
    """Remove a secret, and delete its value. From the next request on the guest cannot use it."""
    from gitguardfs.host.vm import secret_changes
    from gitguardfs.host.vm import state as states

    where = states.find(project)  # a reset may have left a value
    left = secret_changes.remove(where, name)
    click.echo(f"{name} is removed; the guest cannot use it any more.")
    _tell_guest(where, name)
    if left:
        raise UserError(left)


def _value(name: str, places: tuple[Place, ...]) -> str:
    """Return the value from a hidden prompt or from standard input. Raises UserError."""
    from gitguardfs.host.credentials import secrets
    from gitguardfs.host.vm import keyboard, secret_changes

    if sys.stdin is None:
        raise UserError("there is no standard input to read the value from")
    if sys.stdin.isatty():
        value = keyboard.hidden_line(f"Value of {name} (not shown): ")
    else:
        # One character more than is possible, and the end of the line.
        data = sys.stdin.buffer.read(secrets.MAX_VALUE + 3)
        value = data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    secrets.check_value(value)
    secret_changes.check_is_value(value, name, places)
    return value


def _tell_guest(where: State, name: str) -> str:
    """Give a running guest its variables; return what to tell the user."""
    from gitguardfs.host.vm.tell_guest import tell_guest

    why = tell_guest(where)
    if why is None:
        return f"New shells in the guest have the variable {name}: gitguard vm ssh opens one."
    return f"The guest has the variable {name} from the next gitguard vm up on{why}."
