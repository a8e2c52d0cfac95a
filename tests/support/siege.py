"""Carry out attacks on projects seen through bindfs, a plain directory or gitguardfs."""

import errno
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gitguardfs.doctor.attacks import Attack
from tests.support.attacks import ALL, carry_out, strikes, wrong
from tests.support.mounting import Mounted, area, bindfs, gitguardfs
from tests.support.people import as_user
from tests.support.raw_calls import MNT_DETACH, become_fake_root, mount, umount
from tests.support.repos import (
    HOST_GID,
    HOST_UID,
    MAP,
    access,
    check_git_works,
    copy_project,
    differences,
    make_project,
    metadata,
)


def act(actor: str, function: Any, *arguments: Any) -> Any:
    """Call the function as one of attacks.ACTORS, or as the host's user, in a child process."""
    if actor == "host":
        return as_user(function, *arguments, uid=HOST_UID, gid=HOST_GID)
    if actor == "fake host":
        return as_user(_as_fake_root, function, *arguments, uid=HOST_UID, gid=HOST_GID)
    if actor == "root":
        return as_user(function, *arguments, uid=0)
    if actor == "fake root":
        return as_user(_as_fake_root, function, *arguments)
    return as_user(function, *arguments)


def _as_fake_root(function: Any, *arguments: Any) -> Any:
    become_fake_root()
    return function(*arguments)


@dataclass
class Siege:
    """Fresh copies of one project, each seen through mounts that all of them share."""

    place: Path
    mounts: ExitStack
    copies: int = 0
    git_was_tried: bool = False

    def __post_init__(self) -> None:
        # Only the host's user and root reach the projects without the mounts.
        self.hidden = self.place / "hidden"
        self.hidden.mkdir(mode=0o700)
        os.chown(self.hidden, HOST_UID, HOST_GID)
        (self.hidden / "all").mkdir()
        self.in_memory = mount_memory(self.hidden / "all")
        if self.in_memory:
            self.mounts.callback(umount, self.hidden / "all", MNT_DETACH)
        (self.place / "marks").mkdir()
        (self.place / "marks").chmod(0o777)
        make_project(self.hidden / "original")
        self.guarded: dict[tuple[str, ...], Mounted] = {}
        self.plain: Path | None = None

    def project(self) -> Path:
        """Make a fresh copy of the project on the source."""
        self.copies += 1
        return copy_project(self.hidden / "original", self.hidden / f"all/{self.copies}")

    def through_bindfs(self, project: Path) -> Path:
        if self.plain is None:
            self.plain = self.mounts.enter_context(
                bindfs(self.hidden / "all", self.place / "plain", f"--map={MAP}")
            )
        return self.plain / project.name

    def through_guard(self, project: Path, *options: str) -> Path:
        if options not in self.guarded:
            path = self.place / f"guarded{len(self.guarded)}"
            self.guarded[options] = self.mounts.enter_context(
                gitguardfs(self.hidden / "all", path, "--map", MAP, *options)
            )
        return self.guarded[options].path / project.name

    def mark(self) -> tuple[Path, str]:
        """Name a file that is not there yet, and a command that makes it."""
        path = self.place / f"marks/{self.copies}"
        path.unlink(missing_ok=True)
        return path, f"touch {path}"

    def check_real(self, attacks: Sequence[Attack], options: tuple[str, ...] | None = None) -> None:
        """Assert that attacks work on a plain directory, or through a mount with ``options``."""
        failed = []
        apart = [[one] for one in strikes(attacks) if one.object]
        for group in (*apart, [one for one in strikes(attacks) if not one.object]):
            for actor in {ALL[one.attack].actors[0] for one in group}:
                own = [one for one in group if ALL[one.attack].actors[0] == actor]
                project = self.project()
                if options is None:
                    view, caller = project, {"agent": "host", "fake root": "fake host"}.get(actor)
                else:
                    view, caller = self.through_guard(project, *options), actor
                outcomes = act(caller or actor, carry_out, str(view), own)
                failed += [
                    f"{one.name} as {actor}: {text}"
                    for one, (number, text) in zip(own, outcomes, strict=True)
                    if number not in (0, errno.ENOTEMPTY, errno.ENODATA)  # which no guard answers
                ]
                self._drop(project)
        assert not failed, failed

    def _drop(self, project: Path) -> None:
        if self.in_memory:  # elsewhere an inode number would soon be another object's
            shutil.rmtree(project)

    def check_refused(
        self,
        attacks: Sequence[Attack],
        actor: str,
        *options: str,
        also: Collection[int] = (),
        serves: Collection[str] = (),
        without: Collection[str] = (),
    ) -> None:
        """Assert that the guard refuses attacks by the right errnos and the host sees no change.

        ``also`` are errnos that are right with ``options``, ``without`` names objects to leave out.
        """
        tried = strikes(attack for attack in attacks if actor in attack.actors)
        tried = [one for one in tried if one.object not in without]
        project = self.project()
        before, access_before = metadata(project), access(project)
        view = self.through_guard(project, *options)
        found = wrong(tried, act(actor, carry_out, str(view), tried), actor, also, serves)
        assert not found, found
        changed = differences(before, metadata(project))
        assert not changed, changed
        assert access(project) == access_before
        if not self.git_was_tried:  # once: all that git needs is unchanged, as was just compared
            check_git_works(project)
            self.git_was_tried = True
        self._drop(project)


def mount_memory(path: Path) -> bool:
    """Put a tmpfs there, for speed, if this kernel's has user extended attributes (6.6)."""
    mount("tmpfs", path, "tmpfs", data="mode=755")
    try:
        os.setxattr(path, "user.test", b"")
    except OSError:
        umount(path)
        return False
    return True


@contextmanager
def siege() -> Iterator[Siege]:
    with area() as place, ExitStack() as mounts:
        yield Siege(place, mounts)
