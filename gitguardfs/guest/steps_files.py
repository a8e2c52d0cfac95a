"""Steps that change files and directories, or run a command."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

from gitguardfs.base import config_files
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest.transaction import Undo
from gitguardfs.linux import safe_open
from gitguardfs.linux.programs import ENVIRONMENT, Ids, call

_MADE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Run:
    """Runs a command; the command ``undo`` undoes it."""

    command: tuple[str, ...]
    undo: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the command."""
        return shlex.join(self.command)

    def do(self) -> Undo | None:
        """Run the command."""
        try:
            call(self.command)
        except UserError:
            with suppress(UserError):  # else systemd restarts a failing service again and again
                call(self.undo or ("true",))
            raise
        return (lambda: call(self.undo)) if self.undo else None


@dataclass(frozen=True)
class MakeDirectories:
    """Makes directories, outermost first; the last one becomes ``owner``'s.

    ``fd`` is open on the directory to make them in, even if its path leads elsewhere by now.
    ``by`` is the user to make them as, None for root. Where a user may write, only that user's
    rights are used, since the user can replace a new directory by a symlink.
    """

    paths: tuple[str, ...]
    owner: Ids
    by: Ids | None = None
    mode: int = 0o755
    fd: int = field(default=-1, compare=False)

    def describe(self) -> str:
        """Return the commands."""
        who = "" if self.by is None else f" (as user {self.by[0]})"
        more = "" if self.by or self.owner == (0, 0) else f" and chown {self.owner[0]}"
        return f"mkdir -m {self.mode:o} {shlex.join(self.paths)}{more}{who}"

    def do(self) -> Undo:
        """Make the directories."""
        made: list[str] = []
        above = os.path.dirname(self.paths[0])
        names = [f"./{os.path.relpath(path, above)}" for path in self.paths]

        def undo() -> None:
            for name in reversed(made):
                call(["rmdir", "--", name], self.by, self.fd)

        here = os.dup(self.fd)
        try:
            for path, name in zip(self.paths, names, strict=True):
                last = f"./{os.path.basename(path)}"
                call(["mkdir", "-m", f"{self.mode:o}", "--", last], self.by, here)
                made.append(name)
                below = os.open(last, _MADE, dir_fd=here)
                os.close(here)
                here = below
            if self.by is None:
                os.chown(f"/proc/self/fd/{here}", *self.owner)
        except BaseException:
            undo()
            raise
        finally:
            os.close(here)
        return undo


@dataclass(frozen=True)
class MakePrivate:
    """Makes a directory of root private (mode 0700)."""

    path: str
    before: int

    def describe(self) -> str:
        """Return the command."""
        return f"chmod 700 {shlex.quote(self.path)}"

    def do(self) -> Undo:
        """Change the mode."""
        self._chmod(0o700)
        return lambda: self._chmod(self.before)

    def _chmod(self, mode: int) -> None:
        fd = safe_open.open_directory(self.path, True)
        try:
            os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)


@dataclass(frozen=True)
class Write:
    """Writes or deletes a file. ``backup`` keeps its former content beside it."""

    change: config_files.FileChange
    backup: bool = False
    after_undo: tuple[str, ...] = ()
    """The command to run after this file and all later ones are restored."""

    def describe(self) -> str:
        """Return what is done with the file."""
        how = "remove" if self.change.after is None else "write"
        return f"{how} {self.change.path}"

    def do(self) -> Undo:
        """Apply the change."""

        def undo() -> None:
            config_files.revert(self.change)
            if self.after_undo:
                call(self.after_undo)

        try:
            config_files.write(self.change, backup=self.backup)
        except BaseException:
            if self.change.is_needed and config_files.read(self.change.path) == self.change.after:
                undo()  # written, and something failed after that
            raise
        return undo


@dataclass(frozen=True)
class VerifyFstab:
    """Runs ``findmnt --verify`` on an fstab; fails on errors about the mount points ``targets``."""

    fstab: str
    targets: tuple[str, ...]

    def describe(self) -> str:
        """Return the command."""
        return f"findmnt --verify --tab-file {shlex.quote(self.fstab)}"

    def do(self) -> None:
        """Check the fstab. Ignores errors about other lines: they may have been there before."""
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
    """Removes an empty directory that we made."""

    path: str

    def describe(self) -> str:
        """Return the command."""
        return f"rmdir {shlex.quote(self.path)}"

    def do(self) -> None:
        """Remove the directory if it is empty and unused; errors are ignored."""
        with suppress(OSError):  # not empty, or in use
            parent = safe_open.open_directory(os.path.dirname(self.path), True)
            try:
                os.rmdir(os.path.basename(self.path), dir_fd=parent)
            finally:
                os.close(parent)
