"""``gitguard vm up``."""

from __future__ import annotations

import os
from typing import Any

import click

from gitguardfs.base.errors import shown
from gitguardfs.commands.command_line import LOCAL_OR_DEPS, NO_LOCAL, local_names
from gitguardfs.host.commands.shared_options import cpus, size
from gitguardfs.host.commands.vm.common import PROJECT, WORDS, NeedsExtra
from gitguardfs.host.egress.presets import PRESETS

GIT_MODES = ("private", "readonly", "deny")

UP_EPILOG = """\b
Examples:
  gitguard vm up --allow anthropic --allow npm
  gitguard vm up --hide .env --hide '*.pem'     hides these names too, from now on
  gitguard vm up --local deps --local .cache    keeps these on the guest's own disk
  gitguard vm up --publish 3000                 127.0.0.1:3000 is the guest's port 3000
  gitguard vm up --image ~/my-image.qcow2       instead of the pinned cloud image
  gitguard vm up --guard host                   guards .git against the guest's root too
  gitguard vm up --upstream-proxy http://me@proxy.corp:8080     asks for the password

Settings are remembered for the next start; vm status shows them, vm reset deletes them.
"""


@click.command(
    cls=NeedsExtra,
    short_help="Start the VM and open a shell in the project.",
    epilog=UP_EPILOG,
    context_settings=WORDS,
)
@PROJECT
@click.option("--image", metavar="IMAGE", help="A name (debian-13), a file, a directory with a "
              "kernel, or URL#sha512=HEX.  [default: debian-13]")  # fmt: skip
@size("--memory", "The guest's memory, such as 8G or 4096M.  [default: 8G]")
@cpus("The guest's processors.  [default: this machine's, 4 at most]")
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
@click.option("--publish", metavar="PORT[:GUEST_PORT]", multiple=True,
              help="Let a port of this machine's 127.0.0.1 lead into the guest while the VM runs. "
              "Repeatable. Adds to the remembered ones; '' clears those.")  # fmt: skip
@click.option("--allow", "presets", metavar="PRESET", multiple=True,
              type=click.Choice(list(PRESETS)), help="Add a service's lines to the allowlist: "
              f"{', '.join(PRESETS)}. Repeatable.")  # fmt: skip
@click.option("--upstream-ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Also trust this certificate authority (PEM) for servers.")  # fmt: skip
@click.option("--upstream-proxy", metavar="URL", help="Reach servers through your company's proxy, "
              "http://[USER@]HOST:PORT; '' forgets it.  [default: $HTTPS_PROXY]")  # fmt: skip
@click.option("--git-name", metavar="NAME", help="The agent's name in git.  [default: AI Agent]")
@click.option("--git-email", metavar="MAIL",
              help="The agent's address in git.  [default: agent@internal.sandbox]")  # fmt: skip
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def up(
    project: str | None,
    presets: tuple[str, ...],
    words: tuple[str, ...],
    upstream_ca: str | None,
    upstream_proxy: str | None,
    image: str | None,
    hide: tuple[str, ...],
    publish: tuple[str, ...],
    local: tuple[str, ...],
    no_local: bool,
    **given: Any,
) -> int:
    """Start the VM and open a shell in the project; leaving the shell stops the VM."""
    import shutil

    from gitguardfs.host.audit import trust
    from gitguardfs.host.vm import driver, exposed_files, images, settings, state, trusted_programs

    driver.refuse_root()
    where = state.find(project)
    if project is None and where.project != os.path.realpath(os.getcwd()):
        click.echo(f"sharing {shown(where.project)}, which has a VM", err=True)
    old = settings.load(where)
    wanted = {
        **given,
        "image": None if image is None else images.resolved(image),
        "hide": hide,
        "publish": publish,
        "local": local_names(local, no_local),
    }
    new = settings.merged(old, wanted)
    paths = exposed_files.found(where.project, new.hide)
    if paths:
        click.echo(exposed_files.warning(paths), err=True)
    trusted_programs.check(where.project, *(["git"] if shutil.which("git") else []))
    if line := trust.line():
        click.echo(line, err=True)
    return driver.up(where, driver.UpArguments(new, presets, words, upstream_proxy, upstream_ca))
