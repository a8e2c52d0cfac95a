"""The system calls on the source, whose objects only this module, ``ninep``, ``descriptors`` name.

Each call is relative to a directory's descriptor and takes one component. It follows no symlink at
that component, so replacing a directory by a symlink leads no call elsewhere. An object of which
the daemon holds a descriptor is reached by ``/proc/self/fd/N``: that link leads to the object
itself, not along a path.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from stat import S_IFDIR, S_IFLNK, S_IFREG
from typing import Any

from gitguardfs.fs.descriptors import OPEN_NODE, DescriptorCache
from gitguardfs.linux import syscalls
from gitguardfs.linux.reserved_blocks import RootsBlocks
from gitguardfs.names import repository

NO_BLOCKING = os.O_NONBLOCK | os.O_NOCTTY
"""Flags for opening by name: the host may have put a FIFO or a terminal there; never wait."""

DOTGIT = b".git"
_HERE = b"/proc/self/fd/%d"


class Source:
    """System calls on a source whose descriptors hold objects (``ninep.NinepSource``: paths).

    Every method raises OSError.
    """

    closes_at_once = False
    """Whether close(2) of a file waits for no server."""

    def __init__(
        self, descriptors: DescriptorCache, is_local: Callable[[int], bool], noatime: bool = False
    ) -> None:
        """Take ``is_local``, which says of a st_dev whether no server is waited for.

        This machine's clock then stamps its files, ``..`` of a directory leads to its present
        parent, and an open descriptor keeps an inode number from being reused. With ``noatime``,
        the access times of files and directories that exist stay as they are.
        """
        self._descriptors = descriptors
        self.is_local = is_local
        self._noatime = noatime

    # Reading

    def stat(self, fd: int) -> os.stat_result:
        """Return the attributes of an open object."""
        return os.fstat(fd)

    def stat_at(self, dir_fd: int, name: bytes) -> os.stat_result:
        """Return the attributes of an entry; of a symlink itself, never of its target."""
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def find_at(self, dir_fd: int, name: bytes) -> os.stat_result | None:
        """Return ``stat_at``, or None if there is no entry. Raises every other OSError."""
        try:
            return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def mode_at(self, dir_fd: int, name: bytes) -> int | None:
        """Return the st_mode of an entry; None if there is none. Raises every other OSError."""
        st = self.find_at(dir_fd, name)
        return None if st is None else st.st_mode

    def find_of_any_length(self, dir_fd: int, name: bytes) -> os.stat_result | None:
        """Return the result of ``find_at``; also None if the name is too long for any entry."""
        try:
            return self.find_at(dir_fd, name)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return None
            raise

    def is_at(self, dir_fd: int, name: bytes, st: os.stat_result) -> bool:
        """Return whether ``name`` in the directory is the object that ``st`` is of."""
        other = self.find_at(dir_fd, name)
        return other is not None and os.path.samestat(other, st)

    def is_folded(
        self, dir_fd: int, name: bytes, other: bytes, means_other: Callable[[bytes], bool]
    ) -> bool:
        """Return whether ``other`` leads to the entry called ``name``.

        ``means_other`` says of the name of an entry whether ``other`` may lead there.
        """
        st = self.find_at(dir_fd, name)
        return st is not None and self.is_at(dir_fd, other, st)

    def arrived(self, dir_fd: int, name: bytes, moved: os.stat_result) -> os.stat_result:
        """Return the attributes of what a rename of ``moved`` has brought to ``name``.

        It is another object, maybe with the same number, if another guard has replaced ``moved``
        before.
        """
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def check_is_file(self, dir_fd: int, name: bytes) -> None:
        """Check that an entry at which a file is open is no directory. Raises OSError(ESTALE)."""

    def check_type(self, dir_fd: int, name: bytes, st: os.stat_result) -> None:
        """Check that an entry has the type that ``st`` says. Raises OSError(ESTALE)."""

    def is_taken_only_here(self, dir_fd: int, name: bytes) -> bool:
        """Return whether a name is taken for this machine's kernel, and free for the server."""
        return False

    def holds_repository(self, fd: int) -> bool:
        """Return whether a directory is treated as ``.git`` itself.

        Looks up git's own spellings: the source's file system does the folding. Raises OSError
        if the source fails; the caller must then refuse.
        """
        if self.find_at(fd, repository.HEAD) is None:
            return False
        return repository.is_repository(partial(self.mode_at, fd))

    def is_repository_at(self, dir_fd: int, name: bytes) -> bool:
        """Return whether an entry is a directory that is treated as ``.git`` itself."""
        try:
            fd = self.open_node(dir_fd, name)
        except FileNotFoundError:
            return False
        try:
            return self.holds_repository(fd)
        finally:
            os.close(fd)

    def btime_ns(self, fd: int) -> int:
        """Return the birth time in nanoseconds; 0 if the file system has none."""
        return syscalls.birth_ns(fd)

    def names(self, fd: int) -> list[bytes]:
        """Return the names in a directory, without ``.`` and ``..``."""
        if self._noatime:
            return self.some_names(fd, None)
        return self._descriptors.with_room(os.listdir, _HERE % fd)

    def some_names(self, fd: int, limit: int | None) -> list[bytes]:
        """Return at most ``limit`` names in a directory; None: all."""
        with self._entries(fd) as entries:
            return [os.fsencode(entry.name) for entry in islice(entries, limit)]

    def typed_names(self, fd: int) -> dict[bytes, tuple[int, int]]:
        """Return type (S_IFMT) and inode number by name; S_IFDIR for all but files and symlinks."""
        found = {}
        with self._entries(fd) as entries:
            for entry in entries:
                name, file_type = entry.name, S_IFDIR
                if entry.is_symlink():
                    file_type = S_IFLNK
                elif entry.is_file(follow_symlinks=False):
                    file_type = S_IFREG
                found[name if type(name) is bytes else os.fsencode(name)] = file_type, entry.inode()
        return found

    @contextmanager
    def _entries(self, fd: int) -> Iterator[Iterator[os.DirEntry[Any]]]:
        """Read a directory; names are strings if access times stay."""
        with ExitStack() as stack:
            directory: int | bytes = _HERE % fd
            if self._noatime:
                directory = self.open_directory(fd)
                stack.callback(os.close, directory)
            yield stack.enter_context(self._descriptors.with_room(os.scandir, directory))

    def readlink(self, fd: int, name: bytes = b"") -> bytes:
        """Return the text of a symlink: of ``fd``, or of the entry ``name`` in it.

        Raises OSError if it is no symlink: ENOENT for ``fd`` itself, EINVAL for an entry.
        """
        return os.readlink(name, dir_fd=fd)

    def statvfs(self, fd: int) -> os.statvfs_result:
        """Return size and free space of the file system."""
        return os.statvfs(fd)

    # Opening

    def open_node(self, dir_fd: int, name: bytes) -> int:
        """Open an O_PATH descriptor of an entry; of a symlink itself, never of its target."""
        return self._descriptors.open(OPEN_NODE, name, dir_fd)

    def duplicate(self, fd: int) -> int:
        """Return another descriptor of an open object."""
        return self._descriptors.with_room(os.dup, fd)

    def open_file(self, fd: int, flags: int) -> int:
        """Open the regular file behind an O_PATH descriptor, with other flags."""
        return self._open(flags | os.O_CLOEXEC, _HERE % fd, None)

    def open_file_at(self, dir_fd: int, name: bytes, flags: int) -> int:
        """Open an entry that was a regular file; the caller checks that it still is that file."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | NO_BLOCKING
        return self._open(flags, name, dir_fd)

    def _open(self, flags: int, name: bytes, dir_fd: int | None) -> int:
        if self._noatime:
            with suppress(PermissionError):  # the kernel allows it to root and to the owner
                return self._descriptors.open(flags | os.O_NOATIME, name, dir_fd)
        return self._descriptors.open(flags, name, dir_fd)

    def open_directory(self, fd: int) -> int:
        """Open a directory for fsync, or to read it."""
        return self._open(os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, _HERE % fd, None)

    def open_parent(self, fd: int) -> int:
        """Open the directory above, with O_PATH. Raises OSError(EXDEV) if a mount is between."""
        return self._descriptors.with_room(syscalls.open_parent, fd)

    def name_of(self, dir_fd: int, st: os.stat_result) -> bytes | None:
        """Return the name of the directory of ``st`` in the one above; None if it is not there."""
        with self._entries(dir_fd) as entries:
            alike = [os.fsencode(entry.name) for entry in entries if entry.inode() == st.st_ino]
        return next((name for name in alike if self.is_at(dir_fd, name, st)), None)

    # Adding and removing names

    def create(self, dir_fd: int, name: bytes, flags: int, mode: int) -> int:
        """Create and open a regular file. Raises OSError(EEXIST) if the name is in use."""
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return self._descriptors.open(flags, name, dir_fd, mode)

    def create_nameless(self, dir_fd: int, flags: int, mode: int) -> int:
        """Create and open a regular file without a name. Raises OSError(EOPNOTSUPP)."""
        return self._descriptors.open(
            flags | os.O_TMPFILE | os.O_CLOEXEC, _HERE % dir_fd, None, mode
        )

    def mkdir(self, dir_fd: int, name: bytes, mode: int) -> None:
        """Create a directory."""
        os.mkdir(name, mode, dir_fd=dir_fd)

    def mknod(self, dir_fd: int, name: bytes, mode: int, rdev: int) -> None:
        """Create a file, FIFO, socket or device."""
        os.mknod(name, mode, rdev, dir_fd=dir_fd)

    def symlink(self, dir_fd: int, name: bytes, target: bytes) -> None:
        """Create a symlink."""
        os.symlink(target, name, dir_fd=dir_fd)

    def link(self, fd: int, dir_fd: int, name: bytes) -> None:
        """Give the object behind ``fd`` another name."""
        os.link(_HERE % fd, name, dst_dir_fd=dir_fd, follow_symlinks=True)

    def remove(self, dir_fd: int, name: bytes, is_directory: bool) -> None:
        """Remove an entry."""
        if is_directory:
            os.rmdir(name, dir_fd=dir_fd)
        else:
            os.unlink(name, dir_fd=dir_fd)

    def rename(self, old_fd: int, old: bytes, new_fd: int, new: bytes, flags: int) -> None:
        """Rename or exchange entries."""
        if flags:
            syscalls.renameat2(old_fd, old, new_fd, new, flags)
        else:
            os.rename(old, new, src_dir_fd=old_fd, dst_dir_fd=new_fd)

    # Changing attributes

    def chown(self, fd: int, uid: int, gid: int) -> None:
        """Change the owner of the object behind ``fd``; -1 leaves an id unchanged."""
        os.chown(_HERE % fd, uid, gid)

    def chmod(self, fd: int, mode: int) -> None:
        """Change the permission bits of the object behind ``fd``."""
        os.chmod(_HERE % fd, mode)

    def truncate(self, fd: int, size: int, writable: bool) -> None:
        """Set the size of the file behind ``fd``; ``writable``: ``fd`` is open for writing."""
        if writable:
            os.ftruncate(fd, size)
        else:
            os.truncate(_HERE % fd, size)

    def utimens(self, fd: int, atime_ns: int | None, mtime_ns: int | None) -> None:
        """Set times in nanoseconds; None leaves one unchanged, NOW sets the source's clock."""
        syscalls.utimens(_HERE % fd, atime_ns, mtime_ns)

    def ioctl(self, fd: int, is_directory: bool, command: int, data: bytes) -> bytes:
        """Make a call of ioctl(2) on the object behind ``fd``; return as many bytes as were given.

        Raises OSError(ENOTTY) if the file system does not know the command.
        """
        flags = os.O_DIRECTORY if is_directory else os.O_NONBLOCK
        opened = self.open_file(fd, os.O_RDONLY | flags)
        try:
            return fcntl.ioctl(opened, command, data)
        finally:
            os.close(opened)

    # Extended attributes

    def getxattr(self, fd: int, name: bytes) -> bytes:
        """Return the value of an extended attribute."""
        return os.getxattr(_HERE % fd, name)

    def listxattr(self, fd: int) -> list[bytes]:
        """Return the names of the extended attributes."""
        return [os.fsencode(name) for name in os.listxattr(_HERE % fd)]

    def setxattr(self, fd: int, name: bytes, value: bytes, flags: int) -> None:
        """Set an extended attribute."""
        os.setxattr(_HERE % fd, name, value, flags)

    def removexattr(self, fd: int, name: bytes) -> None:
        """Remove an extended attribute."""
        os.removexattr(_HERE % fd, name)

    # Writing open files, on any thread

    @staticmethod
    def write(fd: int, offset: int, data: bytes) -> int:
        """Write at ``offset``, or at the end if ``fd`` has O_APPEND (pwrite(2), "BUGS").

        Returns the number of bytes written; fewer than given if an error, such as a full disk, came
        after some were written. Raises OSError if none were written.
        """
        done = 0
        while done < len(data):
            rest = data[done:] if done else data
            try:
                done += os.pwrite(fd, rest, offset + done)
            except OSError:
                if done:
                    return done
                raise
        return done

    @staticmethod
    def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
        """Allocate, free or zero a range (fallocate(2))."""
        syscalls.fallocate(fd, mode, offset, length)

    @staticmethod
    def copy(fd: int, to_fd: int, length: int, offset: int, to_offset: int) -> int:
        """Copy a range between files of one file system; return the number of bytes copied."""
        return os.copy_file_range(fd, to_fd, length, offset, to_offset)


class OwnDisk(Source):
    """System calls on a disk of the guest's own, which only the daemon's calls change.

    They leave the blocks alone which the disk reserves for root. What they make may belong to
    nobody until the caller gives it away.
    """

    _TAKING = (
        "write", "create", "create_nameless", "mkdir", "mknod", "symlink", "link", "rename",
        "setxattr",
    )  # fmt: skip
    """The calls that may take blocks: for content, for names, for values."""
    _TAKING_MANY = ("fallocate", "copy")
    """The calls that may take more than what is ample, alone or several at a time."""

    def __init__(self, descriptors: DescriptorCache, noatime: bool, root_fd: int) -> None:
        super().__init__(descriptors, lambda _: True, noatime)
        blocks = RootsBlocks(root_fd)
        for name in self._TAKING:
            setattr(self, name, partial(blocks.left_alone, getattr(self, name)))
        for name in self._TAKING_MANY:
            setattr(self, name, partial(blocks.left_alone_by_many, getattr(self, name)))
