"""Sends commands to a running QEMU by QMP: a connection each, since QMP serves one at a time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.vm.state import State

ANSWER_LIMIT = 10.0
"""Seconds to wait for an answer; QEMU answers at once unless it is stopped or hangs."""

IO_ERROR = "io-error"
"""QEMU's status of a machine that it has paused because the disk could not be written."""

T = TypeVar("T")

# `info usernet` prints a table; the forwarded port is in the row of the guest's port 22.
_FORWARD = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)\s+\S+\s+22\b")


class NoAnswerError(UserError):
    """QEMU does not answer, or has just ended."""

    def __init__(self) -> None:
        super().__init__("QEMU does not answer", "gitguard vm stop ends it", Exit.SYSTEM)


def ssh_port(state: State) -> int:
    """Return the port of 127.0.0.1 that leads to the guest's sshd. Raises NoAnswerError."""
    text = _run(state, lambda qmp: qmp.execute(
        "human-monitor-command", {"command-line": "info usernet"}
    ))  # fmt: skip
    found = _FORWARD.search(str(text))
    if found is None:
        raise NoAnswerError
    return int(found[1])


def status(state: State) -> str:
    """Return QEMU's status of the machine, such as ``running``. Raises NoAnswerError."""
    answer = _run(state, lambda qmp: qmp.execute("query-status"))
    return str(answer["status"])


def resume(state: State) -> None:
    """Resume a paused machine. Raises NoAnswerError."""
    _run(state, lambda qmp: qmp.execute("cont"))


def power_down(state: State) -> None:
    """Press the power button: the guest shuts down. Raises NoAnswerError."""
    _run(state, lambda qmp: qmp.execute("system_powerdown"))


def quit(state: State) -> None:
    """End QEMU at once, as if the power had failed. Raises NoAnswerError."""
    _run(state, lambda qmp: qmp.execute("quit"))


def _run(state: State, ask: Callable[[Any], Awaitable[T]]) -> T:
    from qemu.qmp import QMPClient, QMPError

    async def converse() -> T:
        client = QMPClient(state.name)
        client.logger.setLevel(logging.CRITICAL)  # else it logs that QEMU has ended
        async with asyncio.timeout(ANSWER_LIMIT):
            await client.connect(state.qmp)
            try:
                return await ask(client)
            finally:
                # QEMU answers `quit`, and then closes the connection.
                with suppress(QMPError, EOFError, OSError):
                    await client.disconnect()

    try:
        return asyncio.run(converse())
    except (QMPError, EOFError, OSError, TimeoutError):
        raise NoAnswerError from None
