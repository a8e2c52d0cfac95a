"""Waits until a started guest is ready, and shows the progress on one line."""

from __future__ import annotations

import math
import os
import re
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

from gitguardfs.base.errors import Exit, UserError, ascii_shown, shown
from gitguardfs.host.vm import qmp
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
_TAIL = 64 << 10
"""Bytes at the end of a log that are searched: a panic is the last thing that a kernel writes."""
_BANNER_LIMIT = 2.0
"""Seconds to wait for sshd's first line: QEMU accepts before the guest does."""

MAX_QUOTED = 200
"""Characters of the guest's own words that an error quotes."""
_MAX_SAID = 4096
"""Bytes of a line of the guest's that are kept: it can write without end."""

_PANIC = re.compile(rb"Kernel panic - not syncing")  # longer than the name of a process
_ACCELERATOR = re.compile(rb"kvm|hvf", re.IGNORECASE)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\r\x00-\x08\x0b-\x1f\x7f]")


class BootError(Exception):
    """A start of the VM has failed; another one may succeed."""

    def __init__(self, reason: str, is_accelerator: bool = False) -> None:
        super().__init__(reason)
        self.is_accelerator = is_accelerator
        """Whether another accelerator may help."""


@dataclass
class BootProgress:
    """A line on standard error: what the command waits for, and for how long."""

    started: float = field(default_factory=time.monotonic)
    _said: str = ""

    def show(self, what: str, detail: str = "") -> None:
        """Print what the command waits for. On a terminal, rewrite the line, with ``detail``."""
        seconds = time.monotonic() - self.started
        if sys.stderr.isatty():
            text = f"{what} ({seconds:.0f} s) {ascii_shown(detail)}"
            print(f"\r\033[K{text[:78]}", end="", file=sys.stderr, flush=True)
        elif what != self._said:
            print(f"{what} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        self._said = what

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self.end()
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


@dataclass
class Boot:
    """A started QEMU whose guest is booting."""

    state: State
    qemu: subprocess.Popen[bytes]
    progress: BootProgress
    channel: socket.socket
    """The end here of qemu_command.CHANNEL."""
    deadline: float = field(default_factory=lambda: time.monotonic() + BOOT_LIMIT)
    _step: str = "the guest boots"
    _said: bytes = b""
    """The beginning of a line that the guest has not ended."""
    _is_ready: bool = False
    _silent_at: float = field(default_factory=lambda: time.monotonic() + SILENT_LIMIT)
    """When the user is told that the guest has said nothing."""
    _is_silent: bool = False
    """Whether it had said nothing then."""

    def await_monitor(self) -> int:
        """Wait until QEMU answers; return the port of the guest's sshd. Raises as _check."""
        deadline = time.monotonic() + MONITOR_LIMIT
        while True:
            self._check()
            with suppress(qmp.NoAnswerError):
                return qmp.ssh_port(self.state)
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
            part = self.channel.recv(_TAIL)
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
                self._step = ascii_shown(text) if word == "step" else self._step
        self.progress.show(self._step, last_line(self.state.console))
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
                self.progress.say(SILENT)

    def _check(self) -> None:
        """Raise BootError if this boot can no longer succeed; UserError if no other can either."""
        code = self.qemu.poll()
        if code is not None:
            said = last_line(self.state.qemu_log) or f"exit status {code}"
            is_accelerator = _ACCELERATOR.search(_content(self.state.qemu_log)) is not None
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
    return _PANIC.search(_content(state.console)) is not None


def last_line(path: str) -> str:
    """Return the last line of a log that is not empty, without control characters."""
    lines = reversed(_content(path).decode(errors="replace").split("\n"))
    return next(filter(None, (plain(line).strip() for line in lines)), "")


def plain(line: str) -> str:
    """Return a line without escape sequences and control characters."""
    return _CONTROL.sub("", line)


def _content(path: str) -> bytes:
    """Return the last _TAIL bytes of a log, which the guest can make long."""
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        return file.read(_TAIL)
    return b""


def _sshd_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), _BANNER_LIMIT) as peer:
            peer.settimeout(_BANNER_LIMIT)
            return peer.recv(4) == b"SSH-"
    except OSError:
        return False
