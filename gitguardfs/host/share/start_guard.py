"""Starts the guard on the host, or recognises that it runs already. Linux only."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from gitguardfs.base import constants, installation, quote
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.share import share_settings
from gitguardfs.host.share.share_spec import ShareSpec


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
    if not _is_guarded(spec.mountpoint):
        raise UserError(
            "the guard was not started", f"nothing is mounted at {spec.mountpoint}", Exit.MOUNT
        )
    return False


def _arguments(spec: ShareSpec) -> list[str]:
    return share_settings.start_on_host(spec)[1:]


def _is_running(spec: ShareSpec) -> bool:
    """Return whether the guard that would be started is mounted already and answers.

    Raises UserError if a guard of another directory, or with other options, is mounted there: it
    would not guard what the printed settings say. The next start replaces a dead mount.
    """
    if not _is_guarded(spec.mountpoint):
        return False
    try:
        os.statvfs(spec.mountpoint)  # stat may be answered from the kernel's cache
    except OSError:
        return False
    if any(_is_started_for(spec, words) for words in _command_lines()):
        return True
    raise UserError(
        f"another guard is mounted at {spec.mountpoint}",
        f"stop it, or share by another tag: {quote.shell(share_settings.stop_on_host(spec))}",
        Exit.MOUNT,
    )


def _is_guarded(mountpoint: str) -> bool:
    """Return whether the topmost mount is a guard, dead or alive."""
    from gitguardfs.linux import mountinfo  # Linux only

    top = mountinfo.top_at(os.path.realpath(mountpoint))
    return top is not None and top.fstype == constants.FSTYPE


def _is_started_for(spec: ShareSpec, words: tuple[str, ...]) -> bool:
    """Return whether a command line is gitguardfs with exactly the arguments of this guard."""
    arguments = tuple(_arguments(spec))
    if words[-len(arguments) :] != arguments:
        return False
    before = words[: -len(arguments)][-1:]
    return any(
        word == installation.command()[-1] or os.path.basename(word) == constants.SUBTYPE
        for word in before
    )


def _command_lines() -> list[tuple[str, ...]]:
    """Return the command lines of all processes that this user may look at."""
    from gitguardfs.linux import processes  # Linux only

    found = []
    for pid in processes.pids():
        with suppress(OSError):
            found.append(processes.arguments_of(pid))
    return found


def _make_directories(mountpoint: str) -> None:
    """Make the mount point, in a directory that only this user may enter. Raises UserError."""
    parent = os.path.dirname(mountpoint)
    try:
        with suppress(FileExistsError):
            os.mkdir(parent, 0o700)
        fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        hint = "systemd makes it at your login; or set XDG_RUNTIME_DIR to a directory of yours"
        raise UserError(f"there is no {os.path.dirname(parent)}", hint, Exit.SYSTEM) from None
    except OSError as error:
        raise UserError(f"{parent}: {error.strerror}", "move it away", Exit.SYSTEM) from None
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise UserError(f"{parent} belongs to another user", "move it away", Exit.SYSTEM)
        os.fchmod(fd, 0o700)
        with suppress(FileExistsError):  # or a dead mount, which the start replaces
            os.mkdir(os.path.basename(mountpoint), 0o700, dir_fd=fd)
    finally:
        os.close(fd)
