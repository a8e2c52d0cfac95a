"""Carry out attacks on projects seen through bindfs, a plain directory or gitguardfs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.attacks import Attack
from tests.support.mounting import Mounted, area, bindfs, gitguardfs
from tests.support.people import as_user
from tests.support.raw_calls import MNT_DETACH, become_fake_root, mount, umount
from tests.support.repos import (
    HOST_GID,
    HOST_UID,
    MAP,
    SECRET,
    access,
    check_git_works,
    copy_project,
    differences,
    git,
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

    def succeeds(self, attack: Attack) -> None:
        """Assert that the attack works where no guard prevents it."""
        project = self.project()
        if attack.plain == "directory":
            actor = "fake host" if attack.actors[0] == "fake root" else "host"
            self._works(attack, project, project, actor)
        else:
            self._works(attack, project, self.through_bindfs(project), attack.actors[0])

    def succeeds_unguarded(self, attack: Attack) -> None:
        """Assert that it works through gitguardfs with the guard off: so the guard refuses it."""
        project = self.project()
        options = {"--git=off", "--allow-bare", *attack.options}
        view = self.through_guard(project, *sorted(options))
        self._works(attack, project, view, attack.actors[0])

    def _works(self, attack: Attack, project: Path, view: Path, actor: str) -> None:
        before = metadata(project)
        mark, command = self.mark()
        got = act(actor, attack.strike, view, command)
        if attack.reads:
            assert SECRET.encode() in got, f"{attack.id} as {actor} read only {got!r}"
        elif attack.runs is not None:
            git(project / attack.runs, "status")
            assert mark.exists(), f"{attack.id} as {actor}: git did not run the command"
        else:
            assert metadata(project) != before, f"{attack.id} as {actor} changed nothing"
        self._drop(project)

    def _drop(self, project: Path) -> None:
        if self.in_memory:  # elsewhere an inode number would soon be another object's
            shutil.rmtree(project)

    def is_refused(
        self, attack: Attack, actor: str, *more: str, also: Collection[int] = ()
    ) -> None:
        """Assert that the guard refuses it by an errno of the table and the host sees no change.

        ``more`` are options of the mount, and ``also`` are errnos that are right with them.
        """
        project = self.project()
        before, access_before = metadata(project), access(project)
        mark, command = self.mark()
        view = self.through_guard(project, *attack.options, *more)
        allowed = attack.refused | set(also)
        if actor != "root":
            allowed |= attack.early
        try:
            got = act(actor, attack.strike, view, command)
        except OSError as error:
            assert error.errno in allowed, f"{attack.id} as {actor}: {error}"
        else:
            raise AssertionError(f"{attack.id} as {actor} was not refused; it returned {got!r}")
        changed = differences(before, metadata(project))
        assert not changed, f"{attack.id} as {actor}: {changed}"
        assert access(project) == access_before, f"{attack.id} as {actor}"
        if not self.git_was_tried:  # once: all that git needs is unchanged, as was just compared
            check_git_works(project)
            self.git_was_tried = True
        if attack.runs is not None and (project / attack.runs).is_dir():
            git(project / attack.runs, "status")
        assert not mark.exists(), f"{attack.id} as {actor}: git on the host ran the command"
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
