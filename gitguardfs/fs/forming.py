"""Directories that git on the host may be turning into a repository at this moment.

``git init --bare`` adds hooks, info and config first, and HEAD, refs and objects last. Until then
the directory is no repository, and git keeps files that it finds there. A directory is *forming* if
git could have put every name into it and the host has just changed it. Requests that make or change
a name in it or below it wait until the host has not changed it for FORMING_FOR.

Changes by this mount do not count, so a guest that makes a directory never waits for it.
A change shows in the directory's ctime, or in a listing that differs from the last one.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from time import monotonic

from gitguardfs.fs.nodes import NEVER
from gitguardfs.fs.source import OtherEntry, Source
from gitguardfs.guard import dotgit, repository
from gitguardfs.protocol import Later

FORMING_FOR = 2.0
"""Seconds after the host's last change. git needs milliseconds from one step to the next."""

WAIT = 10.0
"""Seconds that requests wait at most, here and for one lock of git's (``host_git``). git takes
longer on a large tree, but the waiting process cannot be interrupted."""

REMEMBERED = 4096
"""Directories whose last seen state is kept; the limit bounds memory."""

MAX_NAMES = 64
"""Names in a forming directory at most. git puts a dozen there; a directory with more names is not
forming, and its names are not kept."""

LATE = 0.25
"""Seconds after this mount changed a directory in which a new ctime of it is taken for its own: a
share may report a change late. rmdir(2) follows the removal of the last name within milliseconds.
"""

SHARE_REMEMBERS = 1.0
"""Seconds for which the kernel may remember an older ctime of a directory over virtiofs (virtiofsd
with --cache=auto)."""

WHY = "git on the host may be making a repository"


class _Seen:
    """The state of a directory when it was last checked."""

    __slots__ = ("changed_at", "ctime", "names", "old_at", "other", "ours_at")

    def __init__(
        self,
        ctime: int,
        names: frozenset[bytes] | None,
        other: OtherEntry | None,
        changed_at: float,
        old_at: float | None,
        ours_at: float,
    ) -> None:
        self.ctime = ctime
        self.names = names
        """None if the directory held a name that git does not put into a repository."""
        self.other = other
        """An entry that git does not put into a repository; None if the directory held none."""
        self.changed_at = changed_at
        """When the host last changed the directory, in seconds (time.monotonic); NEVER if
        this mount made all its changes."""
        self.old_at = old_at
        """When the directory was first known not to be newly made by git, in seconds (time.time);
        None if that is not known."""
        self.ours_at = ours_at
        """When this mount last made the directory or a change of names in it (time.monotonic)."""


