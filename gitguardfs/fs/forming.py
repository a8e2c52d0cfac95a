"""Directories that git on the host may be making into a repository at this moment.

``git init --bare`` puts hooks, info and config in first, and HEAD, refs and objects last: until
then nothing there is a repository, and git keeps what it finds. So a directory in which every name
is one that git puts there, and which the host has changed a moment ago, is *forming*: requests that
make or change a name in it or below it wait until it has been left alone for FORMING_FOR.

What this mount itself changes does not count, so who makes a directory here never waits for it.
A change is found out by the directory's ctime, and by a listing that differs from the last one.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from time import monotonic

from gitguardfs.fs.source import Source
from gitguardfs.guard import repository
from gitguardfs.protocol import Later

FORMING_FOR = 2.0
"""Seconds after the host's last change. git needs milliseconds from one step to the next."""

WAIT = 10.0
"""Seconds that a request waits at most, for whoever waits cannot be interrupted."""

REMEMBERED = 4096
"""Directories of which it is remembered what they were when they were last changed."""

MAX_NAMES = 64
"""Names in a directory that git is just making, in whatever spelling; it puts a dozen there. With
more of them it is none, and they are not remembered."""

NEVER = float("-inf")
"""When a directory was changed by the host of which we know all changes to be our own."""

WHY = "git on the host may be making a repository"


class _Seen:
    """A directory as it was when it was last looked at."""

    __slots__ = ("changed_at", "ctime", "names", "old_at")

    def __init__(
        self, ctime: int, names: frozenset[bytes] | None, changed_at: float, old_at: float | None
    ) -> None:
        self.ctime = ctime
        self.names = names
        """None if there was a name in it that git does not put into a repository."""
        self.changed_at = changed_at
        """When the host changed it, in seconds (time.monotonic)."""
        self.old_at = old_at
        """When it was first known not to be one that git has just made (time.time); None if that
        is not known."""


class Forming:
    """Knows what changed in directories, and whether that was us."""

    def __init__(self, source: Source, is_local: Callable[[int], bool]) -> None:
        """``is_local`` says of a st_dev that its files are stamped by this machine's clock."""
        self._source = source
        self._is_local = is_local
        self._seen: OrderedDict[tuple[int, int], _Seen] = OrderedDict()
        self._clock_offsets: dict[int, float] = {}
        """By st_dev, how far its server's clock is ahead of ours, in seconds."""

    def note_clock(self, made: os.stat_result) -> None:
        """Learn how far the source's clock is ahead, from an object made this very moment."""
        if not self._is_local(made.st_dev):
            self._clock_offsets[made.st_dev] = made.st_ctime - time.time()

    def note_made(self, st: os.stat_result) -> None:
        """Note a directory that was made here and is empty."""
        self._seen.pop((st.st_dev, st.st_ino), None)
        self._note(st, frozenset(), NEVER)

    def accept(self, fd: int) -> None:
        """Take a directory as it is; whoever made it did so before this mount."""
        self._note(self._source.stat(fd), self._git_names(fd), NEVER)

    def wait_for(self, fd: int) -> None:
        """Raise Later if the directory behind ``fd`` is forming; OSError if that cannot be told."""
        st = self._source.stat(fd)
        if st.st_nlink == 0:
            return  # removed, and nothing can be made in it
        seen = self._seen.get((st.st_dev, st.st_ino))
        if seen is not None and seen.names is None and seen.ctime == st.st_ctime_ns:
            return
        names = self._git_names(fd)
        if names is None:
            self._note(st, None, NEVER)
        else:
            self._wait(st, names)

    def wait_for_listed(self, fd: int, listed: Collection[bytes]) -> None:
        """The same, of a directory in which there are the names ``listed``."""
        if len(listed) <= MAX_NAMES and all(map(repository.is_made_by_git, listed)):
            self._wait(self._source.stat(fd), frozenset(listed))

    def wait_for_removal(self, fd: int) -> None:
        """Raise Later if git may just have made the directory behind ``fd``, which is empty.

        Not by its last change: that is ours where it was emptied here, and over a share nobody
        can tell the one from the other at once.
        """
        st = self._source.stat(fd)
        seen = self._seen.get((st.st_dev, st.st_ino))
        old_at = None if seen is None else seen.old_at
        birth = self._source.btime_ns(fd) / 10**9 if self._is_local(st.st_dev) else 0.0
        if old_at is not None and birth <= old_at:  # if not, its number is used again
            return
        age = time.time() - birth
        if age >= FORMING_FOR and birth:
            return
        if self._git_names(fd) != frozenset():
            return  # then it is not removed
        if birth and age >= 0:
            now = monotonic()
            raise Later(WHY, now + FORMING_FOR - age, now + WAIT)
        self._wait(st, frozenset())

    def note_removed(self, st: os.stat_result) -> None:
        """Note that a directory is gone: its number can be another one's."""
        self._seen.pop((st.st_dev, st.st_ino), None)

    def _wait(self, st: os.stat_result, names: frozenset[bytes]) -> None:
        seen = self._seen.get((st.st_dev, st.st_ino))
        now = monotonic()
        if seen is None:
            changed_at = now - self._age(st)
        elif (seen.ctime, seen.names) == (st.st_ctime_ns, names):
            changed_at = seen.changed_at
        else:
            changed_at = now
        self._note(st, names, changed_at)
        if now < changed_at + FORMING_FOR:
            raise Later(WHY, changed_at + FORMING_FOR, now + WAIT)

    def note_change(self, fd: int, *names: bytes) -> None:
        """Note that this mount has just changed the directory behind ``fd``, or names in it."""
        st = self._source.stat(fd)
        seen = self._seen.get((st.st_dev, st.st_ino))
        if seen is None:
            return
        present = self._git_names(fd)
        if seen.names is None:
            # Without names of ours it was not us who took away the name of another kind.
            if names or present is None:
                self._note(st, present, seen.changed_at)
            return
        if present is None:
            self._note(st, None, NEVER)
        elif present ^ seen.names <= {*names}:
            self._note(st, present, seen.changed_at)

    def note_attributes(self, fd: int) -> None:
        """Note that this mount has just changed attributes of the directory behind ``fd``.

        It is not listed: servers that know no O_NOATIME would then change the time of its last
        access, which may just have been set. What the host did meanwhile shows in the names, at
        the next listing; where another kind of name was in it, that listing is not spared.
        """
        st = self._source.stat(fd)
        seen = self._seen.get((st.st_dev, st.st_ino))
        if seen is not None and seen.names is not None:
            self._note(st, seen.names, seen.changed_at)

    def _git_names(self, fd: int) -> frozenset[bytes] | None:
        """Return the names in a directory; None if git does not put all of them there."""
        return self._source.names_if(fd, repository.is_made_by_git, MAX_NAMES)

    def _age(self, st: os.stat_result) -> float:
        """Seconds since a directory that was never looked at was changed."""
        offset = 0.0 if self._is_local(st.st_dev) else self._clock_offsets.get(st.st_dev)
        if offset is None:
            return 0.0  # nothing was made there yet that would tell
        return max(time.time() + offset - st.st_ctime, 0.0)

    def _note(self, st: os.stat_result, names: frozenset[bytes] | None, changed_at: float) -> None:
        key = st.st_dev, st.st_ino
        seen = self._seen.get(key)
        old_at = None if seen is None else seen.old_at
        if old_at is None and monotonic() >= changed_at + FORMING_FOR:
            old_at = time.time()
        self._seen[key] = _Seen(st.st_ctime_ns, names, changed_at, old_at)
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
