"""Writes the daemon's log: to standard error, then to syslog. Never blocks, never raises.

A thread writes the lines. A stopped terminal or a stuck journal must not stop a mount. An error in
writing a line must not fail the request that the line is about.
"""

from __future__ import annotations

import copy
import logging
import os
from contextlib import suppress

from gitguardfs.base.errors import shown
from gitguardfs.base.spool import Spool

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
SYSLOG = "/dev/log"
RECORDS = 1000
"""Records that may wait to be written. Further ones are lost, so that memory stays bounded."""
END_LIMIT = 1.0
"""Seconds to wait at the end for records that are not written yet."""


class SpooledHandler(logging.Handler):
    """Formats records at once; a thread gives them to another handler."""

    def __init__(self, target: logging.Handler) -> None:
        """Give records to ``target``: directly until ``start`` is called, then by a thread."""
        super().__init__()
        # Not ``handle``: its lock would stop logging.shutdown while a record is being written.
        self._write = target.emit
        self._spool: Spool[logging.LogRecord] | None = None

    def start(self) -> None:
        """Let a thread write the records from now on."""
        if self._spool is None:
            self._spool = Spool("log", self._write, RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record to the thread. Raises nothing: one that cannot be written is lost."""
        with suppress(Exception):
            text = self.format(record).encode(errors="backslashreplace").decode()
            formatted = copy.copy(record)
            formatted.msg, formatted.args = text, None
            formatted.exc_info = formatted.exc_text = formatted.stack_info = None
            if self._spool is None:
                self._write(formatted)
            else:
                self._spool.put(formatted)

    def close(self) -> None:
        """Write the records that wait, for ``END_LIMIT`` seconds at most."""
        if self._spool is not None:
            self._spool.close(queue_limit=END_LIMIT, write_limit=END_LIMIT)
        super().close()


class _StandardError(logging.Handler):
    """Writes to descriptor 2, since a stuck write would hold the lock of ``sys.stderr``."""

    def emit(self, record: logging.LogRecord) -> None:
        rest = (self.format(record) + "\n").encode()
        while rest:
            rest = rest[os.write(2, rest) :]


def log_to_stderr(debug: bool) -> None:
    """Log to standard error, where the user sees it; directly until ``start`` is called."""
    logging.getLogger().setLevel(logging.DEBUG if debug else logging.INFO)
    _log_to(_StandardError(), LOG_FORMAT)


def log_to_syslog() -> None:
    """Log to syslog(3) from now on, by a thread; nowhere if there is no syslog."""
    if os.path.exists(SYSLOG):
        from logging.handlers import SysLogHandler

        target = SysLogHandler(SYSLOG, facility=SysLogHandler.LOG_DAEMON)
        _log_to(target, f"gitguardfs[%(process)d]: {LOG_FORMAT}")
    else:
        _log_to(logging.NullHandler(), LOG_FORMAT)
    start()


def start() -> None:
    """Let a thread write the log from now on, so that the mount does not wait for it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, SpooledHandler):
            handler.start()


class _Printable(logging.Formatter):
    """Writes one line for each message, except for tracebacks: users choose the names in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return shown(super().formatMessage(record))


def _log_to(target: logging.Handler, form: str) -> None:
    handler = SpooledHandler(target)
    handler.setFormatter(_Printable(form))
    root = logging.getLogger()
    former, root.handlers[:] = root.handlers[:], [handler]
    for each in former:
        each.close()
