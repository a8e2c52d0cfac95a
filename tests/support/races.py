"""Two processes that assemble a repository from its two ends at the same time.

Standard library only: they run in a guest too.
"""

import errno
import os
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.exploits import HEAD_TEXT
from tests.support.raw_calls import RENAME_EXCHANGE, renameat2

# Ways to add a name to a directory; the third argument is a directory for preparations.


def by_create(directory: Path, name: str, spare: Path) -> None:
    (directory / name).write_text("../common\n" if name == "commondir" else HEAD_TEXT)


def by_mknod(directory: Path, name: str, spare: Path) -> None:
    os.mknod(directory / name, stat.S_IFREG | 0o755)


def by_mkdir(directory: Path, name: str, spare: Path) -> None:
    (directory / name).mkdir()


def by_symlink(directory: Path, name: str, spare: Path) -> None:
    (directory / name).symlink_to("refs/heads/main")


def by_link(directory: Path, name: str, spare: Path) -> None:
    by_create(spare, "file", spare)
    (directory / name).hardlink_to(spare / "file")


def by_rename(directory: Path, name: str, spare: Path) -> None:
    by_create(spare, "file", spare)
    (spare / "file").rename(directory / name)


def by_rename_of_directory(directory: Path, name: str, spare: Path) -> None:
    (spare / "directory").mkdir()
    (spare / "directory").rename(directory / name)


def exchange(directory: Path, name: str, spare: Path) -> None:
    """Exchange a directory of that name for a prepared file."""
    renameat2(spare / "file", directory / name, RENAME_EXCHANGE)


def race(view: Path, second: Path, rounds: int) -> tuple[int, int, list[str]]:
    """Let two processes add HEAD and its counterpart to the same directory at the same time.

    The second process goes through ``second``, which may be another view of the same project.
    Returns how often each of the two was the first, and the directories that hold both.
    """
    heads = (by_create, by_link, by_rename, exchange, by_symlink, by_mknod)
    others = (by_mkdir, by_rename, by_link, by_rename_of_directory, by_create)
    names = ("refs", "commondir")
    for number in range(rounds):
        for part in ("trap", "a", "b"):
            (view / f"race/{number}/{part}").mkdir(parents=True)
        if heads[number % len(heads)] is exchange:
            (view / f"race/{number}/trap/HEAD").mkdir()
            (view / f"race/{number}/a/file").write_text(HEAD_TEXT)
    mine, theirs = socket.socketpair()

    def run(meeting: socket.socket, add: Callable[[int], None]) -> None:
        was_added, took, wait = False, 0.0, 0.0
        for number in range(rounds):
            meeting.send(b"1" if was_added else b"0")
            answer = meeting.recv(1)
            if not answer:
                return  # the other one has failed
            # Whoever was the first waits longer the next time, so that each of them is, sometimes.
            if was_added and answer == b"0":
                wait += took / 2
            elif answer == b"1" and not was_added:
                wait = max(0.0, wait - took / 2)
            time.sleep(wait)
            begin = time.monotonic()
            try:
                add(number)
                was_added = True
            except OSError as error:
                was_added = False
                if error.errno != errno.EACCES:
                    raise
            took = time.monotonic() - begin

    def add_head(number: int) -> None:
        spot = view / f"race/{number}"
        heads[number % len(heads)](spot / "trap", "HEAD", spot / "a")

    def add_other(number: int) -> None:
        spot = second / f"race/{number}"
        others[number % len(others)](spot / "trap", names[number % len(names)], spot / "b")

    child = os.fork()
    if child == 0:
        mine.close()
        failed = 1
        try:
            run(theirs, add_other)
            failed = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(failed)
    theirs.close()
    try:
        run(mine, add_head)
    finally:
        mine.close()
        _, status = os.waitpid(child, 0)
    assert status == 0, "the second process met something else than a refusal"
    only_head = only_other = 0
    both = []
    for number in range(rounds):
        trap = view / f"race/{number}/trap"
        present = set(os.listdir(trap))
        head = "HEAD" in present and not (trap / "HEAD").is_dir()
        other = bool(present & set(names))
        if head and other:
            both.append(f"{number}: {sorted(present)}")
        only_head += head and not other
        only_other += other and not head
    return only_head, only_other, both


def exchange_race(view: Path, second: Path, rounds: int) -> bool:
    """Move a directory to HEAD beside refs while another process exchanges it for a file.

    The other process uses ``second``, which may be another view of the same project, without a
    cache. Returns whether HEAD was a file after a round, which is then the last one.
    """
    spot = view / "race"
    (spot / "refs").mkdir(parents=True)
    (spot / "directory").mkdir()
    (spot / "file").write_text(HEAD_TEXT)
    child = os.fork()
    if child == 0:
        while True:
            with suppress(OSError):
                renameat2(second / "race/directory", second / "race/file", RENAME_EXCHANGE)
    try:
        for _ in range(rounds):
            with suppress(OSError):
                (spot / "directory").rename(spot / "HEAD")
            if (second / "race/HEAD").is_file():
                return True
            with suppress(OSError):
                (spot / "HEAD").rename(spot / "directory")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return False
