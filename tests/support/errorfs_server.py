"""The server of ``errorfs``: a directory passed through FUSE, but for the faults in force.

``python -m tests.support.errorfs_server DIRECTORY MOUNTPOINT CONTROL [--fold]``. The file
``CONTROL`` holds the faults by number, as JSON; those that were met are noted in ``CONTROL.hits``.
"""

import errno
import json
import os
import stat
import sys
import unicodedata
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext

from gitguardfs.linux import syscalls
from tests.support.errorfs import ROOT

_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FD = b"/proc/self/fd/%d"


class Faults:
    """The server's side of the control file."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._seen: dict[int, int] = {}
        self._hits = open(control.with_suffix(".hits"), "ab", buffering=0)  # noqa: SIM115

    def _in_force(self) -> dict[int, dict[str, Any]]:
        try:
            text = self._control.read_text()
        except FileNotFoundError:
            return {}
        return {int(number): fault for number, fault in json.loads(text).items()}

    def meet(self, request: str, names: Iterable[str]) -> tuple[int, dict[str, Any]] | None:
        """The first fault that this request meets, with its number."""
        for number, fault in self._in_force().items():
            if request not in fault["requests"]:
                continue
            if fault["name"] is not None and fault["name"] not in names:
                continue
            self._seen[number] = self._seen.get(number, 0) + 1
            if fault["nth"] in (0, self._seen[number]):
                hit = json.dumps([number, request, next(iter(names), "")])
                self._hits.write(hit.encode() + b"\n")
                return number, fault
        return None

    @asynccontextmanager
    async def met_by(self, request: str, *paths: str) -> AsyncIterator[None]:
        """Carry the request out in the body: a fault comes before it, instead of it or after it."""
        names = [name for path in paths for name in (path.rpartition("/")[2], path)]
        met = self.meet(request, names)
        if met is None:
            yield
            return
        number, fault = met
        while fault["held"] and number in self._in_force():
            await trio.sleep(0.005)
        if fault["error"] and not fault["done"]:
            raise FUSEError(fault["error"])
        yield
        if fault["error"]:
            raise FUSEError(fault["error"])


class _Node:
    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        """Where it was last looked up."""
        self.lookups = 0


def _folded(name: bytes) -> str:
    text = unicodedata.normalize("NFKC", name.decode(errors="surrogateescape")).casefold()
    return text.rstrip(". ") or text  # as FAT does


class ErrorFiles(pyfuse3.Operations):
    """The passthrough. Nodes are O_PATH descriptors, by inode number."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, root: str, faults: Faults, fold: bool) -> None:
        super().__init__()
        self._faults = faults
        self._fold = fold
        node = _Node(os.open(root, _NODE), ROOT)
        self._root = os.fstat(node.fd).st_ino
        self._nodes = {pyfuse3.ROOT_INODE: node}
        self._listed: dict[int, list[bytes]] = {}
        self._open: dict[int, _Node] = {}

    # What all have in common

    def _node(self, inode: int) -> _Node:
        if inode not in self._nodes:
            raise FUSEError(errno.ESTALE)
        return self._nodes[inode]

    def _path(self, parent: int, name: bytes) -> str:
        path = self._node(parent).path
        return os.fsdecode(name) if path == ROOT else f"{path}/{os.fsdecode(name)}"

    def _name(self, parent: int, name: bytes) -> bytes:
        """Return the spelling of the name in the directory."""
        if not self._fold:
            return name
        for other in os.listdir(_FD % self._node(parent).fd):
            if _folded(other) == _folded(name):
                return other
        return name

    def _attributes(self, st: os.stat_result) -> EntryAttributes:
        entry = EntryAttributes()
        for name in (
            "st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blocks",
            "st_blksize", "st_atime_ns", "st_mtime_ns", "st_ctime_ns",
        ):  # fmt: skip
            setattr(entry, name, getattr(st, name))
        entry.st_ino = pyfuse3.ROOT_INODE if st.st_ino == self._root else st.st_ino
        entry.entry_timeout = entry.attr_timeout = 0
        return entry

    def _entry(self, parent: int, name: bytes) -> EntryAttributes:
        """Look up what is there, and count that."""
        fd = os.open(self._name(parent, name), _NODE, dir_fd=self._node(parent).fd)
        entry = self._attributes(os.fstat(fd))
        inode = int(entry.st_ino)
        if inode in self._nodes:
            os.close(fd)
        else:
            self._nodes[inode] = _Node(fd, "")
        node = self._nodes[inode]
        node.path = self._path(parent, name)
        node.lookups += 1
        return entry

    @asynccontextmanager
    async def _asked(self, request: str, *paths: str) -> AsyncIterator[None]:
        try:
            async with self._faults.met_by(request, *paths):
                yield
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None

    def _handle(self, node: _Node, fd: int) -> int:
        self._open[fd] = node
        return fd

    # Names and attributes

    async def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        async with self._asked("LOOKUP", self._path(parent_inode, name)):
            return self._entry(parent_inode, name)
        raise AssertionError

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for inode, times in inode_list:
            node = self._nodes.get(inode)
            if node is None or inode == pyfuse3.ROOT_INODE:
                continue
            node.lookups -= times
            if node.lookups <= 0:
                os.close(self._nodes.pop(inode).fd)

    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        node = self._node(inode)
        async with self._asked("GETATTR", node.path):
            return self._attributes(os.fstat(node.fd))
        raise AssertionError

    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        node = self._node(inode)
        path = _FD % node.fd
        async with self._asked("SETATTR", node.path):
            if fields.update_size:
                os.truncate(path if fh is None else fh, attr.st_size)
            if fields.update_uid or fields.update_gid:
                uid = attr.st_uid if fields.update_uid else -1
                os.chown(path, uid, attr.st_gid if fields.update_gid else -1)
            if fields.update_mode:
                os.chmod(path, stat.S_IMODE(attr.st_mode))
            if fields.update_atime or fields.update_mtime:
                now = os.fstat(node.fd)
                atime = attr.st_atime_ns if fields.update_atime else now.st_atime_ns
                mtime = attr.st_mtime_ns if fields.update_mtime else now.st_mtime_ns
                os.utime(path, ns=(atime, mtime))
            return self._attributes(os.fstat(node.fd))
        raise AssertionError

    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        node = self._node(inode)
        async with self._asked("READLINK", node.path):
            return os.readlink(b"", dir_fd=node.fd)
        raise AssertionError

    async def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        async with self._asked("ACCESS", self._node(inode).path):
            return True
        raise AssertionError

    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        data = pyfuse3.StatvfsData()
        async with self._asked("STATFS", ROOT):
            have = os.statvfs(self._nodes[pyfuse3.ROOT_INODE].fd)
            for name in (
                "f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail",
                "f_files", "f_ffree", "f_favail", "f_namemax",
            ):  # fmt: skip
                setattr(data, name, getattr(have, name))
        return data

    # Names that come, go or move

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        async with self._asked("MKNOD", self._path(parent_inode, name)):
            spelt, parent = self._name(parent_inode, name), self._node(parent_inode)
            os.mknod(spelt, mode, rdev, dir_fd=parent.fd)
            return self._entry(parent_inode, name)
        raise AssertionError

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        async with self._asked("MKDIR", self._path(parent_inode, name)):
            spelt, parent = self._name(parent_inode, name), self._node(parent_inode)
            os.mkdir(spelt, stat.S_IMODE(mode), dir_fd=parent.fd)
            return self._entry(parent_inode, name)
        raise AssertionError

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        async with self._asked("SYMLINK", self._path(parent_inode, name)):
            spelt, parent = self._name(parent_inode, name), self._node(parent_inode)
            os.symlink(target, spelt, dir_fd=parent.fd)
            return self._entry(parent_inode, name)
        raise AssertionError

    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        async with self._asked("LINK", self._path(new_parent_inode, new_name)):
            spelt, parent = self._name(new_parent_inode, new_name), self._node(new_parent_inode)
            os.link(_FD % self._node(inode).fd, spelt, dst_dir_fd=parent.fd, follow_symlinks=True)
            return self._entry(new_parent_inode, new_name)
        raise AssertionError

    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        async with self._asked("UNLINK", self._path(parent_inode, name)):
            os.unlink(self._name(parent_inode, name), dir_fd=self._node(parent_inode).fd)

    async def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        async with self._asked("RMDIR", self._path(parent_inode, name)):
            os.rmdir(self._name(parent_inode, name), dir_fd=self._node(parent_inode).fd)

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        paths = self._path(parent_inode_old, name_old), self._path(parent_inode_new, name_new)
        async with self._asked("RENAME", *paths):
            syscalls.renameat2(
                self._node(parent_inode_old).fd, self._name(parent_inode_old, name_old),
                self._node(parent_inode_new).fd, self._name(parent_inode_new, name_new), flags,
            )  # fmt: skip

    # Files

    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        node = self._node(inode)
        async with self._asked("OPEN", node.path):
            kept = flags & ~(os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL)
            return FileInfo(fh=self._handle(node, os.open(_FD % node.fd, kept)))
        raise AssertionError

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        async with self._asked("CREATE", self._path(parent_inode, name)):
            spelt, parent = self._name(parent_inode, name), self._node(parent_inode)
            flags |= os.O_CREAT | os.O_NOFOLLOW
            fd = os.open(spelt, flags, stat.S_IMODE(mode), dir_fd=parent.fd)
            entry = self._entry(parent_inode, name)
            return FileInfo(fh=self._handle(self._node(int(entry.st_ino)), fd)), entry
        raise AssertionError

    async def read(self, fh: int, off: int, size: int) -> bytes:
        async with self._asked("READ", self._open[fh].path):
            return os.pread(fh, size, off)
        raise AssertionError

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        async with self._asked("WRITE", self._open[fh].path):
            return os.pwrite(fh, buf, off)
        raise AssertionError

    async def flush(self, fh: int) -> None:
        async with self._asked("FLUSH", self._open[fh].path):
            pass

    async def fsync(self, fh: int, datasync: bool) -> None:
        async with self._asked("FSYNC", self._open[fh].path):
            pass

    async def release(self, fh: int) -> None:
        async with self._asked("RELEASE", self._open[fh].path):
            del self._open[fh]
            os.close(fh)

    # Directories

    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        node = self._node(inode)
        async with self._asked("OPENDIR", node.path):
            return self._handle(node, os.open(_FD % node.fd, os.O_RDONLY | os.O_DIRECTORY))
        raise AssertionError

    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        async with self._asked("READDIR", self._open[fh].path):
            if start_id == 0:
                self._listed[fh] = sorted(os.listdir(_FD % fh))
            inode = next(i for i, node in self._nodes.items() if node is self._open[fh])
            for index, name in enumerate(self._listed[fh][start_id:], start_id + 1):
                try:
                    entry = self._entry(inode, name)
                except FileNotFoundError:
                    continue
                if not pyfuse3.readdir_reply(token, name, entry, index):
                    self._nodes[int(entry.st_ino)].lookups -= 1
                    break

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        async with self._asked("FSYNCDIR", self._open[fh].path):
            pass

    async def releasedir(self, fh: int) -> None:
        self._listed.pop(fh, None)
        del self._open[fh]
        os.close(fh)

    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        raise FUSEError(errno.ENOSYS)

    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[bytes]:
        raise FUSEError(errno.ENOSYS)


def _main(directory: str, path: str, control: str, *options: str) -> None:
    os.umask(0)
    files = ErrorFiles(directory, Faults(Path(control)), "--fold" in options)
    pyfuse3.init(files, path, {"fsname=errorfs", "allow_other", "default_permissions"})
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
