"""The process that repeats the host's changes in a view, so that its kernel tells who watches.

Each call that it makes comes to the daemon as a request, and that answers without doing anything.
The process has two rights of root's, on the view alone: its root is a private mount of the view.
It gets its calls by a socket, and answers each with an errno.
"""

from __future__ import annotations

import errno
import marshal
import os
import signal
import socket
import sys
from stat import S_IFREG

from gitguardfs.base.constants import HELPER_GID
from gitguardfs.base.protocol import NOW
from gitguardfs.linux import syscalls

UNLINK, RMDIR, MKNOD, MKDIR, SYMLINK, RENAME, TOUCH, SET_TIMES = range(8)
"""The calls. TOUCH sets a file's mtime, opens and closes it (MODIFY, CLOSE_WRITE). SET_TIMES sets
both times (ATTRIB)."""
LONGEST = 1 << 15
"""Bytes of a message, at most: two paths and two names."""
_CAP_DAC_OVERRIDE, _CAP_FOWNER = 1, 3
_PRIVATE = 0o600
_WRITE = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
"""O_NONBLOCK: a user may have put a FIFO there."""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def main() -> None:
    """Serve the socket that is standard input; the arguments are the view's path and its device."""
    path, device = sys.argv[-2:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    syscalls.end_with_parent()
    root = _enter(os.fsencode(path), int(device))
    os.umask(0)
    # From here on users of the view choose all files: an exception that is shown, and the end of
    # the interpreter, could read a source file or import a module of theirs.
    try:
        _serve(root)
    finally:
        os._exit(0)


def _serve(root: int) -> None:
    with socket.socket(fileno=0) as calls:
        calls.send(bytes(4))  # ready
        while message := calls.recv(LONGEST):
            try:
                _make(root, *marshal.loads(message))  # noqa: S302  # the daemon's own
                number = 0
            except OSError as error:
                number = error.errno or errno.EIO
            calls.send(number.to_bytes(4, "little"))


def _enter(path: bytes, device: int) -> int:
    """Leave all but the view, and all rights but two; return a descriptor of the view's root."""
    os.setgroups([])
    os.setresgid(HELPER_GID, HELPER_GID, HELPER_GID)
    syscalls.unshare_mounts()  # first: a copy of a shared mount is shared, and can be no root
    tree = syscalls.clone_tree(path, recursive=False)
    if syscalls.device_of(tree) != device:
        raise SystemExit(f"something else is mounted at {os.fsdecode(path)}")
    target = os.open(b"/", _DIRECTORY)
    syscalls.attach_tree(tree, target)
    os.fchdir(tree)
    syscalls.make_root_here()
    os.chdir("/")
    os.close(target)
    rights = syscalls.capget()
    rights.keep(_CAP_DAC_OVERRIDE, _CAP_FOWNER)
    syscalls.capset(rights)
    syscalls.forbid_more_rights()
    return tree


def _make(root: int, call: int, where: bytes, name: bytes, *more: bytes | int) -> None:
    """Make one call on a name in the directory ``where``. Raises OSError."""
    parent = syscalls.open_beneath(root, where, _DIRECTORY)
    try:
        if call == RENAME:
            where, new_name = (os.fsencode(each) for each in more)  # type: ignore[arg-type]
            target = syscalls.open_beneath(root, where, _DIRECTORY)
            try:
                os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=target)
            finally:
                os.close(target)
        elif call == UNLINK:
            os.unlink(name, dir_fd=parent)
        elif call == RMDIR:
            os.rmdir(name, dir_fd=parent)
        elif call == SYMLINK:
            os.symlink(b"?", name, dir_fd=parent)
        elif call == MKDIR:
            os.mkdir(name, _PRIVATE, dir_fd=parent)
        elif call == MKNOD:
            (file_type,) = more
            os.mknod(name, int(file_type) | _PRIVATE, dir_fd=parent)
            if file_type == S_IFREG:
                _open_and_close(parent, name)
        else:
            os.fchdir(parent)
            syscalls.utimens(name, NOW if call == SET_TIMES else None, NOW)
            if call == TOUCH:
                _open_and_close(parent, name)
    finally:
        os.close(parent)


def _open_and_close(parent: int, name: bytes) -> None:
    """Open a file as if to write it, and close it."""
    try:
        fd = os.open(name, _WRITE, dir_fd=parent)
    except OSError:  # a running program; one that the kernel reads by itself, opened otherwise
        return
    os.close(fd)
