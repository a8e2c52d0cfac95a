"""Waits until a started guest is ready, and shows how far it is."""

from __future__ import annotations

import math
import os
import re
import select
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.vm import logs, qmp
from gitguardfs.host.vm.phases import Phase
from gitguardfs.host.vm.state import State

BOOT_LIMIT = 900.0
"""Seconds until a boot counts as hanging: an emulated first boot may fetch packages."""
SILENT_LIMIT = 60.0
"""Seconds until a console on which nothing was ever written is told: boot loader and kernel write
at once, but a quiet kernel that is emulated can then be silent for minutes."""
SILENT = (
    f"the guest has written nothing to its console for {SILENT_LIMIT:.0f} seconds: perhaps the"
    " image does not boot, or has no serial console (Ctrl-C ends the start)"
)
LOGS = "gitguard vm logs shows what QEMU and the guest wrote"
MONITOR_LIMIT = 120.0
"""Seconds until QEMU counts as hanging: it opens its monitor before the guest runs."""
_LOOK_EVERY = 0.5
_READ = 64 << 10
"""Bytes of what the guest tells that are read at once."""
_BANNER_LIMIT = 2.0
"""Seconds to wait for sshd's first line: QEMU accepts before the guest does."""

STEPS = {
    "setup": "setting up",
    "packages": "packages",
    "gitguardfs": "gitguardfs",
    "agent": "agent",
    "finish": "cleaning up",
}
"""The steps of a setup, by the words with which guest.sh tells their beginnings, in order."""

MAX_QUOTED = 200
"""Characters of the guest's own words that an error quotes."""
_MAX_SAID = 4096
"""Bytes of a line of the guest's that are kept: it can write without end."""

_PANIC = re.compile(rb"Kernel panic - not syncing")  # longer than the name of a process
_ACCELERATOR = re.compile(rb"kvm|hvf", re.IGNORECASE)


class BootError(Exception):
    """A start of the VM has failed; another one may succeed."""

    def __init__(self, reason: str, is_accelerator: bool = False) -> None:
        super().__init__(reason)
        self.is_accelerator = is_accelerator
        """Whether another accelerator may help."""


@dataclass
class Boot:
    """A started QEMU whose guest is booting."""

    state: State
    qemu: subprocess.Popen[bytes]
    phase: Phase
    channel: socket.socket
    """The end here of qemu_command.CHANNEL."""
    deadline: float = field(default_factory=lambda: time.monotonic() + BOOT_LIMIT)
    steps: tuple[str, ...] = ()
    """Those of STEPS that the guest has not begun. What else it calls a step is not shown."""
    _said: bytes = b""
    """The beginning of a line that the guest has not ended."""
    _is_ready: bool = False
    _silent_at: float = field(default_factory=lambda: time.monotonic() + SILENT_LIMIT)
    """When the user is told that the guest has said nothing."""
    _is_silent: bool = False
    """Whether the guest had said nothing by then."""

    def await_monitor(self) -> int:
        """Wait until QEMU answers; return the port of the guest's sshd. Raises as _check."""
        deadline = time.monotonic() + MONITOR_LIMIT
        while True:
            self._check()
            with suppress(qmp.NoAnswerError):
                return qmp.ssh_port(self.state)
            self.phase.show()
            if time.monotonic() > deadline:
                raise BootError("QEMU does not answer")
            time.sleep(_LOOK_EVERY)

    def await_ssh(self, port: int) -> None:
        """Wait until the guest's sshd answers. Raises as _look."""
        while not _sshd_answers(port):
            self._look(_LOOK_EVERY)

    def run(self, words: list[str], failure: str) -> None:
        """Run a command on the guest. Raises BootError(failure) if it fails, and as _look."""
        with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
            try:
                while process.poll() is None:
                    self._look(0)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_LOOK_EVERY)
            finally:
                process.kill()
        if process.returncode != 0:
            raise BootError(failure)

    def await_ready(self) -> None:
        """Wait until the guest tells that it is ready. Raises as _look."""
        while not self._is_ready:
            self._look(_LOOK_EVERY)

    def _look(self, patience: float) -> None:
        """Take what the guest tells within ``patience`` seconds, and show what is waited for.

        Raises UserError if the guest has failed or takes too long, and as _check.
        """
        if select.select([self.channel], [], [], patience)[0]:
            part = self.channel.recv(_READ)
            if not part:  # QEMU has closed it, since it ends
                with suppress(subprocess.TimeoutExpired):
                    self.qemu.wait(MONITOR_LIMIT)
            *lines, self._said = (self._said[:_MAX_SAID] + part).split(b"\n")
            for line in lines:
                self._silent_at = math.inf
                word, _, text = line[:_MAX_SAID].decode(errors="replace").partition(" ")
                if word == "ready":
                    self._is_ready = True
                    return
                if word == "failed":
                    raise UserError(
                        f"setting up the guest failed: {shown(text)[:MAX_QUOTED]}",
                        "gitguard vm up tries again; gitguard vm logs shows the console",
                        Exit.SYSTEM,
                    )
                if word == "step" and text in self.steps:
                    self.steps = self.steps[self.steps.index(text) + 1 :]
                    self.phase.show(STEPS[text], 1 - (len(self.steps) + 1) / (len(STEPS) + 1))
        self.phase.show()
        self._check()
        self._note_silence()
        if time.monotonic() > self.deadline:
            silent = ", and its console was silent" if self._is_silent else ""
            raise UserError(
                f"the guest was not ready within {BOOT_LIMIT:.0f} seconds{silent}",
                LOGS,
                Exit.SYSTEM,
            )

    def _note_silence(self) -> None:
        """Tell the user once if nothing shows that the guest boots."""
        if time.monotonic() > self._silent_at:
            self._silent_at = math.inf
            with suppress(OSError):
                self._is_silent = os.stat(self.state.console).st_size == 0
            if self._is_silent:
                self.phase.say(SILENT)

    def _check(self) -> None:
        """Raise BootError if this boot can no longer succeed; UserError if no other can either."""
        code = self.qemu.poll()
        if code is not None:
            said = "".join(logs.last_lines(self.state.qemu_log, 1)) or f"exit status {code}"
            is_accelerator = _ACCELERATOR.search(logs.end_of(self.state.qemu_log)) is not None
            raise BootError(f"QEMU ended: {said}", is_accelerator)
        if has_panicked(self.state):
            raise BootError("the guest's kernel panicked")
        status = ""
        with suppress(qmp.NoAnswerError):
            status = qmp.status(self.state)
        if status == "internal-error":
            raise BootError("the accelerator does not work", is_accelerator=True)
        if status == qmp.IO_ERROR:
            self.qemu.kill()  # the guest is paused, and cannot shut down
            self.qemu.wait()
            raise UserError(
                "the host's disk is full, and QEMU has paused the VM",
                "make room, then run gitguard vm up again",
                Exit.SYSTEM,
            )


def has_panicked(state: State) -> bool:
    """Return whether the end of the console log shows a kernel panic."""
    return _PANIC.search(logs.end_of(state.console)) is not None


def _sshd_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), _BANNER_LIMIT) as peer:
            peer.settimeout(_BANNER_LIMIT)
            return peer.recv(4) == b"SSH-"
    except OSError:
        return False
