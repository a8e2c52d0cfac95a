"""Serves one mount by pyfuse3 and trio, from its mounting to its end."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pyfuse3
import trio

from gitguardfs.base.constants import SUBTYPE
from gitguardfs.base.signals import leave_to_main_thread
from gitguardfs.sessions.base import MountFailed
from gitguardfs.sessions.pyfuse3_session.handlers import Handlers
from gitguardfs.view.view import View

log = logging.getLogger(__name__)

ANSWER_LIMIT = 30.0
"""Seconds after which a warning says that a new mount does not answer yet."""
STAT = "/usr/bin/stat"
"""A fixed path: a search for the program could meet the new mount, which may not answer."""


class Pyfuse3Session:
    """One mount's connection to the kernel, by pyfuse3; see ``base.Session``."""

    outliving = None  # libfuse begins each connection with INIT

    def __init__(self, view: View) -> None:
        self._handlers = Handlers(view, self.invalidate)
        self._loop = self._handlers.request_loop
        self._mountpoint = ""
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._readers: dict[int, trio.CancelScope] = {}
        self._early: list[Callable[[], None]] = []
        """Calls that were given before ``serve``."""

    @property
    def answers(self) -> int:
        """How many calls that the session waited for have returned. The number only grows."""
        return self._loop.answers

    def mount(self, path: str, directory: int, options: set[str]) -> None:
        """Mount on a directory. Raises MountFailed."""
        self._mountpoint = path
        target = f"/proc/self/fd/{directory}" if os.geteuid() == 0 else path
        self._loop.install()
        try:
            pyfuse3.init(self._handlers, target, {*map(_for_libfuse, options)})
        except RuntimeError as error:
            raise MountFailed(str(error)) from None

    def serve(self, ready: Callable[[], None]) -> None:
        """Serve until the mount is unmounted or ``stop`` is called."""
        trio.run(self._serve, ready)

    async def _serve(self, ready: Callable[[], None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        for call in self._early:
            self._token.run_sync_soon(call)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(_announce, self._mountpoint, ready)
                gc.collect()
                gc.freeze()
                await self._loop.serve()
                nursery.cancel_scope.cancel()
        finally:
            # trio.run closes this descriptor before it takes it back from Python. A signal in
            # between would be written to a closed socket, or to a file that got the same number.
            signal.set_wakeup_fd(-1)

    def stop(self) -> None:
        """Finish the requests under way, and take no more. May be called in a signal handler."""
        self.call_soon(self._loop.stop)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make a call between two requests. May be called in a signal handler."""
        if self._token is None:
            self._early.append(call)
            return
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)

    call_soon_from_thread = call_soon

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Make a call between two requests each time when a descriptor can be read."""
        if self._nursery is None or fd in self._readers:
            return
        scope = self._readers[fd] = trio.CancelScope()
        self._nursery.start_soon(_read, scope, fd, call)

    def remove_reader(self, fd: int) -> None:
        """Undo ``add_reader``, if it was called for the descriptor."""
        if (scope := self._readers.pop(fd, None)) is not None:
            scope.cancel()
            trio.lowlevel.notify_closing(fd)

    device = -1

    def expiring(self, parent: int, name: bytes) -> bytes:
        """Return nothing: there is no device."""
        return b""

    def invalidating(self, node: int) -> bytes:
        """Return nothing: there is no device."""
        return b""

    def keep_listings(self) -> bool:
        """Return False: the kernel keeps no listings."""
        return False

    def invalidate(self, node: int) -> None:
        """Make the kernel drop the cached attributes of a node. Raises OSError."""
        pyfuse3.invalidate_inode(node, attr_only=True)

    def close(self, unmount: bool = False) -> None:
        """Close the connection. The mount is left dead, unless ``unmount`` is true."""
        pyfuse3.close(unmount=unmount)


async def _read(scope: trio.CancelScope, fd: int, call: Callable[[], None]) -> None:
    with scope, suppress(trio.ClosedResourceError, OSError):  # OSError: it was closed meanwhile
        while not scope.cancel_called:
            await trio.lowlevel.wait_readable(fd)
            if not scope.cancel_called:
                call()


def _for_libfuse(option: str) -> str:
    """Return an option as libfuse reads it, which splits at commas; pyfuse3 passes ASCII only."""
    if not option.isascii() or not option.isprintable():
        return f"{option.partition('=')[0]}={SUBTYPE}"
    return option.replace("\\", "\\\\").replace(",", "\\,")


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
            log.warning("%s has not answered for %d seconds; still waiting",
                        mountpoint, ANSWER_LIMIT)  # fmt: skip
            await answered.wait()
        ready()
    except Exception:
        log.exception("%s is mounted, but reporting that failed; it stays mounted", mountpoint)


def _ask(mountpoint: str) -> None:
    """Let a child process send a request.

    A thread that waits for its own process's mount keeps the process from ending, even by SIGKILL:
    the kernel closes the device only when all threads have ended.
    """
    leave_to_main_thread()  # this thread may still run when the daemon is told to end
    code = "import os, sys; os.statvfs(sys.argv[1])"
    # stat starts in a tenth of Python's time; not every system has it, or its -f.
    for program in ([STAT, "-f", "--"], [sys.executable, "-I", "-S", "-c", code]):
        with suppress(OSError):
            asked = subprocess.run(
                [*program, mountpoint], check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            if asked.returncode == 0:
                return


def versions() -> str:
    """Return the versions of libfuse (fuse_pkgversion) and pyfuse3 as text."""
    library = ctypes.CDLL(pyfuse3.__file__)  # with libfuse, whose file's name changes by release
    library.fuse_pkgversion.restype = ctypes.c_char_p
    return f"libfuse {library.fuse_pkgversion().decode()}, pyfuse3 {pyfuse3.__version__}"
