"""The processors that the processes of the tests may use.

While virtual machines run beside them, tests/tiers.py binds a tier to one processor. Processes that
compete there take turns, and overlap only where the scheduler interrupts one; tests of races need
them to run at the same time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

OF_THE_RUN = "GGFS_TEST_PROCESSORS"
"""The environment variable in which tests/tiers.py names the processors of the whole run: "0,1"."""


def name_those_of_the_run() -> None:
    """Note this process's processors for the processes that it starts."""
    os.environ[OF_THE_RUN] = ",".join(map(str, sorted(os.sched_getaffinity(0))))


def of_the_run() -> set[int]:
    """Return the processors of the whole run; alone, those of this process."""
    named = os.environ.get(OF_THE_RUN)
    return set(map(int, named.split(","))) if named else os.sched_getaffinity(0)


@contextmanager
def all_in_use() -> Iterator[None]:
    """Let all processes of this process namespace use the processors of the run, for a time.

    All: daemons that an earlier test has started take part in a race as well. tests/tiers.py gives
    each worker a process namespace; alone, nothing is bound and nothing is changed.
    """
    before = os.sched_getaffinity(0)
    if before == of_the_run():
        yield
        return
    _bind_all(of_the_run())
    try:
        yield
    finally:
        _bind_all(before)


def _bind_all(processors: set[int]) -> None:
    """Bind every thread of the namespace; those that start meanwhile are found by the next look."""
    while others := [thread for thread in _threads() if _lacks(thread, processors)]:
        for thread in others:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processors)


def _threads() -> list[int]:
    found: list[int] = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found += map(int, os.listdir(f"/proc/{process}/task"))
    return found


def _lacks(thread: int, processors: set[int]) -> bool:
    with suppress(ProcessLookupError):
        return os.sched_getaffinity(thread) != processors
    return False
