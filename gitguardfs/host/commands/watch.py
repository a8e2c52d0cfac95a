"""``gitguard watch``: tells a guest at once of each change in a shared directory."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time

import click

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.command_line import Command

EPILOG = """\b
Examples:
  gitguard watch ~/projects --to - | ssh VM sudo gitguard changes-in VIEW
  gitguard watch projects=~/projects --to ~/.cache/vm-changes.sock
  gitguard watch ~/projects --without deps --to -
  gitguard watch --status

Run it on the host. gitguard vm up starts one by itself. --to PATH may be the socket of QEMU's
virtio-serial port org.gitguardfs.changes: a socket that is missing or closed is tried again twice
a second. It reads names only, never a file, and tells none that git could take for .git, nor
anything below one. Linux has a limit of watches; docs/live-changes.md of the source says more.

\b
Exit codes: 0 ended by a signal or the reader, 2 wrong usage, 3 anything else.
With --status: 0 a watcher runs, 1 none does.
"""


@click.command(cls=Command, epilog=EPILOG)
@click.argument("directories", metavar="[TAG=]DIR...", nargs=-1)
@click.option("--to", "target", metavar="-|PATH", help="Write to standard output, or to a unix "
              "socket, FIFO or character device.")  # fmt: skip
@click.option("--without", metavar="GLOB", multiple=True, help="Leave out these names and all "
              "below them: the guest's own, as in vm-mount --local. Repeatable.")  # fmt: skip
@click.option("--status", "is_status", is_flag=True, help="List your running watchers.")
@click.option("--json", "as_json", is_flag=True, help="With --status: print a list of objects.")
def command(
    directories: tuple[str, ...],
    target: str | None,
    without: tuple[str, ...],
    is_status: bool,
    as_json: bool,
) -> int:
    """Tell a guest of changes in DIR as they happen: one line of JSON for each.

    With them, editors, test runners and dev servers in the guest see what you edit on the host,
    and the guest can keep what it knows of unchanged files for longer than a second. A DIR has the
    name TAG in the lines, by default its last name.
    """
    if is_status:
        if directories or target:
            raise click.UsageError("--status takes no DIR and no --to")
        return _print_status(as_json)
    if not directories or target is None:
        raise click.UsageError("it takes DIR and --to, or --status")
    if as_json:
        raise click.UsageError("--json goes with --status")
    found: dict[str, str] = {}
    for each in directories:
        tag, path = _tag_and_path(each)
        if found.setdefault(tag, path) != path or len(found) != directories.index(each) + 1:
            raise UserError(f"two directories are called {tag}", "name them: TAG=DIR")
    _check_library()
    from gitguardfs.host.watch import watcher

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    watcher.watch(found, target, without)
    return 0


def _tag_and_path(text: str) -> tuple[str, str]:
    tag, equals, path = text.partition("=")
    if not equals or "/" in tag:
        tag, path = "", text
    path = os.path.realpath(os.path.expanduser(path))
    if not os.path.isdir(path):
        raise UserError(f"no such directory: {path}")
    tag = tag or os.path.basename(path)
    if not tag:
        raise UserError(f"{path} has no name", "name it: TAG=DIR")
    return tag, path


def _check_library() -> None:
    if sys.platform != "linux":
        raise UserError("gitguard watch runs on Linux only, so far", code=Exit.SYSTEM)
    for module, package in (("inotify_simple", "inotify-simple"), ("platformdirs", "platformdirs")):
        if importlib.util.find_spec(module) is None:
            hint = f"pipx inject gitguardfs {package}, or install gitguardfs[vm]"
            raise UserError(f"{package} is not installed", hint, Exit.SYSTEM)


def _print_status(as_json: bool) -> int:
    from gitguardfs.host.watch import status

    found = status.running()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(status.as_text(found, time.time()) or "no watcher of yours is running")
    return 0 if found else 1
