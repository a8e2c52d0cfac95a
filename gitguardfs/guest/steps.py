"""What vm-mount does, one undoable step at a time, and the runner of such steps.

A step knows how to say itself, to be done, and what undoes it. The runner undoes what it has
done, last first, as soon as a step fails, so that a run changes everything or nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from gitguardfs import mounts, writer
from gitguardfs.errors import Exit, UserError
from gitguardfs.guest import running
from gitguardfs.guest.facts import ENVIRONMENT, Ids
from gitguardfs.guest.unmounting import END_LIMIT, close_off, unmount, unmount_guard

COMMAND_LIMIT = 120.0
"""Seconds for one command; starting a service may take systemd's 90."""

Undo = Callable[[], None]


class Step(Protocol):
    """One change of the system."""

    def describe(self) -> str:
        """What it does, as commands where there are such."""
        ...

    def do(self) -> Undo | None:
        """Do it; return what undoes it. Raises UserError or OSError, having done nothing."""
        ...


class Runner:
    """Does steps, and undoes them when one fails. ``tell`` gets a line for each."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._done: list[tuple[str, Undo]] = []

    def run(self, steps: Sequence[Step]) -> None:
        """Do every step; if one fails, undo all that this runner has done, and raise."""
        for step in steps:
            self._tell(step.describe())
            try:
                with _signals_held() as came:
                    undo = step.do()
                    if undo is not None:
                        self._done.append((step.describe(), undo))
                if came:
                    signal.raise_signal(came[0])
            except BaseException:
                self.undo()
                raise

    def undo(self) -> None:
        """Undo everything, last first; what cannot be undone is told and passed over."""
        with _signals_held():
            while self._done:
                what, undo = self._done.pop()
                try:
                    undo()
                    self._tell(f"undone: {what.splitlines()[0]}")
                except (UserError, OSError) as error:
                    self._tell(f"could not undo: {what.splitlines()[0]}: {error}")


@contextmanager
def _signals_held() -> Iterator[list[int]]:
    """Note SIGINT, SIGTERM and SIGHUP instead of being ended amid something by them."""
    came: list[int] = []
    # Not by a mask: programs that are run would inherit it.
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def call(command: Sequence[str], user: Ids | None = None) -> None:
    """Run a program to its end; UserError with what it wrote to standard error if it fails."""
    ids: dict[str, object] = {}
    if user is not None:
        ids = {"user": user[0], "group": user[1], "extra_groups": []}
    try:
        done = subprocess.run(
            command,
            check=False,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_LIMIT,
            umask=0o022,
            cwd="/",
            start_new_session=True,  # ^C is for us, once the step is done
            **ids,  # type: ignore[call-overload]  # the three of them go together
        )
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed", code=Exit.SYSTEM) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{shlex.join(command)} takes for ever", code=Exit.SYSTEM) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").split("\n")
        reason = "; ".join(
            line.strip() for line in lines if line.strip() and "dmesg(1)" not in line
        )
        raise UserError(reason or f"{shlex.join(command)} failed", code=Exit.MOUNT)


@dataclass(frozen=True)
class Run:
    """Run a command; ``undo`` is run to undo it."""

    command: tuple[str, ...]
    undo: tuple[str, ...] = ()

    def describe(self) -> str:
        """The command."""
        return shlex.join(self.command)

    def do(self) -> Undo | None:
        """Run it."""
        try:
            call(self.command)
        except UserError:
            with suppress(UserError):  # a service that does not start is tried again and again
                call(self.undo or ("true",))
            raise
        return (lambda: call(self.undo)) if self.undo else None


@dataclass(frozen=True)
class Make:
    """Make directories, outermost first; the last one becomes ``owner``'s.

    ``by`` makes them: where a user may write, only that user can do it without the risk of doing
    it somewhere else, since what is on the way can be changed under our hands.
    """

    paths: tuple[str, ...]
    owner: Ids
    by: Ids | None = None
    mode: int = 0o755

    def describe(self) -> str:
        """The commands."""
        who = "" if self.by is None else f" (as user {self.by[0]})"
        more = "" if self.by or self.owner == (0, 0) else f" and chown {self.owner[0]}"
        return f"mkdir -m {self.mode:o} {shlex.join(self.paths)}{more}{who}"

    def do(self) -> Undo:
        """Make them."""
        made: list[str] = []

        def undo() -> None:
            for path in reversed(made):
                call(["rmdir", "--", path], self.by)

        try:
            for path in self.paths:
                call(["mkdir", "-m", f"{self.mode:o}", "--", path], self.by)
                made.append(path)
            if self.by is None:
                os.chown(self.paths[-1], *self.owner, follow_symlinks=False)
        except BaseException:
            undo()
            raise
        return undo


@dataclass(frozen=True)
class Close:
    """Make a directory of root's private."""

    path: str
    before: int

    def describe(self) -> str:
        """The command."""
        return f"chmod 700 {shlex.quote(self.path)}"

    def do(self) -> Undo:
        """Change the mode."""
        os.chmod(self.path, 0o700)
        return lambda: os.chmod(self.path, self.before)


