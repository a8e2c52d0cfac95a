"""Where the daemon's log goes: standard error, then syslog. Whoever logs never waits, nor fails.

A thread writes the lines. A terminal that was stopped, or a journal that is stuck, must not stop
a mount, and an error in writing a line must not fail the request that it is about.
"""

from __future__ import annotations

import copy
import logging
import os
from contextlib import suppress
from logging.handlers import SysLogHandler

from gitguardfs.errors import shown
from gitguardfs.spool import Spool

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
SYSLOG = "/dev/log"
RECORDS = 1000
"""Records that may wait to be written; further ones are lost."""
PATIENCE = 1.0
"""Seconds to wait at the end for what is not written yet."""


class SpooledHandler(logging.Handler):
    """Formats records at once, and has a thread give them to another handler."""

    def __init__(self, target: logging.Handler) -> None:
        """Give records to ``target``: at once, until ``start`` is called."""
        super().__init__()
        # Not ``handle``: its lock would stop logging.shutdown while a record is being written.
        self._write = target.emit
        self._spool: Spool[logging.LogRecord] | None = None

    def start(self) -> None:
        """Have a thread write from now on."""
        if self._spool is None:
            self._spool = Spool("log", self._write, RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record to the thread; raises nothing, and one that cannot be told is lost."""
        with suppress(Exception):
            text = self.format(record).encode(errors="backslashreplace").decode()
            told = copy.copy(record)
            told.msg, told.args = text, None
            told.exc_info = told.exc_text = told.stack_info = None
            if self._spool is None:
                self._write(told)
            else:
                self._spool.put(told)

    def close(self) -> None:
        """Write what waits, as far as that does not take for ever."""
        if self._spool is not None:
            self._spool.close(room=PATIENCE, patience=PATIENCE)
        super().close()


class _StandardError(logging.Handler):
    """Writes to the descriptor: a stuck write would hold the lock of ``sys.stderr``."""

    def emit(self, record: logging.LogRecord) -> None:
        rest = (self.format(record) + "\n").encode()
        while rest:
            rest = rest[os.write(2, rest) :]


def log_to_stderr(debug: bool) -> None:
    """Log where the user sees it; without a thread until ``start`` is called."""
    logging.getLogger().setLevel(logging.DEBUG if debug else logging.INFO)
    _log_to(_StandardError(), LOG_FORMAT)


def log_to_syslog() -> None:
    """Log to syslog(3) from now on; nowhere if there is none."""
    if os.path.exists(SYSLOG):
        target = SysLogHandler(SYSLOG, facility=SysLogHandler.LOG_DAEMON)
        _log_to(target, f"gitguardfs[%(process)d]: {LOG_FORMAT}")
    else:
        _log_to(logging.NullHandler(), LOG_FORMAT)
    start()


def start() -> None:
    """Have a thread write the log from now on: the mount is there, and must not wait for it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, SpooledHandler):
            handler.start()


class _Printable(logging.Formatter):
    """One line for each message, but for tracebacks: names in it are chosen by others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return shown(super().formatMessage(record))


def _log_to(target: logging.Handler, form: str) -> None:
    handler = SpooledHandler(target)
    handler.setFormatter(_Printable(form))
    root = logging.getLogger()
    former, root.handlers[:] = root.handlers[:], [handler]
    for each in former:
        each.close()
