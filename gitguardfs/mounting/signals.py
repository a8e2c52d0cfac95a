"""Receives root's signals to the daemon, until the process ends.

A handler only notes its signal: it may interrupt the main thread anywhere, also while that holds a
lock. The session acts on the signal between two requests.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from gitguardfs.base.signals import CHANGES, ENDING, REREAD, STOP_KEEP_SEAL, UNMOUNTED
from gitguardfs.sessions.base import Session

log = logging.getLogger(__name__)

HELPER_LIMIT = 5.0
"""Seconds to wait, after a view was unmounted, for the signal of root's umount helper."""
_PAUSE = 0.01
_RECEIVED = (*ENDING, UNMOUNTED, REREAD, CHANGES)


def hold() -> None:
    """Keep the daemon's signals pending until ``SignalReceiver.install``.

    By default each of them ends the process, which would leave a dead mount.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _RECEIVED)


class SignalReceiver:
    """Receives the signals of one mount.

    Before the mount answers, a signal that ends the daemon may come from a service manager that has
    waited for too long. It counts as ``STOP_KEEP_SEAL``, so that the seal stays.
    """

    def __init__(
        self,
        session: Session,
        is_unmounted: Callable[[], bool],
        begin_end: Callable[[], None],
        reread_groups: Callable[[], None],
        take_changes: Callable[[], None],
    ) -> None:
        """Prepare to receive signals; ``install`` begins.

        ``is_unmounted`` returns whether the mount is gone from the mount table of this namespace.
        ``begin_end`` is called when the daemon begins to end, perhaps twice. ``reread_groups``
        makes the daemon read the group memberships of users again. ``take_changes`` takes a
        connection by which the host tells of its changes.
        """
        self._session = session
        self._is_unmounted = is_unmounted
        self._begin_end = begin_end
        self._reread_groups = reread_groups
        self._take_changes = take_changes
        self._noted: deque[signal.Signals] = deque()
        self._is_ready = False
        self._end: signal.Signals | None = None
        """The signal by which root ended the view; None if it has sent none."""

    def install(self) -> None:
        """Handle the signals from now on, held ones as well."""
        for number in _RECEIVED:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _RECEIVED)

    @property
    def is_ready(self) -> bool:
        """Whether the mount answers."""
        return self._is_ready

    def note_ready(self) -> None:
        """Note that the mount answers. From now on signals keep their own meaning."""
        self._is_ready = True

    def end(self, *, waits: bool) -> signal.Signals | None:
        """Return the signal by which root ended the view, or None. Called after ``serve``.

        With ``waits``, the umount helper gets some time to send it, if the view is unmounted.

        Further signals are ignored: a second SIGTERM must not kill a daemon that is about to
        unmount.
        """
        self._obey_noted()
        if waits and self._end is None and self._is_unmounted():
            # The umount helper sends UNMOUNTED or SIGTERM when it is done.
            deadline = time.monotonic() + HELPER_LIMIT
            while self._end is None and time.monotonic() < deadline:
                time.sleep(_PAUSE)
                self._obey_noted()
        for number in _RECEIVED:  # at exit, Python restores the defaults of handled signals
            signal.signal(number, signal.SIG_IGN)
        self._obey_noted()
        self._begin_end()
        return self._end

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # UNMOUNTED is ignored while the view is there: a user might unmount it later on.
        if number != UNMOUNTED or self._is_unmounted():
            self._noted.append(signal.Signals(number))
            self._session.call_soon(self._obey_noted)

    def _obey_noted(self) -> None:
        while self._noted:
            self._obey(self._noted.popleft())

    def _obey(self, number: signal.Signals) -> None:
        if number == REREAD:
            self._reread_groups()
        elif number == CHANGES:
            if self._is_ready and self._end is None:
                self._take_changes()
        elif number == UNMOUNTED:
            self._end = self._end or number  # processes that still use the view are served
        elif self._end in (None, UNMOUNTED):
            self._end = number if self._is_ready else STOP_KEEP_SEAL
            self._begin_end()
            self._session.stop()
            with suppress(Exception):  # the session takes no exception
                log.info("%s: unmounting", number.name)
