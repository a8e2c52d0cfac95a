"""The daemon's log: no request waits for it or fails by it."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gitguardfs.mounting import logs
from gitguardfs.mounting.logs import SpooledHandler


class Journal(logging.Handler):
    """A handler that takes records only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.lets = threading.Event()
        self.taken: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lets.wait()
        self.taken.append(self.format(record))
        if "breaks" in self.taken[-1]:
            raise RuntimeError


@pytest.fixture
def journal() -> Iterator[tuple[logging.Logger, SpooledHandler, Journal]]:
    target = Journal()
    handler = SpooledHandler(target)
    handler.setFormatter(logging.Formatter(logs.LOG_FORMAT))
    log = logging.Logger("of.its.own")  # which pytest does not listen to
    log.addHandler(handler)
    yield log, handler, target
    target.lets.set()
    handler.close()


def test_a_stuck_journal_holds_up_nobody(
    journal: tuple[logging.Logger, SpooledHandler, Journal],
) -> None:
    log, handler, target = journal
    handler.start()
    for number in range(2 * logs.RECORDS):  # would never end
        log.warning("line %d", number)
    target.lets.set()
    handler.close()
    assert target.taken[0] == "WARNING of.its.own: line 0"
    assert logs.RECORDS <= len(target.taken) <= logs.RECORDS + 1


def test_a_journal_that_stays_stuck_does_not_keep_the_process() -> None:
    code = (
        "import logging, threading\n"
        "from gitguardfs.mounting.logs import SpooledHandler\n"
        "target = logging.Handler()\n"
        "target.emit = lambda record: threading.Event().wait()\n"
        "handler = SpooledHandler(target)\n"
        "handler.start()\n"
        "logging.getLogger().addHandler(handler)\n"
        "logging.error('said to nobody')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_cannot_be_told_is_lost_and_harms_nobody(
    journal: tuple[logging.Logger, SpooledHandler, Journal],
) -> None:
    log, handler, target = journal
    target.lets.set()
    log.error("it breaks, at once")
    handler.start()
    log.error("%d", "no number")
    log.error("it breaks")
    log.error("next")
    handler.close()
    assert [line.rpartition(": ")[2] for line in target.taken] == [
        "it breaks, at once", "it breaks", "next",
    ]  # fmt: skip


def test_a_name_in_a_message_writes_nothing_to_a_terminal() -> None:
    code = (
        "import logging, os\n"
        "from gitguardfs.mounting import logs\n"
        "logs.log_to_stderr(False)\n"
        "logging.getLogger('gitguardfs').warning('%s', os.fsdecode(b'a\\x1b[2J\\nb\\xff'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "WARNING gitguardfs: a\\x1b[2J\\nb\\xff\n"
