"""Makes the kernel look names and attributes up again, on a thread of its own.

The kernel takes the lock of a name's directory for that. A program may have it, and wait for the
daemon; so the serving thread must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from gitguardfs.base.signals import leave_to_main_thread
from gitguardfs.live.known_names import Place
from gitguardfs.sessions.base import Session

Work = tuple[Iterable[Place], Iterable[int], Callable[[], None] | None]


class Notifying:
    """The thread, and what it has to do."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        # It may wait for a program that waits for the daemon when that ends.
        Thread(target=self._run, name="notifying", daemon=True).start()

    def forget(
        self, places: Iterable[Place], nodes: Iterable[int], then: Callable[[], None] | None
    ) -> None:
        """Make the kernel forget names, and the attributes of nodes.

        ``then`` is called afterwards, between two requests.
        """
        self._work.put((places, nodes, then))

    def end(self) -> None:
        """Let the thread end when it has done all."""
        self._work.put(None)

    def _run(self) -> None:
        leave_to_main_thread()
        while (work := self._work.get()) is not None:
            places, nodes, then = work
            for node in nodes:
                with suppress(OSError):
                    self._session.invalidate(node)  # type: ignore[arg-type]
            for parent, name in places:
                with suppress(OSError):
                    self._session.expire(parent, name)  # type: ignore[arg-type]
            if then is not None:
                with suppress(ValueError):  # the session has ended
                    self._session.call_soon_from_thread(then)
