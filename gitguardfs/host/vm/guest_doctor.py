"""Runs ``gitguard doctor`` in a VM that runs, and passes on what it says: for ``vm doctor``."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, TextIO

from gitguardfs.base import quote
from gitguardfs.base.errors import Exit, GitguardExit, UserError, shown, warn
from gitguardfs.base.findings import ProgressLine
from gitguardfs.host.share.share_spec import GuardPlacement
from gitguardfs.host.vm import keys, running, settings, ssh
from gitguardfs.host.vm.state import State

ON_HOST = "the guard of this VM is on this machine (--guard host), and not in its guest"
LONGEST = 1 << 16
"""Bytes of a line; what is longer goes on in a row of its own."""
MOST = 16 << 20
"""Bytes of each of the two outputs: a guest that writes without end is cut off."""


def has_guard_on_host(state: State) -> bool:
    """Return whether the guest has a guarded view of this machine, and no guard. UserError."""
    return settings.load(state).guard == GuardPlacement.HOST


def run(state: State, words: Sequence[str]) -> int:
    """Run ``gitguard doctor WORDS`` as the guest's root; return its exit status.

    Raises UserError if the VM does not run, or if its guard is not in the guest.
    """
    if running.is_running(state) and has_guard_on_host(state):
        command = quote.shell(["gitguard", "doctor", "--host", state.project])
        raise UserError(ON_HOST, f"{command} checks the host's side", Exit.SYSTEM)
    guest = running.guest(state)
    remote = quote.shell(["gitguard", "doctor", *words])
    progress = ProgressLine(sys.stderr)
    progress.say(f"in the guest of {state.project}")
    with subprocess.Popen(
        ssh.command(guest, keys.ADMIN, "-T", remote=remote),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        errors = threading.Thread(
            target=_pass_on, args=(process, process.stderr, sys.stderr, progress)
        )
        errors.start()
        try:
            _pass_on(process, process.stdout, sys.stdout, progress)
        except BaseException:  # also Ctrl-C, or a closed pipe
            process.kill()
            raise
        finally:
            errors.join()
            progress.clear()
        status = process.wait()
    # A negative one is a signal's, which ended ssh: whoever takes the worst must not lose it.
    return GitguardExit.FAILED if status == ssh.FAILED or status < 0 else status


def _pass_on(
    process: subprocess.Popen[bytes], source: IO[bytes], target: TextIO, progress: ProgressLine
) -> None:
    """Copy lines of the guest's, which may be of any text, as lines that a terminal only shows.

    If they have no end, kill ``process``, which brings them.
    """
    left = MOST
    while line := source.readline(LONGEST):
        left -= len(line)
        progress.clear()
        if left < 0:
            process.kill()
            warn("the guest's output has no end, and was cut off")
            return
        print(shown(line.rstrip(b"\n"), keep=" "), file=target, flush=True)
