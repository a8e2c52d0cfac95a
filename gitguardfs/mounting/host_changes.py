"""The socket by which a process of root's tells a daemon of the host's changes.

The process connects, and sends the daemon a signal: so the daemon need not wait for it.
"""

from __future__ import annotations

import glob
import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from gitguardfs.linux import descriptor_limit
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards
from gitguardfs.sessions.base import Session
from gitguardfs.view.view import View

if TYPE_CHECKING:
    from gitguardfs.live.changes import Changes

log = logging.getLogger(__name__)

CACHING_SOURCE = "virtiofs"
"""A source of this type may show what was there a second ago."""


class HostChanges:
    """Listener for the host's lines to one daemon; one connection at a time."""

    def __init__(
        self, session: Session, view: View, mounted: MountInfo, source: MountInfo | None
    ) -> None:
        """Listen from now on. Raises OSError."""
        self._session = session
        self._view = view
        self._mounted = mounted
        self._source_caches = source is not None and source.fstype == CACHING_SOURCE
        self._kept = f"{guards.RECORDS}/{mounted.device}.kept"
        self._changes: Changes | None = None
        self._path = guards.changes_socket(os.getpid())
        self._listening = socket.socket(socket.AF_UNIX)
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        self._listening.bind(self._path)  # RECORDS is root's alone
        self._listening.listen()
        self._listening.setblocking(False)

    def begin(self) -> None:
        """Have the kernel forget what it keeps from a former daemon, if that was killed."""
        if paths := self._kept_files():
            from gitguardfs.live import kept

            kept.forget_what_a_former_daemon_kept(paths, self._view.share.nodes, self._session)

    def take(self) -> None:
        """Take the newest connection that waits, in place of the former one. Raises nothing.

        Of several signals one may be left, and a process that has ended leaves its connection.
        """
        descriptor_limit.use_all()  # asked for by root: users do not keep it from being taken
        waiting: list[socket.socket] = []
        try:
            with suppress(BlockingIOError):
                while True:
                    waiting.append(self._listening.accept()[0])
        except OSError as error:
            log.warning("gitguard changes-in does not reach this daemon: %s", error.strerror)
        try:
            if waiting:
                self._begin_with(waiting.pop())
        except Exception:
            with suppress(Exception):  # of a log; the view is served
                log.exception("the host's changes are not taken in")
        finally:
            for connection in waiting:
                connection.close()
            descriptor_limit.spare()

    def _begin_with(self, connection: socket.socket) -> None:
        """Be told by this connection from now on."""
        try:
            from gitguardfs.live.changes import Changes  # takes time to load; most do without
            from gitguardfs.live.helper_process import HelperProcess

            self.close_connection()
            path = self._mounted.path
            device = os.makedev(*map(int, self._mounted.device.split(":")))
            self._changes = Changes(
                self._session, self._view, lambda: HelperProcess(path, device), connection,
                self._source_caches, self._kept,
            )  # fmt: skip
        except BaseException:
            connection.close()
            raise

    def close_connection(self) -> None:
        """Be told of nothing more."""
        if self._changes is not None:
            self._changes.close()
            self._changes = None

    def end(self, *, hands_over: bool) -> None:
        """Close all; the next daemon finds what the kernel keeps, if there will be one."""
        self.close_connection()
        self._listening.close()
        for path in (self._path, *(() if hands_over else self._kept_files())):
            with suppress(OSError):
                os.unlink(path)

    def _kept_files(self) -> list[str]:
        return glob.glob(f"{self._kept}-*")
