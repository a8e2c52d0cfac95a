"""The agent's repositories of one mount, as the daemon asks for them."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from errno import EACCES, EAGAIN
from threading import Event, Lock, Thread
from typing import NamedTuple, Protocol

from gitguardfs.base.errors import os_error, shown
from gitguardfs.names.local_names import LocalNames
from gitguardfs.private import restart, seeding, sparse
from gitguardfs.private.git import SECONDS, GitFailed
from gitguardfs.private.host_repository import HostRepository, opened
from gitguardfs.private.partial import COMMAND
from gitguardfs.private.reader import Source, source_of
from gitguardfs.private.share import Unusable
from gitguardfs.private.store import (
    AGENT,
    HOST,
    Store,
    description,
    has_agent,
    let_in,
    locked,
    note_reason,
    of_agent,
    read,
    set_aside,
)

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The shortest time between two looks at the host's repository."""
WAIT_SECONDS = 10.0
"""The longest time that an open waits for a fetch."""
_TRIES = 3
"""How often a repository is copied anew that the host changes meanwhile."""
RETRY_SECONDS = 60.0
"""The pause after an error, unless the host was changing the repository."""


class WorkTree(Protocol):
    """A work tree of the share, and its owner."""

    @property
    def path(self) -> bytes:
        """Its path, relative to the mount's root; ``.`` is the root itself."""

    @property
    def uid(self) -> int:
        """The agent."""

    @property
    def gid(self) -> int:
        """The group of the work tree's directory."""


class _Task(NamedTuple):
    """One work tree to seed or refresh."""

    directory: str
    """Its directory in the store."""
    tree: WorkTree
    fd: int
    """An O_PATH descriptor of its directory in the source."""


class _Refresh:
    """A look at the host, and the fetch that it may need, on a thread of its own."""

    def __init__(self) -> None:
        self.ended = Event()
        self.until = time.monotonic() + WAIT_SECONDS
        self.begins_anew = False


