"""Steps that mount and unmount. A sealed share that stays mounted is sealed all the time."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import closing, suppress
from dataclasses import dataclass, field

from gitguardfs.base.constants import SHARE_TYPES, SUBTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest.transaction import Undo
from gitguardfs.linux import mountinfo
from gitguardfs.linux.kernel_log import DEVICE, KernelLog
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.programs import call
from gitguardfs.mounting import guards, lid, seal
from gitguardfs.mounting.sealed_mount import mount_covered
from gitguardfs.mounting.unmount import (
    remove_seals,
    seal_or_unmount,
    stop_keeping_seal,
    stop_orphan,
    unmount,
    unmount_share,
)


@dataclass(frozen=True)
class MountShare:
    """Mounts a share. The first of ``commands`` that succeeds decides its file system type.

    A share that is to be sealed gets its seal before other processes can see the share.
    """

    commands: tuple[tuple[str, ...], ...]
    target: str
    is_sealed: bool
    kernel_log: str = field(default=DEVICE, compare=False)

    def describe(self) -> str:
        """Return the commands."""
        covered = " (below a seal from the start)" if self.is_sealed else ""
        return "\n  or ".join(f"{shlex.join(command)}{covered}" for command in self.commands)

    def do(self) -> Undo:
        """Try the commands, one after the other."""
        reasons = []
        hint = ""
        with closing(KernelLog(self.kernel_log)) as log:
            for command in self.commands:
                try:
                    self._mount(command)
                except UserError as error:
                    self._undo()  # mount(8) may have failed after mounting
                    reasons.append(_unknown_tag(log.lines()) or str(error))
                    if "virtiofs" in command:
                        hint = "dmesg | grep virtio"
                else:
                    return self._undo
        raise UserError("cannot mount the share: " + "; ".join(reasons), hint, Exit.MOUNT)

    def _mount(self, command: tuple[str, ...]) -> None:
        if self.is_sealed:
            mount_covered(lambda: call(command), self.target)
        else:
            call(command)

    def _undo(self) -> None:
        for mount in reversed(mountinfo.listed()):
            if mount.mount_point == os.fsencode(self.target) and mount.fstype in SHARE_TYPES:
                unmount_share(mount)


def _unknown_tag(said: list[str]) -> str | None:
    """Return a message if the kernel log reports an unknown virtiofs tag; mount(8) only guesses."""
    for line in said:
        if found := re.search(r"tag <(.*)> not found", line):
            return f"no device has the virtiofs tag {found[1]!r}, says the kernel"
    return None


@dataclass(frozen=True)
class StartGuard:
    """Runs gitguardfs, which returns when the view answers."""

    command: tuple[str, ...]
    source: str
    map_mount: str

    def describe(self) -> str:
        """Return the command."""
        return shlex.join(self.command)

    def do(self) -> Undo:
        """Start the daemon."""
        at = os.fsencode(self.map_mount)
        before = {guard.identity for guard in guards.guards() if guard.mount_point != at}
        was_sealed = seal.is_sealed(self.source)
        had_lid = lid.is_at(self.map_mount)

        def undo() -> None:
            for guard in guards.guards():
                is_new = guard.identity not in before
                is_ours = guard.source in (self.source, SUBTYPE)
                if is_new and is_ours and not guards.is_dead(guard.mount_point):
                    stop_keeping_seal(guard, self.source)
            if not had_lid:
                lid.remove_at(self.map_mount)
            if not was_sealed:
                remove_seals(self.source)

        try:
            stop_orphan(self.source)
            call(self.command)
        except BaseException as error:
            undo()
            raise _undone(error, self.source) from None
        return undo


@dataclass(frozen=True)
class StartService:
    """Starts the systemd service that runs gitguardfs."""

    systemctl: str
    service: str
    source: str
    map_mount: str

    def describe(self) -> str:
        """Return the command."""
        return shlex.join((self.systemctl, "restart", self.service))

    def do(self) -> Undo:
        """Start the service, or restart it if it runs."""
        was_sealed = seal.is_sealed(self.source)
        had_lid = lid.is_at(self.map_mount)

        def undo() -> None:
            at = os.fsencode(self.map_mount)
            for guard in guards.guards():
                if guard.mount_point == at and not guards.is_dead(at):
                    stop_keeping_seal(guard, self.source)
            call((self.systemctl, "stop", self.service))
            if not had_lid:
                lid.remove_at(self.map_mount)
            if not was_sealed:
                remove_seals(self.source)

        try:
            stop_orphan(self.source)
            call((self.systemctl, "restart", self.service))
        except BaseException as error:
            with suppress(UserError):  # else systemd restarts a failing service again and again
                undo()
                error = _undone(error, self.source)
            raise error from None
        return undo


def _undone(error: BaseException, source: str) -> BaseException:
    """Return ``error`` without gitguardfs's remark about its new seal, which was removed."""
    if not isinstance(error, UserError):
        return error
    said = re.escape(seal.remark(source))
    text = re.sub(rf" \({said}\)|; {said}", "", str(error))
    return UserError(text, code=error.code)


