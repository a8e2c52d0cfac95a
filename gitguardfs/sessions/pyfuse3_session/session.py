"""Serving one mount by pyfuse3 and trio, from its mounting to its end, and the signals of root."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import pyfuse3
import trio

from gitguardfs.daemon.signals import (
    ENDING,
    HAND_OVER,
    REREAD,
    UNMOUNTED,
    leave_to_main_thread,
)
from gitguardfs.serving.operations import Operations
from gitguardfs.sessions.base import Mounted, MountFailed
from gitguardfs.sessions.pyfuse3_session.handlers import Handlers
from gitguardfs.sessions.pyfuse3_session.names_only import NamesOnlyEntry
from gitguardfs.sessions.pyfuse3_session.request_loop import Requests

log = logging.getLogger(__name__)

WORD_LIMIT = 5.0
"""Seconds to wait, after a view was unmounted, for the signal of root's umount helper."""
ANSWER_LIMIT = 30.0
"""Seconds after which a warning says that a new mount does not answer yet."""


class Pyfuse3Kind:
    """Sessions by pyfuse3 and libfuse."""

    def __init__(self, no_cpu_idle: bool = False) -> None:
        """``no_cpu_idle`` keeps processors from halting while requests come in a row."""
        self.reports_names_only = NamesOnlyEntry().works
        self._no_cpu_idle = no_cpu_idle

    def __call__(self, operations: Operations) -> Pyfuse3Session:
        """Return a session that serves ``operations``."""
        return Pyfuse3Session(operations, self._no_cpu_idle)


class Pyfuse3Session:
    """One mount's connection to the kernel, by pyfuse3; see ``base.Session``."""

    def __init__(self, operations: Operations, no_cpu_idle: bool) -> None:
        self._handlers = Handlers(operations, _invalidate, no_cpu_idle=no_cpu_idle)

    @property
    def answers(self) -> int:
        """How many calls that the session waited for have returned. The number only grows."""
        return self._handlers.requests.answers

    def mount(self, target: str, options: set[str]) -> None:
        """Mount at ``target``. Raises MountFailed."""
        try:
            pyfuse3.init(self._handlers, target, options)
        except RuntimeError as error:
            raise MountFailed(str(error)) from None

    def serve(self, mounted: Mounted) -> signal.Signals | None:
        """Serve until unmounted or ended by a signal. Returns the signal, or None."""
        return trio.run(_serve, self._handlers.requests, mounted)

    def close(self, unmount: bool = False) -> None:
        """Close the connection. The mount is left dead, unless ``unmount`` is true."""
        pyfuse3.close(unmount=unmount)


def _invalidate(node: int) -> None:
    pyfuse3.invalidate_inode(node, attr_only=True)


async def _serve(requests: Requests, view: Mounted) -> signal.Signals | None:
    """Serve to the end. Returns the signal by which root ended the view, or None."""
    word = _Word(requests, view)
    word.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_announce, view.mountpoint, word.become_ready)
        gc.collect()
        gc.freeze()
        await requests.serve()
        nursery.cancel_scope.cancel()
    if word.came is None and view.is_unmounted():
        with trio.move_on_after(WORD_LIMIT):  # the umount helper sends UNMOUNTED when it is done
            await word.spoken.wait()
    view.ending()
    for number in _HEARD:  # at exit, Python restores defaults of all others
        signal.signal(number, signal.SIG_IGN)
    return word.came


_HEARD = (*ENDING, UNMOUNTED, REREAD)


class _Word:
    """Receives root's signals to the daemon, until the process ends.

    Before the mount is ready, a signal that ends it may come from a service manager that has
    waited for too long. It counts as ``HAND_OVER``, so that the seal stays.

    While the view is being unmounted, further signals are ignored. trio.open_signal_receiver would
    restore the handlers when the loop ends. A second SIGTERM would then kill a daemon that is
    about to unmount.
    """

    def __init__(self, requests: Requests, view: Mounted) -> None:
        self.came: signal.Signals | None = None
        self.spoken = trio.Event()
        self._is_ready = False
        self._requests, self._view = requests, view
        self._token = trio.lowlevel.current_trio_token()

    def become_ready(self) -> None:
        """Report that the mount answers. From now on signals keep their own meaning."""
        self._is_ready = True
        self._view.ready()

    def listen(self) -> None:
        for number in _HEARD:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # UNMOUNTED is ignored while the view is there: a user might unmount it later on.
        if number != UNMOUNTED or self._view.is_unmounted():
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._obey, signal.Signals(number))

    def _obey(self, number: signal.Signals) -> None:
        if number == REREAD:
            self._view.reread_groups()
        elif number == UNMOUNTED:
            if self.came is None:
                self._hear(number)  # processes that still use the view are served
        elif self.came in (None, UNMOUNTED):
            self._hear(number if self._is_ready else HAND_OVER)
            self._view.ending()
            self._requests.end()
            with suppress(Exception):  # an exception here would end trio's event loop
                log.info("%s: unmounting", number.name)

    def _hear(self, number: signal.Signals) -> None:
        self.came = number
        self.spoken.set()


async def _announce(mountpoint: str, ready: Callable[[], None]) -> None:
    """Call ``ready`` once a request has gone through the kernel and come back.

    Raises nothing: the mount stays, even if it is late or ``ready`` fails.
    """
    answered = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def deliver(_outcome: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(answered.set)

    try:
        # Not to_thread.run_sync, which could not abandon a request that hangs.
        trio.lowlevel.start_thread_soon(lambda: _ask(mountpoint), deliver)
        with trio.move_on_after(ANSWER_LIMIT):
            await answered.wait()
        if not answered.is_set():
            log.warning("%s has not answered for %d s: waiting on", mountpoint, ANSWER_LIMIT)
            await answered.wait()
        ready()
    except Exception:
        log.exception("nobody was told that the mount is there; it stays")


def _ask(mountpoint: str) -> None:
    """Let a child process send a request.

    A thread that waits for its own process's mount keeps the process from ending, even by SIGKILL:
    the kernel closes the device only when all threads have ended.
    """
    leave_to_main_thread()  # this thread may still run when the daemon is told to end
    code = "import os, sys; os.statvfs(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, mountpoint],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
