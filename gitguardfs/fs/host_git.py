"""Waits while git is at work on the host, that is, while its index.lock exists.

git checks a directory once and then writes below it. So while git works, no symlink is made, and
neither a symlink nor a directory is moved: such requests wait until the lock is gone. checkout,
restore, stash, reset and switch hold the lock all the time; status, add and commit hold it for
moments. Programs that write without taking the lock are not noticed.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from stat import S_ISDIR, S_ISLNK, S_ISREG
from time import monotonic

from gitguardfs.errors import os_error
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.forming import WAIT
from gitguardfs.fs.nodes import Node, ancestors
from gitguardfs.fs.source import DOTGIT, Source, read
from gitguardfs.fs.walk import PathTooLong, PathWalk
from gitguardfs.protocol import Later

log = logging.getLogger(__name__)

ASK_AGAIN = 0.002
"""Seconds between the first checks of a lock. If git runs again and again, the time between two
locks is that short."""
SLOWER = 1 / 16
"""The pause until the next check, as a part of the time waited so far."""
MAX_ASK_AGAIN = 0.25

MAX_LOGGED = 4096
"""``.git`` files that are logged at most; the limit bounds memory."""

LOCK_NAME = b"index.lock"
GITDIR = b"gitdir:"
MAX_GITDIR = 4200
"""Bytes of a ``.git`` file that are read: PATH_MAX (4096) and the rest of its line."""


Lock = tuple[int, int, int]
"""An index.lock: device, inode and ctime, since inode numbers are soon reused."""


class _Waited:
    """The lock of one repository, and how long requests have waited for it."""

    __slots__ = ("given_up", "lock", "since")

    def __init__(self, lock: Lock, since: float) -> None:
        self.lock = lock
        self.since = since
        """When a request first waited for the lock, in seconds (time.monotonic)."""
        self.given_up = False
        """Whether a request has waited for WAIT; that is logged once."""


class HostGit:
    """Finds out whether git is at work on the host in or above a directory."""

    def __init__(
        self,
        descriptors: DescriptorCache,
        source: Source,
        root: Node,
        path: Callable[[Node, bytes | None], bytes],
    ) -> None:
        """Take ``path``, which returns the path of a name in a directory, for messages."""
        self._descriptors = descriptors
        self._source = source
        self._root = root
        self._path = path
        self._waited: dict[tuple[int, int], _Waited] = {}
        """By the directory that holds the lock."""
        self._not_found: set[bytes] = set()
        """The ``.git`` files that lead out of the source; each is logged once."""

    def wait_for(self, *directories: Node) -> None:
        """Raise Later while git is at work in a repository at or above one of ``directories``.

        Raises OSError(EBUSY) once a request has waited for a lock for WAIT; OSError if the source
        fails.
        """
        # From the root down, so that each directory is opened by its parent's descriptor.
        above = chain.from_iterable([*ancestors(one)][::-1] for one in directories)
        for directory in dict.fromkeys(above):
            for below in directories:  # the caller uses these: the newest stay open
                self._descriptors.of(below)
            self._wait_for_repository(directory)

    def _wait_for_repository(self, directory: Node) -> None:
        # That there was no ``.git`` a moment ago says nothing: ``git clone`` and ``git worktree
        # add`` make one in an empty directory, and check files out milliseconds later.
        dotgit = self._source.find_at(self._descriptors.of(directory), DOTGIT)
        if dotgit is None:
            return
        path = self._path(directory, DOTGIT)
        for git_fd in self._git_directories(directory, dotgit, path):
            here = self._source.stat(git_fd)
            repository = here.st_dev, here.st_ino
            st = self._source.find_at(git_fd, LOCK_NAME)
            if st is None:
                self._waited.pop(repository, None)
            else:
                self._wait_for_lock(repository, st, path)

    def _wait_for_lock(self, repository: tuple[int, int], st: os.stat_result, path: bytes) -> None:
        now = monotonic()
        lock = st.st_dev, st.st_ino, st.st_ctime_ns
        waited = self._waited.get(repository)
        if waited is None or waited.lock != lock:
            waited = self._waited[repository] = _Waited(lock, now)
        passed = now - waited.since
        if passed < WAIT:
            pause = min(max(ASK_AGAIN, passed * SLOWER), MAX_ASK_AGAIN)
            raise Later("git on the host is at work", now + pause, waited.since + WAIT)
        if not waited.given_up:
            waited.given_up = True
            shown = (path + b"/" + LOCK_NAME).decode(errors="backslashreplace")
            log.warning(
                "git on the host is at work, or was killed: the lock of %s is %d seconds old. "
                "If no git is running there: rm %s",
                path.decode(errors="backslashreplace"),
                max(time.time() - st.st_ctime, passed),
                shown,
            )
        raise os_error(errno.EBUSY)

    def _git_directories(
        self, directory: Node, dotgit: os.stat_result, path: bytes
    ) -> Iterator[int]:
        """Yield descriptors of the directories that a directory's ``.git`` may lead to.

        ``dotgit`` has the attributes of that ``.git``, and ``path`` is its path for messages. Each
        descriptor is valid until the next one is yielded.
        """
        dir_fd = self._descriptors.of(directory)
        if S_ISDIR(dotgit.st_mode):
            text = DOTGIT
        elif S_ISLNK(dotgit.st_mode):
            text = self._source.readlink_at(dir_fd, DOTGIT)
        elif S_ISREG(dotgit.st_mode):
            text = self._read_gitdir(dir_fd)
        else:
            return
        walk = PathWalk(self._source, self._descriptors, self._root, lambda *_: False)
        found = False
        if not text:
            return  # no gitdir line that git would follow
        try:
            with closing(walk.ends(directory, text)) as ends:
                for fd, _ in ends:
                    if fd >= 0:
                        found = True
                        yield fd
        except PathTooLong:  # perhaps an attack by many symlinks: whether git is at work is unknown
            raise os_error(errno.EBUSY) from None
        if not found and path not in self._not_found and len(self._not_found) < MAX_LOGGED:
            self._not_found.add(path)
            log.info(
                "%s leads out of the source: gitguardfs cannot see whether git is at work there",
                path.decode(errors="backslashreplace"),
            )

    def _read_gitdir(self, dir_fd: int) -> bytes:
        """Return the path in a ``.git`` file; b"" if the file has no gitdir line."""
        fd = self._source.open_file_at(dir_fd, DOTGIT, os.O_RDONLY)
        try:
            text = read(fd, 0, MAX_GITDIR)
        finally:
            os.close(fd)
        if not text.startswith(GITDIR):
            return b""
        return text.removeprefix(GITDIR).strip()
