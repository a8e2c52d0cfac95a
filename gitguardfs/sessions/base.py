"""The interface of a session, which takes a mount's requests from the kernel and answers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gitguardfs.base.protocol import NodeId
from gitguardfs.view.view import View

CONNECTION = "connection"
"""The name of the connection's descriptor among those for the next daemon."""


class MountFailed(Exception):  # noqa: N818  # named for what happened
    """The kernel, or fusermount3 for a user, refused to mount."""


class Outliving(Protocol):
    """Lets the mount of a session outlive its daemon."""

    def left_at_the_end(self, descriptors: dict[str, int]) -> Any:
        """Return the state that ``take_over`` takes; None if no other daemon can serve this mount.

        Adds the descriptors that belong to it, by name. The caller closes these, after an error as
        well. To be called after ``serve``.
        """

    def left_if_killed(self, descriptors: dict[str, int]) -> Any:
        """Return the state as ``left_at_the_end`` does, for a kill at any time from now on.

        To be called between requests, once the mount answers.
        """

    def take_over(self, descriptors: dict[str, int], state: Any) -> None:
        """Go on with a former daemon's connection, in place of ``mount``."""


class Session(Protocol):
    """One mount's connection to the kernel."""

    @property
    def answers(self) -> int:
        """How many calls that the session waited for have returned. The number only grows."""

    @property
    def outliving(self) -> Outliving | None:
        """The way from daemon to daemon; None if each daemon mounts anew."""

    def mount(self, path: str, directory: int, options: set[str]) -> None:
        """Mount at ``path``: as root on the very directory behind the descriptor ``directory``.

        For a user fusermount3 mounts, by the path and with the user's rights. Raises MountFailed.
        """

    def serve(self, ready: Callable[[], None]) -> None:
        """Serve until the mount is unmounted or ``stop`` is called.

        ``ready`` is called once the mount answers.
        """

    def stop(self) -> None:
        """Finish the requests under way, and take no more. May be called in a signal handler."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make a call between two requests. May be called in a signal handler.

        A call given before ``serve`` is made there; one given after ``serve`` is dropped. ``call``
        must not raise.
        """

    def keep_listings(self) -> bool:
        """Let the kernel keep listings from now on; return whether this session can.

        If it cannot, nothing is to be cached for long.
        """

    def call_soon_from_thread(self, call: Callable[[], None]) -> None:
        """Make a call between two requests, as ``call_soon``; for other threads than the serving.

        While there is no reader, it may be made only after the next request.
        """

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Make a call between two requests each time when a descriptor can be read.

        For the serving thread. ``call`` must not raise, nor wait.
        """

    def remove_reader(self, fd: int) -> None:
        """Undo ``add_reader``, if it was called for the descriptor."""

    @property
    def device(self) -> int:
        """A descriptor to which notifications can be written; -1 if there is none."""

    def expiring(self, parent: int, name: bytes) -> bytes:
        """Return the notification after which the kernel looks a name up again.

        To write it may wait for as long as a program of the guest uses the directory.
        """

    def invalidating(self, node: int) -> bytes:
        """Return the notification that makes the kernel drop the attributes of a node."""

    def invalidate(self, node: NodeId) -> None:
        """Make the kernel drop the cached attributes of a node. Raises OSError.

        Takes no lock that a request may hold.
        """

    def close(self, unmount: bool = False) -> None:
        """Close the connection. The mount is left, unless ``unmount`` is true.

        It is dead then, unless another process has the connection as well.
        """


@dataclass(frozen=True)
class SessionKind:
    """A kind of sessions."""

    of: Callable[[View], Session]
    """Returns a session that serves a view."""
    reports_names_only: bool = False
    """Whether its sessions can report entries of a listing without attributes."""
    lends_files: bool = False
    """Whether its sessions let the kernel read and write files by itself."""
    takes_over: bool = False
    """Whether its sessions go on with the connection of a daemon that has ended."""
