"""The agent's repositories of one mount, as the daemon asks for them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES
from typing import Protocol

from gitguardfs.errors import os_error, shown
from gitguardfs.private import seeding
from gitguardfs.private.git import GitFailed
from gitguardfs.private.host_repository import HostRepository, Unusable, opened
from gitguardfs.private.reader import Source, source_of
from gitguardfs.private.store import AGENT, Store, description, has_agent, let_in, locked, read

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the host's repository is looked at, at most."""
RETRY_SECONDS = 60.0
"""How long after an error of the share, or one that took too long, it is not looked at again."""


class Place(Protocol):
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


class PrivateRepositories:
    """The repositories of one share's work trees. May be used on any thread."""

    def __init__(self, store: str, share: str) -> None:
        """Use the store at this path; ``share`` names the share. Raises UserError, OSError."""
        self._store = Store(store)
        self._share = share
        self._next_look: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def text(self, place: Place) -> bytes:
        """Return the content of the virtual file of a work tree. No I/O."""
        return os.fsencode(f"gitdir: {self._directory(place)}/{AGENT}\n")

    def _directory(self, place: Place) -> str:
        return self._store.directory(self._share, place.path, place.uid)

    def prepare(self, place: Place, work_tree: int) -> None:
        """Make a work tree's repository if it is not there; else fetch what is new on the host.

        ``work_tree`` is an O_PATH descriptor of its directory in the source. Raises OSError. Once
        a repository is there, an error in fetching is only logged.
        """
        if os.geteuid() not in (0, place.uid):
            raise os_error(EACCES)  # its owner could not use what this user makes
        directory = self._directory(place)
        if not has_agent(directory):
            try:
                with locked(directory, seeding.SECONDS):
                    if not has_agent(directory):
                        self._seed(directory, place, work_tree)
            except OSError as error:
                self._say(directory, place, f"cannot be copied: {shown(str(error))}")
                raise
        elif self._is_due(directory):
            try:
                with locked(directory, seeding.REFRESH_SECONDS):
                    if self._is_due(directory):
                        self._refresh(directory, place, work_tree)
            except OSError as error:
                self._next_look[directory] = time.monotonic() + RETRY_SECONDS
                self._say(directory, place, error.strerror or str(error))

    def _is_due(self, directory: str) -> bool:
        return time.monotonic() >= self._next_look.get(directory, 0.0)

    def _seed(self, directory: str, place: Place, work_tree: int) -> None:
        why, state = "", b""
        source = seeding.NOTHING
        with _opened(work_tree, place.path) as (host, problem):
            try:
                if host is None:
                    raise Unusable(problem)
                state = host.state()
                source = source_of(host, f"{directory}.refs")
                self._seed_host(directory, place, source, state)
            except (Unusable, GitFailed) as error:
                why, source = str(error), seeding.NOTHING
                self._say(directory, place, why)
                self._seed_host(directory, place, source, state)
            owner = (place.uid, place.gid)
            let_in(directory, *owner)
            seeding.seed_agent(directory, owner, host, source, why)
        self._next_look[directory] = time.monotonic() + LOOK_SECONDS

    def _seed_host(self, directory: str, place: Place, source: Source, state: bytes) -> None:
        if os.path.lexists(directory):  # the agent's repository alone was reset
            if source is not seeding.NOTHING:
                seeding.refresh_host(directory, source, state)
            return
        seeding.seed_host(directory, source, description(self._share, place.uid, place.path), state)

    def _refresh(self, directory: str, place: Place, work_tree: int) -> None:
        seen = os.path.join(directory, "host.state")
        with _opened(work_tree, place.path) as (host, problem):
            try:
                if host is None:
                    raise Unusable(problem)
                state = host.state()
                if state != read(seen):
                    seeding.refresh_host(directory, source_of(host, f"{directory}.refs"), state)
                self._said.pop(directory, None)
                pause = LOOK_SECONDS
            except (GitFailed, Unusable) as error:
                self._say(directory, place, str(error))
                pause = RETRY_SECONDS if isinstance(error, GitFailed) else LOOK_SECONDS
        self._next_look[directory] = time.monotonic() + pause

    def _say(self, directory: str, place: Place, reason: str) -> None:
        """Log why a repository was not fetched, once for each reason."""
        if self._said.get(directory) != reason:
            self._said[directory] = reason
            where = shown(place.path)
            log.warning("%s: the human's repository was not fetched: it %s", where, shown(reason))


@contextmanager
def _opened(work_tree: int, path: bytes) -> Iterator[tuple[HostRepository | None, str]]:
    """Open the host's repository; yield None, and why, if it cannot be used. Raises OSError."""
    context = opened(work_tree, path)
    try:
        host = context.__enter__()
    except Unusable as error:
        yield None, str(error)
        return
    try:
        yield host, ""
    finally:
        context.__exit__(None, None, None)
