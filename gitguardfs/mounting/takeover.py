"""Hands a view to the next daemon: for the programs that use it, nothing happens meanwhile.

The keeper and the service manager have the descriptors that the next daemon needs: of the
connection, of the directory that the view lies on, of the state, and those that the session adds.
The next daemon goes on only if the options mean the same; each node is looked up anew
(``fs.saved``). Until it serves, every request waits: so it takes no step on a path that leads to
the view.
"""

from __future__ import annotations

import logging
import marshal
import os
import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gitguardfs.linux import mountinfo, syscalls
from gitguardfs.mounting import covers, guards, lid
from gitguardfs.mounting.preflight import MountPaths
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.sessions.base import CONNECTION, Session

log = logging.getLogger(__name__)

FORMAT = 2
"""The format of the state, with that of sessions and tables. A daemon reads no other."""
MARSHAL_VERSION = 4
"""Read by every Python since 3.4."""
STATE, PLACE = "state", "place"
"""The names of our descriptors, beside the session's."""

HandOver = Callable[[Mapping[str, int]], None]
"""Hands descriptors to the process that keeps them for the next daemon."""


@dataclass(frozen=True)
class Taken:
    """A view that is mounted already, and whose daemon has ended."""

    mounted: mountinfo.MountInfo
    mountpoint: str
    descriptors: dict[str, int]
    """The session's descriptors, by name."""
    place: int
    """A descriptor of the directory at ``mountpoint``, below view and lid."""
    root: bytes
    """The source's root (``closed_places.recognized``)."""
    state: Any
    """The state of its session."""

    @property
    def lid(self) -> mountinfo.MountInfo | None:
        """The lid that the view lies on; None if it is gone."""
        with suppress(OSError):
            found = covers.listed(self.mounted.parent_id)
            return found if lid.is_lid(found) else None
        return None

    def go_on(self, session: Session) -> mountinfo.MountInfo:
        """Let a session go on with the view; return its mount."""
        assert session.outliving is not None
        session.outliving.take_over(self.descriptors, self.state)
        return self.mounted

    def abandon(self) -> None:
        """Unmount the view and end its connection, whoever holds it; the lid stays."""
        with suppress(OSError):
            mountinfo.detach(self.mounted, syscalls.MNT_FORCE)
        _close(*self.descriptors.values(), self.place)


def taken(options: MountOptions, offered: Mapping[str, int], takes_over: bool) -> Taken | None:
    """Return the view of a former daemon; abandon it if this daemon cannot go on with it.

    ``takes_over`` is whether the session can go on, and shall.
    """
    descriptors = dict(offered)
    if not {CONNECTION, STATE, PLACE} <= descriptors.keys():
        _close(*descriptors.values())
        return None
    place = descriptors.pop(PLACE)
    with open(descriptors.pop(STATE), "rb") as file:
        file.seek(0)
        form, view, *more = marshal.load(file)  # noqa: S302  # only root hands it over
    mounted = next((m for m in mountinfo.listed() if m.identity == view), None)
    if mounted is None:
        _close(*descriptors.values(), place)
        return None
    if form == FORMAT and takes_over and _is_connected(descriptors[CONNECTION]):
        given, paths, mountpoint, root, state = more
        is_same = paths == (options.source, options.mountpoint)
        if is_same and guards.same_options(given, options.given):
            return Taken(mounted, mountpoint, descriptors, place, root, state)
    log.info("%s: mounted anew; what was open before is not", options.mountpoint)
    Taken(mounted, "", descriptors, place, b"", ()).abandon()
    return None


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)


def _is_connected(connection: int) -> bool:
    poll = select.poll()
    poll.register(connection, 0)
    return not poll.poll(0)  # POLLERR once the connection has ended


@dataclass(frozen=True)
class Succession:
    """The descriptors from the former daemon, and the ways to the next one."""

    root: bytes = b""
    """The source's root (``closed_places.recognized``) that must be found; b"" for any."""
    offered: Mapping[str, int] = field(default_factory=dict)
    """The descriptors of the former daemon, by name."""
    goes_on: bool = True
    """Whether this daemon shall go on with the former one's view."""
    keep: HandOver | None = None
    """Hands over in case this process is killed; None if no other process keeps descriptors."""
    hand_over: HandOver | None = None
    """Hands over at a planned end; None if no other daemon is to follow then."""
    taken: Taken | None = None
    """The view that this daemon goes on with; None if it mounts one."""

    def keep_in_case_of_a_kill(
        self,
        session: Session,
        options: MountOptions,
        paths: MountPaths,
        mounted: mountinfo.MountInfo | None,
    ) -> None:
        """Let another process keep the descriptors of ``prepare`` from now on."""
        if self.keep is None or session.outliving is None:
            return
        descriptors = self.prepare(session.outliving.left_if_killed, options, paths, mounted)
        try:
            self.keep(descriptors)
        except OSError as error:
            log.error("the view will not outlive this daemon: %s", error.strerror)
        finally:
            _close(*descriptors.values())

    def keep_nothing(self) -> None:
        """Let the next daemon mount the view anew if this process is killed."""
        with suppress(OSError):
            if self.keep is not None:
                self.keep({})

    def prepare(
        self,
        leave: Callable[[dict[str, int]], Any],
        options: MountOptions,
        paths: MountPaths,
        mounted: mountinfo.MountInfo | None,
    ) -> dict[str, int]:
        """Return the descriptors for the next daemon; none if it has to mount the view anew.

        ``leave`` is a method of the session's ``Outliving``, to be called when no request is under
        way, and before the tables are closed.
        """
        if mounted is None or paths.covers_itself:
            return {}
        descriptors: dict[str, int] = {}
        try:
            state = leave(descriptors) if mountinfo.current(mounted) else None
            if state is not None:
                given = options.given, (options.source, options.mountpoint), paths.mountpoint
                text = (FORMAT, mounted.identity, *given, self.root, state)
                # Not the O_PATH descriptor, which a service manager does not keep.
                descriptors[PLACE] = os.open(f"/proc/self/fd/{paths.mountpoint_fd}", covers.READ)
                memory = descriptors[STATE] = os.memfd_create("gitguardfs-state")
                with open(memory, "wb", closefd=False) as file:
                    marshal.dump(text, file, MARSHAL_VERSION)
                return descriptors
        except Exception:
            log.exception("the view cannot be handed over; it is mounted anew")
        _close(*descriptors.values())
        return {}

    def pass_on(self, descriptors: dict[str, int]) -> bool:
        """Hand over the descriptors of ``prepare``, and close them; return whether that worked."""
        try:
            if self.hand_over is not None:
                self.hand_over(descriptors)
                return True
        except OSError as error:
            log.error("the view cannot be handed over: %s; it is mounted anew", error.strerror)
        finally:
            _close(*descriptors.values())
        return False
