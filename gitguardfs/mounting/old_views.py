"""Finds users' processes that go on using files of a view that has ended.

The kernel reads and writes by itself a file that a view has lent to it (FUSE_PASSTHROUGH). Who has
such a file open keeps it when the view ends, by the rules of that view: the next view must not
start with other rules then. The kernel does not say which files are lent. So each view of root's
is noted in ``NOTES``, by the minor number of its device. No other file system gets that number
while a file of the view is open.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass

from gitguardfs.base.constants import FSTYPE
from gitguardfs.base.errors import os_error
from gitguardfs.base.paths import is_inside
from gitguardfs.linux import mountinfo, processes, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import bypasses, guards

NOTES = "/run/gitguardfs.views"
"""Root's directory of the notes. A boot empties it, and ends all views."""
END_THEM = "end them, then start again; or take the former options, or the option allow-holders"
_ANONYMOUS = 1 << 20
"""The first device number in fusectl that has a major number: that of a block device."""


@dataclass(frozen=True)
class Access:
    """The facts about a view that decide which files of its source users open, and how."""

    root: str
    """A text by which the root directory of the source is recognized."""
    source: str
    mountpoint: str
    options: tuple[str, ...]
    """The options that were given, as in ``-o``, unquoted."""

    def may_differ_from(self, note: str) -> bool:
        """Return whether a noted view may have lent files of this source by other rules."""
        try:
            lends, root, source, mountpoint, *options = note.split("\0")
        except ValueError:
            return True  # its daemon could not write it
        if not lends:
            return False
        if (root, source, mountpoint) == (self.root, self.source, self.mountpoint):
            return not guards.same_access(options, self.options)
        is_around = is_inside(source, self.source) or is_inside(self.source, source)
        return root == self.root or is_around


def note(view: MountInfo, access: Access, lends_files: bool) -> None:
    """Note a view that was mounted just now; remove the notes of views that are gone.

    Raises OSError. A view without a note counts as one with other rules.
    """
    os.makedirs(NOTES, 0o700, exist_ok=True)
    noted = os.listdir(NOTES)  # first: another daemon may mount its view now, and note that
    for gone in set(noted).difference(_views()):
        with suppress(FileNotFoundError):
            os.unlink(f"{NOTES}/{gone}")
    path = f"{NOTES}/{os.minor(view.st_dev)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        lends = "lends" if lends_files else ""
        text = "\0".join((lends, access.root, access.source, access.mountpoint, *access.options))
        if os.write(fd, os.fsencode(text)) < len(os.fsencode(text)):
            os.ftruncate(fd, 0)
            raise os_error(errno.ENOSPC, path)
    finally:
        os.close(fd)


def describe(access: Access) -> tuple[str, str]:
    """Return a message that names who uses files of ended views, and a hint; both empty for nobody.

    ``access`` is that of the view to come. Views that gave the same access do not count.
    """
    try:
        found = _find(access)
    except OSError as error:
        return bypasses.failed("cannot find who has files of an earlier view open", error)
    if not found:
        return "", ""
    files = f"files of {access.source} open by the rules of an earlier view"
    return f"processes have {files}: {bypasses.named(found)}", END_THEM


def _find(access: Access) -> list[str]:
    # No request is sent to these: they need not answer.
    served = {daemon.view for daemon in guards.servers()}
    others = {
        mount.device
        for mount in mountinfo.listed()
        if mount.fstype != FSTYPE or mount.identity in served
    }
    notes = {number: _note_of(number) for number in _views() if f"0:{number}" not in others}
    numbers = [number for number, text in notes.items() if access.may_differ_from(text)]
    if not numbers:
        return []
    is_any_noted = any(notes[number] for number in numbers)
    views = _EndedViews({os.makedev(0, int(number)) for number in numbers}, is_any_noted)
    return bypasses.find_holders({f"0:{number}" for number in numbers}, views.kind_of)


def _views() -> list[str]:
    """Return the device numbers of root's FUSE file systems that still exist, ended ones too."""
    control = syscalls.new_mount("fusectl", "none", syscalls.MOUNT_ATTR_NOSUID, {})
    try:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=control)
    finally:
        os.close(control)
    found = []
    try:
        for number in os.listdir(directory):
            with suppress(FileNotFoundError):
                is_root_s = os.stat(number, dir_fd=directory).st_uid == 0
                found += [number] if is_root_s and int(number) < _ANONYMOUS else []
    finally:
        os.close(directory)
    return found


def _note_of(number: str) -> str:
    """Return the note of a view; "" if there is none, as for another FUSE file system of root's."""
    try:
        with open(f"{NOTES}/{number}", "rb") as file:
            return os.fsdecode(file.read())
    except FileNotFoundError:
        return ""


class _EndedViews:
    """Those of some FUSE file systems of root's whose daemon has ended."""

    def __init__(self, devices: set[int], has_any: bool) -> None:
        """``has_any`` says that one of them is known to be a view that has ended."""
        self._devices = devices
        self._has_any = has_any
        self._ended: dict[int, bool] = {}

    def kind_of(self, link: str, what: str, _process: str) -> str:
        """Return the name of what a process holds by a link in /proc, "" if that does not count.

        Open and mapped files count; so do descriptors that may keep such a file open, if there is
        a view that has ended.
        """
        try:
            if "/fd/" in link:
                fields = processes.fdinfo_of(link)
                if self._has_any and _may_keep_others(link, fields):
                    return f"{what}, which may keep others"
                if int(fields[b"flags"], 8) & os.O_PATH:
                    return ""
            fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return ""  # closed meanwhile, or of a process that has ended
        try:
            return what if self._have_file(fd) else ""
        except OSError:
            # The inode is bad: no call on a descriptor works, but a mapping does.
            return what if "/map_files/" in link else ""
        finally:
            os.close(fd)

    def _have_file(self, fd: int) -> bool:
        device = syscalls.device_of(fd)
        if device not in self._devices or bypasses.is_directory(fd):
            return False
        if device not in self._ended:
            self._ended[device] = bypasses.has_ended(fd)
        return self._ended[device]


def _may_keep_others(link: str, fields: dict[bytes, bytes]) -> bool:
    """Return whether descriptors wait in a socket, or belong to an io_uring.

    An io_uring that is in use does not say.
    """
    is_silent = b"UserFiles" not in fields and processes.link_of(link) == "anon_inode:[io_uring]"
    return is_silent or any(fields.get(name, b"0") != b"0" for name in (b"scm_fds", b"UserFiles"))