class PrivateRepositories:
    """The repositories of one share's work trees. May be used on any thread."""

    def __init__(
        self, store: str, share: str, root: int, local: LocalNames | None = None,
        repository: str | None = None,
    ) -> None:  # fmt: skip
        """Use the store at this path; ``share`` names the share. Raises UserError, OSError.

        ``root`` is an O_PATH descriptor of the share's root, which stays open: a fetch may outlive
        the session. ``local`` names the directories that the view does not show, since the guest
        has its own. ``repository`` is the git directory of the root, if that lies outside.
        """
        self._local = local
        self._store = Store(store)
        self._share = share
        self._root = root
        self._outside = repository
        self._next_look: dict[str, float] = {}
        self._reasons: dict[str, str] = {}
        """The last logged reason, by directory."""
        self._refreshes: dict[str, _Refresh] = {}
        """The running ones, by directory; changed with ``_starting`` held."""
        self._starting = Lock()

    def text(self, place: WorkTree) -> bytes:
        """Return the content of the virtual file of a work tree. It costs a stat of the store."""
        return os.fsencode(f"gitdir: {self._directories(place)[-1]}/{AGENT}\n")

    def _directories(self, tree: WorkTree) -> list[str]:
        return self._store.directories(self._share, tree.path, tree.uid)

    def prepare(self, place: WorkTree, work_tree: int) -> None:
        """Make a work tree's repository if it is not there; else fetch what is new on the host.

        ``work_tree`` is an O_PATH descriptor of its directory in the source. Raises OSError. Once a
        repository is there, an error in fetching is only logged. A fetch that takes longer than
        ``WAIT_SECONDS`` goes on after the return.
        """
        if os.geteuid() not in (0, place.uid):
            raise os_error(EACCES)  # its owner could not use what this user makes
        *former, directory = self._directories(place)
        begins_anew = False
        if has_agent(directory):
            begins_anew = self._refresh(_Task(directory, place, work_tree))
            *former, directory = self._directories(place)  # there may be another project now
        if begins_anew or not has_agent(directory):
            self._make(_Task(directory, place, work_tree), former)

    def _make(self, task: _Task, former: list[str]) -> None:
        try:
            with locked(task.directory, SECONDS):
                if not has_agent(task.directory) or restart.is_unused(task.directory):
                    self._seed(task, former)
        except OSError as error:
            self._say(task, f"the system says: {error.strerror or error}")
            if not has_agent(task.directory):
                raise
            self._pause(task, LOOK_SECONDS if error.errno == EAGAIN else RETRY_SECONDS)

    def _seed(self, task: _Task, former: list[str]) -> None:
        directory, tree, fd = task
        is_replaced = has_agent(directory)
        seen: set[_Snapshot | None] = set()
        for left in reversed(range(_TRIES)):
            with opened(self._root, fd, tree.path, self._outside) as (host, problem):
                source, snapshot, why = seeding.NOTHING, _snapshot(host), problem
                try:
                    if host is not None:
                        source = source_of(host, f"{directory}.refs")
                        self._seed_host(task, host, source, snapshot)
                except (Unusable, GitFailed) as error:
                    why = str(error)
                if why:
                    seen |= {snapshot, _snapshot(host)}
                    if left:
                        continue
                    self._say(task, f"it {why}")
                    if is_replaced:
                        self._pause(task, LOOK_SECONDS if len(seen) > 1 else RETRY_SECONDS)
                        return
                    source, why = _former_copy(directory, why)
                    if why:
                        if len(seen) > 1:  # the host was changing it: this says nothing
                            raise os_error(EAGAIN)
                        self._make_host(task, source, b"")
                        self._say(task, f"it {why}")  # in the copy that is new
                owner = (tree.uid, tree.gid)
                let_in(directory, *owner)
                seeding.seed_agent(directory, owner, host, source, why, former, self._local)
                if seeding.lacks_files(directory):
                    log.warning(
                        "%s: the human's clone is partial: the agent's git refuses to switch to a"
                        " commit that lacks files (on the host: %s)", shown(tree.path), COMMAND,
                    )  # fmt: skip
            self._pause(task, LOOK_SECONDS)
            return

    def _seed_host(
        self, task: _Task, host: HostRepository, source: Source, snapshot: _Snapshot | None
    ) -> None:
        directory = task.directory
        state = snapshot.state if snapshot is not None else b""
        is_reset = os.path.lexists(directory) and not has_agent(directory)
        # What was empty for a reason may have become something else.
        is_reset = is_reset and seeding.is_same_kind(seeding.copied(directory), source)
        if is_reset and not _is_another_project(directory, host, source, snapshot):
            seeding.refresh_host(directory, source, state)
            note_reason(directory, "")
        else:
            self._make_host(task, source, state)

    def _make_host(self, task: _Task, source: Source, state: bytes) -> None:
        directory, tree, _ = task
        name = description(self._share, tree.uid, tree.path)
        others = of_agent(self._store.path, self._share, tree.uid)
        seeding.seed_host(
            directory, source, name, state, (one for one in others if one != directory)
        )

    # Later looks at the host

    def _refresh(self, task: _Task) -> bool:
        """Look at the host, if that is due; return whether the agent's repository begins anew.

        Waits for ``WAIT_SECONDS`` after the look began, at most. Raises OSError.
        """
        with self._starting:
            refresh = self._refreshes.get(task.directory)
            if refresh is None:
                if time.monotonic() < self._next_look.get(task.directory, 0.0):
                    return False
                refresh = _Refresh()
                arguments = (refresh, task._replace(fd=os.dup(task.fd)))
                Thread(target=self._run, args=arguments, daemon=True).start()
                self._refreshes[task.directory] = refresh
        refresh.ended.wait(max(0.0, refresh.until - time.monotonic()))
        return refresh.begins_anew

    def _run(self, refresh: _Refresh, task: _Task) -> None:
        try:
            with locked(task.directory, WAIT_SECONDS):
                refresh.begins_anew = self._fetch(task)
        except OSError as error:
            self._pause(task, RETRY_SECONDS)
            self._say(task, f"the system says: {error.strerror or error}")
        finally:
            os.close(task.fd)
            with self._starting:
                del self._refreshes[task.directory]
            refresh.ended.set()

    def _pause(self, task: _Task, seconds: float) -> None:
        self._next_look[task.directory] = time.monotonic() + seconds

    def _fetch(self, task: _Task) -> bool:
        """Fetch what is new; return whether the agent's repository begins anew. Raises OSError."""
        directory, pause = task.directory, LOOK_SECONDS
        with opened(self._root, task.fd, task.tree.path, self._outside) as (host, problem):
            snapshot = None
            try:
                if host is None:
                    raise Unusable(problem)
                state = host.state()
                if state != read(os.path.join(directory, "host.state")):
                    snapshot = _snapshot(host)
                    source = source_of(host, f"{directory}.refs")
                    if self._begins_anew(task, host, source, snapshot):
                        return True
                    seeding.refresh_host(directory, source, state)
                    sparse.note(os.path.join(directory, HOST), self._local)
                self._reasons.pop(directory, None)
                note_reason(directory, "")
            except (GitFailed, Unusable) as error:
                self._say(task, f"it {error}")
                if isinstance(error, GitFailed) and snapshot == _snapshot(host):
                    pause = RETRY_SECONDS
        self._pause(task, pause)
        return False

    def _begins_anew(
        self, task: _Task, host: HostRepository, source: Source, snapshot: _Snapshot | None
    ) -> bool:
        directory, path = task.directory, shown(task.tree.path)
        if source.commit and restart.is_unborn(directory):
            if restart.is_unused(directory):
                return True
            restart.forget_unborn(directory)
            log.warning(
                "%s: the agent worked here when the human's repository had no commit that could be"
                " read, so its repository stays as it was begun (gitguard private reset %s makes it"
                " anew)", path, directory,
            )  # fmt: skip
        if not _is_another_project(directory, host, source, snapshot):
            return False
        set_aside(directory)
        log.warning(
            "%s: another project, or another history, is here now; the agent's repository of the"
            " former one stays in %s", path, directory,
        )  # fmt: skip
        return True

    def _say(self, task: _Task, reason: str) -> None:
        """Log why a repository was not fetched, once for each reason, and let git sync say it."""
        text = f"the human's repository was not fetched: {shown(reason)}"
        if self._reasons.get(task.directory) != reason:
            self._reasons[task.directory] = reason
            log.warning("%s: %s", shown(task.tree.path), text)
        with suppress(OSError):  # there is no copy yet, or no room: the log has it
            note_reason(task.directory, text)


