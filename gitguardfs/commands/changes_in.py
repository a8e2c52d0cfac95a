"""The command ``gitguard changes-in``: tells guards in a guest of the host's changes."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from contextlib import suppress
from functools import partial

import click

from gitguardfs.base.errors import Exit, GitguardExit, UserError, shown, warn
from gitguardfs.commands.command_line import JSON, Command
from gitguardfs.guest import host_lines

AGAIN_AFTER = 0.5
"""Seconds before a port is opened again whose other side has closed."""
AT_ONCE = 1 << 16
PORT_LIMIT = 120.0
"""Seconds for which a port is waited for: at boot, udev may name it later than this begins."""

EPILOG = f"""\b
Examples:
  host$ gitguard watch DIR --to - | ssh VM sudo gitguard changes-in VIEW
  root# gitguard changes-in --from {host_lines.PORT}
  root# gitguard changes-in --status
docs/live-changes.md says more.

\b
Exit codes: 0 done, 2 wrong usage, 3 anything else.
With --status: 0 changes arrive, 1 they do not.
"""


@click.command(
    name="changes-in", cls=Command, epilog=EPILOG, short_help="Take in changes that the host makes."
)
@click.argument("views", metavar="[[TAG=]MOUNTPOINT]...", nargs=-1)
@click.option(
    "--from", "path", metavar="PATH", help="Read from a port, again and again.  Default: stdin."
)
@click.option("--status", "asks", is_flag=True, help="Say whether changes arrive.")
@JSON
def command(views: tuple[str, ...], path: str | None, asks: bool, as_json: bool) -> int:
    """Tell guards of the host's changes, which gitguard watch writes. For root, in the guest.

    Programs in the guest then see the host's changes at once (inotify), and the guard lets the
    kernel cache for long meanwhile. Without MOUNTPOINT, each guard of a share is told.
    """
    host_lines.check_root()
    if asks and path is not None:
        raise click.UsageError("--status takes no --from")
    if asks:
        return _print_status(views, as_json)
    if as_json:
        raise click.UsageError("--json goes with --status")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    if views and not host_lines.routes(views):
        warn(f"no guard of root's is mounted yet at {', '.join(map(shown, views))}")
    bridge = host_lines.Bridge(views)
    try:
        if path is None:
            _take(sys.stdin.fileno(), bridge)
        else:
            _take_again_and_again(path, views)
    except KeyboardInterrupt:
        pass
    except ValueError as error:
        hint = "is the input the output of gitguard watch, of the same release?"
        raise UserError(shown(str(error)), hint, Exit.SYSTEM) from None
    finally:
        bridge.close()
    return GitguardExit.OK


def _take(fd: int, bridge: host_lines.Bridge) -> None:
    host_lines.read_lines(partial(os.read, fd, AT_ONCE), bridge.take)


def _take_again_and_again(path: str, views: tuple[str, ...]) -> None:
    until = time.monotonic() + PORT_LIMIT
    while path == host_lines.PORT and not os.path.exists(path):
        if time.monotonic() > until:
            return warn(f"this machine has no port {path}")
        time.sleep(AGAIN_AFTER)
    while True:
        try:
            is_port = stat.S_ISCHR(os.stat(path).st_mode)
            flags = os.O_RDWR | os.O_NONBLOCK if is_port else os.O_RDONLY
            fd = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}", code=Exit.SYSTEM) from None
        bridge = host_lines.Bridge(views)
        try:
            if is_port:
                with suppress(BlockingIOError):  # nobody is there, who could have begun
                    os.write(fd, b"\n")  # asks a host that has begun already to begin again
                os.set_blocking(fd, True)
            _take(fd, bridge)
        except ValueError as error:
            warn(f"{path}: {shown(str(error))}")
        finally:
            bridge.close()
            with suppress(OSError):
                os.close(fd)
        time.sleep(AGAIN_AFTER)


def _print_status(views: tuple[str, ...], as_json: bool) -> int:
    found = host_lines.status(views)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    for one in () if as_json else found:
        click.echo(f"{shown(one['mountpoint'])}: {_text(one)}")
    if not found and not as_json:
        click.echo("no guard is mounted here")
    if not found or not all(one["arrives"] for one in found):
        return GitguardExit.FINDINGS
    return GitguardExit.OK


def _text(one: host_lines.Object) -> str:
    if not one["arrives"]:
        return "no changes arrive: run gitguard watch on the host, as docs/live-changes.md says"
    text = f"changes arrive; {one['watched']} directories are watched"
    if not one["whole"]:
        text += f"; not all changes: {shown(one['why']) or 'the host has not looked at all yet'}"
    last = one["last_change"]
    return text + ("; none yet" if last is None else f"; the last one {last:.0f} s ago")
