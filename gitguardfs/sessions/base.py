"""The interface of a session, which takes a mount's requests from the kernel and answers them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gitguardfs.serving.operations import Operations


class MountFailed(Exception):  # noqa: N818  # named for what happened
    """The kernel, or fusermount3 for a user, refused to mount."""


class Mounted(NamedTuple):
    """The mount point of a session's mount, and what the session calls while it serves."""

    mountpoint: str
    is_unmounted: Callable[[], bool]
    """Returns whether the mount is gone from the mount table of this namespace."""
    ready: Callable[[], None]
    """Called once the mount answers requests."""
    ending: Callable[[], None]
    """Called when the session begins to end."""
    reread_groups: Callable[[], None]
    """Called when the group memberships of users must be read again (SIGUSR1)."""


class Session(Protocol):
    """One mount's connection to the kernel."""

    @property
    def answers(self) -> int:
        """How many calls that the session waited for have returned. The number only grows."""

    def mount(self, target: str, options: set[str]) -> None:
        """Mount at ``target``. Raises MountFailed."""

    def serve(self, mounted: Mounted) -> signal.Signals | None:
        """Serve until unmounted or ended by a signal. Returns the signal, or None."""

    def close(self, unmount: bool = False) -> None:
        """Close the connection. The mount is left dead, unless ``unmount`` is true."""


class Kind(Protocol):
    """A kind of session."""

    reports_names_only: bool
    """Whether the session can report entries of a listing without attributes."""

    def __call__(self, operations: Operations) -> Session:
        """Return a session that serves ``operations``."""


def chosen(no_cpu_idle: bool = False) -> Kind:
    """Return the kind of session that serves mounts.

    ``no_cpu_idle`` keeps processors from halting while requests come in a row.
    """
    from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3Kind

    return Pyfuse3Kind(no_cpu_idle)