class _Snapshot(NamedTuple):
    """The parts of the host's repository on which a fetch depends.

    If two snapshots are equal, the host has changed nothing in between.
    """

    state: bytes
    objects: tuple[tuple[tuple[bytes, ...], tuple[bytes, ...]], ...]
    """The names of the loose objects' directories and of the packs, by object directory."""


def _snapshot(host: HostRepository | None) -> _Snapshot | None:
    with suppress(Unusable):
        if host is not None:
            return _Snapshot(host.state(), tuple((one.loose, one.packs) for one in host.objects()))
    return None


def _is_another_project(
    directory: str, host: HostRepository, source: Source, snapshot: _Snapshot | None
) -> bool:
    """Return whether the human has put another project there. Raises Unusable, GitFailed, OSError.

    While the human's git packs the objects anew, all copied objects seem to be missing.
    """
    if not restart.is_another_project(directory, source):
        return False
    if snapshot is None or _snapshot(host) != snapshot:
        raise GitFailed("was changed meanwhile")
    return True


def _former_copy(directory: str, why: str) -> tuple[Source, str]:
    """Return the branches of a copy that is still there and ""; else NOTHING and ``why``."""
    with suppress(GitFailed, Unusable, FileNotFoundError):
        source = seeding.copied(directory)
        if source is not seeding.NOTHING:
            return source, ""
    return seeding.NOTHING, why