@dataclass(frozen=True)
class MountShare:
    """Mount a share; the first command that succeeds decides of which type it is."""

    commands: tuple[tuple[str, ...], ...]
    target: str

    def describe(self) -> str:
        """The commands."""
        return "\n  or ".join(shlex.join(command) for command in self.commands)

    def do(self) -> Undo:
        """Try one after the other."""
        reasons = []

        def undo() -> None:
            top = mounts.top_at(self.target)
            if top is not None and top.fstype in mounts.SHARE_TYPES:
                unmount(top.number)

        for command in self.commands:
            try:
                call(command)
            except UserError as error:
                undo()  # it may have been ended just after it had done it
                reasons.append(str(error))
            else:
                return undo
        raise UserError("cannot mount the share: " + "; ".join(reasons), code=Exit.MOUNT)


@dataclass(frozen=True)
class StartGuard:
    """Run gitguardfs, which returns when the view answers."""

    command: tuple[str, ...]
    source: str
    map_mount: str

    def describe(self) -> str:
        """The command."""
        return shlex.join(self.command)

    def do(self) -> Undo:
        """Run it."""
        at = os.fsencode(self.map_mount)
        before = {guard.number for guard in running.guards() if guard.path != at}

        def undo() -> None:
            for guard in running.guards():
                is_new = guard.number not in before
                is_ours = guard.source in (self.source, mounts.SUBTYPE)
                if is_new and is_ours and not running.is_dead(guard.path):
                    unmount_guard(guard.number, self.source)

        try:
            call(self.command)
        except BaseException:
            undo()
            raise
        return undo


@dataclass(frozen=True)
class StopGuard:
    """Unmount a guard and wait until its seal is off; ``restart`` are the commands to undo it.

    If there are none, or they fail, the raw share is closed: it was not open before.
    """

    map_mount: str
    source: str
    number: int
    restart: tuple[tuple[str, ...], ...] = ()

    def describe(self) -> str:
        """The command."""
        return f"umount {shlex.quote(self.map_mount)}"

    def do(self) -> Undo:
        """Unmount it, unless it is busy."""
        try:
            unmount_guard(self.number, self.source)
        except BaseException as error:
            if all(guard.number != self.number for guard in running.guards()):
                try:
                    self._restart()
                except UserError as worse:
                    raise UserError(f"{error}; {worse}", code=Exit.SYSTEM) from None
            raise
        return self._restart

    def _restart(self) -> None:
        try:
            if not self.restart:
                raise UserError("how it was run is not known")
            for command in self.restart:
                call(command)
        except BaseException as error:
            why = f"{self.map_mount} is not guarded again: {error}"
            raise UserError(f"{why}; {close_off(self.source)}", code=Exit.SYSTEM) from None


@dataclass(frozen=True)
class Unmount:
    """Unmount a share, or what is left of a guard."""

    target: str
    number: int
    mount_again: tuple[str, ...] = ()
    lazy: bool = False

    def describe(self) -> str:
        """The command."""
        return f"umount {'--lazy ' if self.lazy else ''}-- {shlex.quote(self.target)}"

    def do(self) -> Undo | None:
        """Unmount it, unless it is busy."""
        unmount(self.number, lazy=self.lazy, patience=END_LIMIT)
        return (lambda: call(self.mount_again)) if self.mount_again else None


@dataclass(frozen=True)
class Write:
    """Change a file, keeping a backup if somebody else's lines are in it."""

    change: writer.Change
    backup: bool = False
    after_undo: tuple[str, ...] = ()
    """The command to run once it, and all that was written after it, is as it was."""

    def describe(self) -> str:
        """The file."""
        how = "remove" if self.change.after is None else "write"
        return f"{how} {self.change.path}"

    def do(self) -> Undo:
        """Write it."""

        def undo() -> None:
            writer.revert(self.change)
            if self.after_undo:
                call(self.after_undo)

        try:
            writer.apply(self.change, backup=self.backup)
        except BaseException:
            if self.change.is_one and writer.read(self.change.path) == self.change.after:
                undo()  # written, and something failed after that
            raise
        return undo


@dataclass(frozen=True)
class Verify:
    """Let findmnt(8) read an fstab; no error may concern ``targets``, and no line be unreadable."""

    fstab: str
    targets: tuple[str, ...]

    def describe(self) -> str:
        """The command."""
        return f"findmnt --verify --tab-file {shlex.quote(self.fstab)}"

    def do(self) -> None:
        """Read it, and look for errors about our lines; others may have been there before."""
        done = subprocess.run(
            ["findmnt", "--verify", "--tab-file", self.fstab],
            check=False, env=ENVIRONMENT, capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        where = ""
        for line in done.stdout.splitlines():
            if not line.startswith(" "):
                where = line.strip()
            elif "[E]" in line and where in self.targets:
                raise UserError(f"findmnt --verify: {where}: {line.strip()}", code=Exit.SYSTEM)


@dataclass(frozen=True)
class RemoveDirectory:
    """Remove an empty directory that we made."""

    path: str

    def describe(self) -> str:
        """The command."""
        return f"rmdir {shlex.quote(self.path)}"

    def do(self) -> None:
        """Remove it."""
        with suppress(OSError):  # something else is in it, or it is used
            os.rmdir(self.path)
