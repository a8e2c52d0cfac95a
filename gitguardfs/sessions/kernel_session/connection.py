"""The connection of one mount to the kernel, by /dev/fuse: mounting, replies, notifications."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from contextlib import suppress

from gitguardfs.base.constants import FSTYPE, FUSE_DEVICE
from gitguardfs.linux import syscalls
from gitguardfs.linux.capabilities import CAP_FSETID, CAP_SYS_RESOURCE, NOBODY, Without
from gitguardfs.sessions.base import MountFailed
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.replies import Answer, failed

log = logging.getLogger(__name__)

_FLAGS = {
    "ro": syscalls.MS_RDONLY, "noexec": syscalls.MS_NOEXEC, "noatime": syscalls.MS_NOATIME,
    "sync": syscalls.MS_SYNCHRONOUS, "dirsync": syscalls.MS_DIRSYNC,
}  # fmt: skip
"""Options of mount(8) that are flags of mount(2)."""
_NOT_FOR_THE_KERNEL = ("debug", "dev")
_UNWANTED = (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED)
"""The errors of a reply that nobody waits for: the kernel has withdrawn the request."""


class Connection:
    """An open /dev/fuse."""

    def __init__(self, shows_set_id: bool) -> None:
        """``shows_set_id`` says that the guest's kernel sees set-id bits, and clears them."""
        self.fd = -1
        """Its descriptor; -1 before ``mount`` and after ``close``."""
        taken = () if shows_set_id else (CAP_FSETID,)
        self._writes = Without(*taken)
        self._writes_on_own_disk = Without(*taken, CAP_SYS_RESOURCE, fsuid=NOBODY)

    def mount(self, directory: int, options: set[str]) -> None:
        """Mount on the directory behind a descriptor. Raises MountFailed."""
        flags, data, source, fstype = syscalls.MS_NOSUID, [], "", FSTYPE
        flags |= 0 if "dev" in options else syscalls.MS_NODEV
        for option in sorted(options):
            name, _, value = option.partition("=")
            if name == "fsname":
                source = value
            elif name in _FLAGS:
                flags |= _FLAGS[name]
            elif name not in (*_NOT_FOR_THE_KERNEL, "subtype"):
                data.append(option)
        try:
            self.fd = os.open(FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC)
            data += [f"fd={self.fd}", "rootmode=40000", "user_id=0", "group_id=0"]
            syscalls.mount(source, f"/proc/self/fd/{directory}", fstype, flags, ",".join(data))
        except OSError as error:
            self.close()
            raise MountFailed(str(error)) from None

    def send(self, unique: int, answer: Answer) -> None:
        """Send the reply to a request; EIO instead of one that the kernel does not take."""
        try:
            if isinstance(answer, bytes):
                os.write(self.fd, answer)
            else:
                os.writev(self.fd, answer)
        except OSError as error:
            if error.errno in _UNWANTED or self.fd < 0:
                return
            with suppress(Exception):  # even if a log handler fails, the request is answered
                log.error("the kernel does not take a reply: %s", error.strerror)
            with suppress(OSError):  # EINVAL: the caller still waits
                os.write(self.fd, failed(unique, errno.EIO))

    def invalidate_attributes(self, node: int) -> None:
        """Make the kernel drop the attributes of a node. Raises OSError(ENOENT): it has none."""
        self.invalidate(node, abi.ATTRIBUTES_ONLY)

    def invalidate(self, node: int, offset: int = 0) -> None:
        """Make the kernel drop the attributes and the cached pages of a node. Raises OSError.

        It waits for a file's pages that are being read; a directory's never are.
        """
        os.write(self.fd, invalidating(node, offset))

    def ask_for_unanswered(self) -> None:
        """Have all requests sent again that were read and not answered. Raises OSError."""
        os.write(self.fd, abi.OUT.pack(abi.OUT.size, abi.NOTIFY_RESEND, 0))

    def backing_open(self, fd: int, is_on_own_disk: bool) -> int:
        """Return the number by which the kernel knows a file of the source. Raises OSError.

        The kernel writes to it with the rights of now. Without CAP_FSETID, a write takes the
        set-id bits away: the guest's kernel cannot if it does not see them. On a disk of the
        guest's own, writes leave the blocks alone which the disk reserves for root.
        """
        # The kernel holds what it is given until the last handle is closed: of a descriptor that
        # writes, the source's kernel would not let anybody execute the file so long.
        known = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
        try:
            # A buffer that can be written to: of other bytes, the buffer is what is returned.
            given = bytearray(abi.BACKING_MAP.pack(known, 0, 0))
            with self._writes_on_own_disk if is_on_own_disk else self._writes:
                number: int = fcntl.ioctl(self.fd, abi.BACKING_OPEN, given)
            return number
        finally:
            os.close(known)

    def backing_close(self, number: int) -> None:
        """Let go of a file of the source. Raises OSError."""
        fcntl.ioctl(self.fd, abi.BACKING_CLOSE, number.to_bytes(4, "little"))

    def close(self) -> None:
        """Close the descriptor: the mount is dead then, unless another process has one as well."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def invalidating(node: int, offset: int) -> bytes:
    """Return a notification that makes the kernel drop attributes, and pages from ``offset`` on."""
    size, code = abi.INVAL_INODE_OUT.size, abi.NOTIFY_INVAL_INODE
    return abi.INVAL_INODE_OUT.pack(size, code, 0, node, offset, 0)


def expiring(parent: int, name: bytes) -> bytes:
    """Return a notification that makes the kernel look a name up again."""
    size, code = abi.INVAL_ENTRY_OUT.size + len(name) + 1, abi.NOTIFY_INVAL_ENTRY
    head = abi.INVAL_ENTRY_OUT.pack(size, code, 0, parent, len(name), abi.EXPIRE_ONLY)
    return head + name + b"\0"