class Forming:
    """Tracks changes in directories, and whether this mount made them."""

    def __init__(
        self,
        source: Source,
        is_local: Callable[[int], bool],
        asks_server: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Keep what is needed.

        ``is_local`` returns whether this machine's clock stamps the files of a st_dev.
        ``asks_server`` returns whether each stat(2) of a name on a st_dev asks a server that looks
        for the name.
        """
        self._source = source
        self._is_local = is_local
        self._asks_server = asks_server
        self._seen: OrderedDict[tuple[int, int], _Seen] = OrderedDict()
        self._clock_offsets: dict[int, float] = {}
        """By st_dev: how many seconds its server's clock is ahead of time.monotonic. This machine's
        clock is not compared: setting it would make what the host changes look old."""

    def note_clock(self, made: os.stat_result) -> None:
        """Measure how far the source's clock is ahead, from an object that was just made."""
        if not self._is_local(made.st_dev):
            self._clock_offsets[made.st_dev] = made.st_ctime - monotonic()

    def note_made(self, st: os.stat_result) -> None:
        """Note an empty directory that this mount has just made."""
        self._seen.pop((st.st_dev, st.st_ino), None)
        self._note(st, frozenset(), NEVER, is_ours=True)

    def accept(self, fd: int) -> None:
        """Note that the names in a directory are older than this mount.

        Raises OSError if the source fails.
        """
        names, other = self._git_names(fd, None)
        self._note(self._source.stat(fd), names, NEVER, other)

    def wait_for(self, fd: int) -> None:
        """Raise Later if the directory behind ``fd`` is forming; OSError if the source fails."""
        st = self._source.stat(fd)
        if st.st_nlink == 0:
            return  # removed: no name can be added to it
        seen = self._seen.get((st.st_dev, st.st_ino))
        if seen is not None and seen.names is None and seen.ctime == st.st_ctime_ns:
            return
        names, other = self._git_names(fd, self._other(st))
        if names is None:
            self._note(st, None, NEVER, other)
        else:
            # A ctime from before the listing would date names that were made in between.
            self._wait(self._source.stat(fd), names)

    def wait_for_listed(self, fd: int, listed: Collection[bytes]) -> None:
        """Raise Later if the directory behind ``fd``, with the names ``listed``, is forming.

        Raises OSError if the source fails.
        """
        if len(listed) <= MAX_NAMES and all(map(repository.is_made_by_git, listed)):
            self._wait(self._source.stat(fd), frozenset(listed))

    def wait_for_removal(self, fd: int) -> None:
        """Raise Later if git may just have made the empty directory behind ``fd``.

        The birth time decides where it is known, not the last change: this mount may have emptied
        the directory. Raises OSError if the source fails.
        """
        st = self._source.stat(fd)
        seen = self._seen.get((st.st_dev, st.st_ino))
        old_at = None if seen is None else seen.old_at
        birth = self._source.btime_ns(fd) / 10**9 if self._is_local(st.st_dev) else 0.0
        age = time.time() - birth
        if birth and (age >= FORMING_FOR or (old_at is not None and birth <= old_at)):
            return  # if made after old_at, the inode number was reused
        if not birth and seen is not None and self._is_old(seen, st):
            return
        if self._git_names(fd, None)[0] != frozenset():
            return  # not empty: rmdir(2) will fail
        if birth and age >= 0:
            now = monotonic()
            raise Later(WHY, now + FORMING_FOR - age, now + WAIT)
        self._wait(self._source.stat(fd), frozenset())

    def _is_old(self, seen: _Seen, st: os.stat_result) -> bool:
        """Return whether a directory without a birth time is not newly made by git.

        The inode number may have been reused: then ctime has changed, and is new.
        """
        if seen.old_at is None:
            return False
        is_same = st.st_ctime_ns == seen.ctime or monotonic() < seen.ours_at + LATE
        return is_same or self._age(st) >= FORMING_FOR

    def note_removed(self, st: os.stat_result) -> None:
        """Note that a directory is gone: another one can get its inode number."""
        self._seen.pop((st.st_dev, st.st_ino), None)

    def _wait(self, st: os.stat_result, names: frozenset[bytes]) -> None:
        seen = self._seen.get((st.st_dev, st.st_ino))
        now = monotonic()
        if seen is None:
            changed_at = now - self._age(st)
        elif (seen.ctime, seen.names) == (st.st_ctime_ns, names):
            changed_at = seen.changed_at
        else:
            # Not since its ctime, as for a directory never checked: the clocks of guest and share
            # may have been set after they were compared.
            changed_at = now
            seen.old_at = None  # it may be another directory with a reused inode number
        self._note(st, names, changed_at)
        if now < changed_at + FORMING_FOR:
            raise Later(WHY, changed_at + FORMING_FOR, now + WAIT)

    def note_change(self, fd: int, *names: bytes) -> None:
        """Note that this mount has just changed the directory behind ``fd``, or ``names`` in it.

        Raises OSError if the source fails.
        """
        st = self._source.stat(fd)
        seen = self._seen.get((st.st_dev, st.st_ino))
        if seen is None:
            return
        present, other = self._git_names(fd, self._other(st))
        if seen.names is None:
            # Without ``names`` this mount did not remove the name that git would not put there.
            if names or present is None:
                self._note(st, present, seen.changed_at, other, is_ours=True)
            return
        if present is None:
            self._note(st, None, NEVER, other, is_ours=True)
        elif present ^ seen.names <= {*names}:
            self._note(st, present, seen.changed_at, is_ours=True)

    def is_as_seen(self, fd: int) -> bool:
        """Return whether the directory behind ``fd`` has not changed since it was last checked.

        Another directory, with the reused inode number of one that was checked, has changed.
        Raises OSError if the source fails.
        """
        st = self._source.stat(fd)
        seen = self._seen.get((st.st_dev, st.st_ino))
        return seen is not None and seen.ctime == st.st_ctime_ns

    def note_attributes(self, fd: int) -> None:
        """Note that this mount has just changed attributes of the directory behind ``fd``.

        Call this only if ``is_as_seen`` was true right before: a change by the host must not count
        as this mount's.

        The directory is not listed: servers without O_NOATIME would then change its access time,
        which may just have been set. The next listing shows what the host did meanwhile. A
        directory with a name that git would not put there is not noted, so it is listed again.
        Raises OSError if the source fails.
        """
        st = self._source.stat(fd)
        seen = self._seen.get((st.st_dev, st.st_ino))
        if seen is not None and seen.names is not None:
            self._note(st, seen.names, seen.changed_at)

    def _git_names(
        self, fd: int, other: OtherEntry | None
    ) -> tuple[frozenset[bytes] | None, OtherEntry | None]:
        """Return a directory's names; None, and an entry, if git would not put that one there.

        The directory is not listed if ``other`` is such an entry and still there: listing a large
        directory after each change of this mount would make each change slow.
        """
        if other is not None:
            found = self._source.find_at(fd, other.name)
            if found is not None and found.st_ino == other.ino:
                return None, other
        return self._source.names_if(fd, repository.is_made_by_git, MAX_NAMES)

    def _other(self, st: os.stat_result) -> OtherEntry | None:
        """Return the entry, not of git's making, that was last found in a directory.

        None over shares where the kernel may remember a name that the server has removed. None
        for a name that a file system could also resolve to one of git's, such as DESCRI~1 on FAT
        or full-width letters on ZFS: git may have made that entry. A listing shows its own name.
        """
        seen = self._seen.get((st.st_dev, st.st_ino))
        if seen is None or seen.other is None or not dotgit.is_portable(seen.other.name):
            return None
        is_asked = self._is_local(st.st_dev) or self._asks_server(st.st_dev)
        return seen.other if is_asked else None

    def _age(self, st: os.stat_result) -> float:
        """Return how many seconds ago a directory, not checked before, was changed."""
        if self._is_local(st.st_dev):
            now = time.time()
        elif (offset := self._clock_offsets.get(st.st_dev)) is not None:
            now = monotonic() + offset
            if not self._asks_server(st.st_dev):
                now -= SHARE_REMEMBERS
        else:
            return 0.0  # the clock is not known yet: nothing was made there
        return max(now - st.st_ctime, 0.0)

    def _note(
        self,
        st: os.stat_result,
        names: frozenset[bytes] | None,
        changed_at: float,
        other: OtherEntry | None = None,
        is_ours: bool = False,
    ) -> None:
        key = st.st_dev, st.st_ino
        seen = self._seen.get(key)
        old_at = None if seen is None else seen.old_at
        ours_at = NEVER if seen is None else seen.ours_at
        if is_ours:
            ours_at = monotonic()
        if old_at is None and monotonic() >= changed_at + FORMING_FOR:
            old_at = time.time()
        self._seen[key] = _Seen(st.st_ctime_ns, names, other, changed_at, old_at, ours_at)
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
