"""What a session is: it takes the requests of one mount from the kernel and answers them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gitguardfs.serving.operations import Operations


class MountFailed(Exception):  # noqa: N818  # what happened, not that something broke
    """The kernel, or what mounts for a user, refused."""


class Mounted(NamedTuple):
    """What a session asks and tells of its own mount."""

    mountpoint: str
    is_unmounted: Callable[[], bool]
    """Whether it has gone from the mount table of this namespace."""
    ready: Callable[[], None]
    """Called when the mount answers."""
    ending: Callable[[], None]
    """Called when the end begins."""
    reread_groups: Callable[[], None]
    """Called when who is in which group is to be found out anew."""


class Session(Protocol):
    """One mount's connection to the kernel."""

    @property
    def answers(self) -> int:
        """How many calls that were waited for have come back; it only grows."""

    def mount(self, target: str, options: set[str]) -> None:
        """Mount at ``target``. Raises MountFailed."""

    def serve(self, mounted: Mounted) -> signal.Signals | None:
        """Serve until unmounted, or ended by a signal; returns that, or None if there was none."""

    def close(self, unmount: bool = False) -> None:
        """Close the connection; what was mounted stays, dead, unless it is to be unmounted."""


class Kind(Protocol):
    """A kind of session."""

    reports_names_only: bool
    """Whether it can report entries of a listing without attributes."""

    def __call__(self, operations: Operations) -> Session:
        """Return a session that serves ``operations``."""


def chosen(no_cpu_idle: bool = False) -> Kind:
    """Return the kind of session that mounts are served by.

    ``no_cpu_idle`` keeps processors from being halted while requests stream.
    """
    from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3Kind

    return Pyfuse3Kind(no_cpu_idle)