@dataclass(frozen=True)
class StopGuard:
    """Ends a guard and leaves its seal on. The commands ``restart`` undo that.

    If there are none, or one fails, the raw share stays sealed.
    """

    map_mount: str
    source: str
    guard: MountInfo
    restart: tuple[tuple[str, ...], ...] = ()

    def describe(self) -> str:
        """Return the command."""
        return f"umount {shlex.quote(self.map_mount)}"

    def do(self) -> Undo | None:
        """Unmount the view. Fails if it is busy."""
        try:
            was_there = stop_keeping_seal(self.guard, self.source)
        except BaseException as error:
            if mountinfo.current(self.guard) is None:
                try:
                    self._restart()
                except UserError as worse:
                    raise UserError(f"{error}; {worse}", code=Exit.SYSTEM) from None
            raise
        return self._restart if was_there else None

    def _restart(self) -> None:
        try:
            if not self.restart:
                raise UserError("the command that started it is not known")
            for command in self.restart:
                call(command)
        except BaseException as error:
            why = f"{self.map_mount} is no longer guarded: {error}"
            raise UserError(f"{why}; {seal_or_unmount(self.source)}", code=Exit.SYSTEM) from None


@dataclass(frozen=True)
class UnmountDead:
    """Unmounts a dead view: one whose daemon is gone."""

    path: str
    guard: MountInfo

    def describe(self) -> str:
        """Return the command."""
        return f"umount --lazy -- {shlex.quote(self.path)}"

    def do(self) -> None:
        """Unmount the view lazily; no process can use it any more."""
        unmount(self.guard, lazy=True)


@dataclass(frozen=True)
class RemoveLid:
    """Removes the lid that a daemon has left on a view's mount point."""

    map_mount: str

    def describe(self) -> str:
        """Return the command."""
        return f"umount {shlex.quote(self.map_mount)}  # the lid"

    def do(self) -> None:
        """Remove the lid; a guard that an undo starts puts on its own."""
        lid.remove_at(self.map_mount)


@dataclass(frozen=True)
class UnmountShare:
    """Unmounts a share, and the seal that a daemon has left on it."""

    target: str
    share: MountInfo
    mount_again: tuple[str, ...]
    is_sealed: bool

    def describe(self) -> str:
        """Return the command."""
        return f"umount -- {shlex.quote(self.target)}"

    def do(self) -> Undo:
        """Unmount the share. Fails if it is busy."""
        unmount_share(self.share)
        again = MountShare((self.mount_again,), self.target, self.is_sealed)

        def undo() -> None:
            again.do()

        return undo


@dataclass(frozen=True)
class Unseal:
    """Removes the seal that a daemon has left on a share that stays mounted."""

    source: str

    def describe(self) -> str:
        """Return the command."""
        return f"umount {shlex.quote(self.source)}  # the seal"

    def do(self) -> Undo | None:
        """Remove the seal; the undo seals the share again."""
        if not seal.is_sealed(self.source):
            return None
        remove_seals(self.source)

        def undo() -> None:
            seal_or_unmount(self.source)

        return undo
