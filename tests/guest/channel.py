"""The host's end of the command channel to a guest (see inside/agent.py for the other end)."""

from __future__ import annotations

import json
import shlex
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.mounting import until

AGENT_SLACK = 30.0
"""Seconds beyond a command's own limit in which the agent itself has to answer."""
HANG_LIMIT = 600.0
"""Seconds after which a command is taken to hang: emulated, beside other tests, a start of Python
takes several."""


class GuestGone(AssertionError):
    """The guest went away, or did not answer."""


@dataclass(frozen=True)
class Done:
    """The outcome of a command in the guest."""

    command: str
    rc: int
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        return f"$ {self.command}\n[{self.rc}]\n{self.stdout}{self.stderr}"

    def ok(self) -> Done:
        """Return this outcome. Raises AssertionError with the output if the command failed."""
        assert self.rc == 0, str(self)
        return self

    def failed(self, *words: str) -> Done:
        """Return this outcome. Raises AssertionError unless it failed and printed the words."""
        assert self.rc != 0, f"it succeeded: {self}"
        for word in words:
            assert word in self.stdout + self.stderr, f"{word!r} is missing: {self}"
        return self


class Channel:
    """Sends commands through the socket of the guest's virtio-serial port."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        until(lambda: self._connects(path), "QEMU listens for the agent")
        self._lock = threading.Condition()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._number = 0
        self.boot_id: str | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _connects(self, path: Path) -> bool:
        """Return whether QEMU listens: its socket exists a moment earlier."""
        try:
            self._socket.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader
        self._reader.join()
        self._socket.close()

    def start(
        self,
        command: str | Sequence[str],
        *,
        uid: int = 0,
        gid: int | None = None,
        cwd: str = "/",
        stdin: str = "",
        timeout: float = HANG_LIMIT,
        forked: bool = False,
        **env: str,
    ) -> Future[dict[str, Any]]:
        """Start a command (a shell line, or words) in the guest. Returns a future of the answer.

        ``forked`` forks a process that has imported the command already, if inside/forks.py runs.
        """
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            self._number += 1
            self._waiting[self._number] = answer
            request = {
                "id": self._number, "argv": argv, "uid": uid, "gid": uid if gid is None else gid,
                "cwd": cwd, "stdin": stdin, "timeout": timeout, "env": env,
                "forked": forked,
            }  # fmt: skip
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        return answer

    def run(self, command: str | Sequence[str], *, timeout: float = HANG_LIMIT, **how: Any) -> Done:
        """Run a command in the guest and wait for its end."""
        return self.finish(command, self.start(command, timeout=timeout, **how), timeout)

    @staticmethod
    def finish(
        command: str | Sequence[str], answer: Future[dict[str, Any]], timeout: float
    ) -> Done:
        text = command if isinstance(command, str) else shlex.join(command)
        try:
            got = answer.result(timeout + AGENT_SLACK)
        except TimeoutError:
            raise GuestGone(f"no answer from the guest to: {text}") from None
        return Done(text, got["rc"], got["stdout"], got["stderr"], got["seconds"])

    def await_boot(self, other_than: str | None, limit: float) -> bool:
        """Wait until an agent of a boot other than the given one has said hello."""
        deadline = time.monotonic() + limit
        with self._lock:
            while self.boot_id is None or self.boot_id == other_than:
                if not self._lock.wait(deadline - time.monotonic()):
                    return False
                if time.monotonic() > deadline:
                    return False
        return True

    def _read(self) -> None:
        pending = b""
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            if not data:
                self._abandon("QEMU has ended")
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # a message that was cut off when the guest went down
        if "hello" in message:
            self._abandon("the guest has rebooted")
            with self._lock:
                self.boot_id = message["hello"]
                self._lock.notify_all()
            return
        with self._lock:
            answer = self._waiting.pop(message["id"], None)
        if answer is not None:
            answer.set_result(message)

    def _abandon(self, reason: str) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(GuestGone(reason))
