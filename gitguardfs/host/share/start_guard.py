"""Starts the guard on the host, or recognises that it runs already. Linux only."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from gitguardfs.base import installation, quote
from gitguardfs.base.errors import Exit, UserError, failing
from gitguardfs.host.share import share_settings
from gitguardfs.host.share.share_spec import ShareSpec
from gitguardfs.options import config_files, running_guards


def start(spec: ShareSpec) -> bool:
    """Start the guard as the printed commands do; return whether it was running already.

    The messages of gitguardfs go to standard error. Raises UserError.
    """
    _make_directories(spec.mountpoint)
    if _is_running(spec):
        return True
    mount = installation.command(*_arguments(spec))
    done = subprocess.run(mount, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        codes = [code for code in Exit if code == done.returncode]
        raise UserError(
            "the guard was not started",
            "the reason is in the line above; options that it names are those of gitguardfs,"
            " which you can start by hand",
            codes[0] if codes else Exit.SYSTEM,
        )
    if not running_guards.is_mounted(spec.mountpoint):
        raise UserError(
            "the guard was not started", f"nothing is mounted at {spec.mountpoint}", Exit.MOUNT
        )
    return False


def _arguments(spec: ShareSpec) -> list[str]:
    return [*spec.hiding, *share_settings.start_on_host(spec)[1:]]


def _is_running(spec: ShareSpec) -> bool:
    """Return whether the guard that would be started is mounted already and answers.

    Raises UserError if a guard of another directory, or with other options, is mounted there: it
    would not guard what the printed settings say. The next start replaces a dead mount.
    """
    if not running_guards.is_mounted(spec.mountpoint):
        return False
    try:
        os.statvfs(spec.mountpoint)  # stat may be answered from the kernel's cache
    except OSError:
        return False
    if running_guards.is_started(_arguments(spec)):
        return True
    raise UserError(
        f"another guard is mounted at {spec.mountpoint}",
        f"stop it, or share by another tag: {quote.shell(share_settings.stop_on_host(spec))}",
        Exit.MOUNT,
    )


def _make_directories(mountpoint: str) -> None:
    """Make the mount point, in a directory that only this user may enter. Raises UserError."""
    parent = os.path.dirname(mountpoint)
    runtime = os.path.dirname(parent)
    if not os.path.isdir(runtime):
        hint = "systemd makes it at your login; or set XDG_RUNTIME_DIR to a directory of yours"
        raise UserError(f"there is no {runtime}", hint, Exit.SYSTEM)
    with failing(parent, "move it away"):
        config_files.make_private_directory(parent)
        with suppress(FileExistsError):  # or a dead mount, which the start replaces
            os.mkdir(mountpoint, 0o700)
