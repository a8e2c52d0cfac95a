"""A small file system in memory on which reading and syncing the file ``slow`` has to wait.

``python -m tests.support.slowfs MOUNTPOINT GATE``: such a request makes the file ``GATE.waiting``
and is answered when ``GATE`` exists. It stands in for a server that has stopped answering, so
that a test decides how long a call on the source takes.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext

from tests.support.mounting import LIMIT, until

REPOSITORY = Path(__file__).resolve().parents[2]
SLOW = b"slow"
CONTENT = b"worth waiting for\n" * 100


@dataclass(frozen=True)
class Slow:
    """A slow file system in use."""

    path: Path
    gate: Path

    def somebody_waits(self) -> bool:
        """Return whether a request waits at the gate."""
        return self.gate.with_suffix(".waiting").exists()

    def release(self) -> None:
        """Let the requests that wait, and all later ones, through."""
        self.gate.touch()


@contextmanager
def slowfs(path: Path, gate: Path) -> Iterator[Slow]:
    """Mount it at ``path`` with the files ``slow`` and ``quick``, for all users."""
    with served(path, "tests.support.slowfs", path, gate):
        slow = Slow(path, gate)
        try:
            yield slow
        finally:
            slow.release()


@contextmanager
def served(path: Path, module: str, *arguments: Path | str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a file system of ours, a module, that mounts itself at ``path``."""
    path.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=REPOSITORY)
    try:
        until(lambda: process.poll() is not None or os.path.ismount(path), f"{module} is mounted")
        yield process
    finally:
        subprocess.run(["umount", "-l", path], check=False, capture_output=True)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class SlowFiles(pyfuse3.Operations):
    """One directory of files in memory."""

    enable_writeback_cache = False

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self._gate = gate
        self._names: dict[bytes, int] = {SLOW: 2, b"quick": 3}
        self._content: dict[int, bytearray] = {2: bytearray(CONTENT), 3: bytearray(b"quick\n")}
        self._owners: dict[int, tuple[int, int]] = {}
        self._modes: dict[int, int] = {}

    async def _pass_gate(self, inode: int) -> None:
        if inode != self._names.get(SLOW):
            return
        self._gate.with_suffix(".waiting").touch()
        while not self._gate.exists():
            await trio.sleep(0.01)

    def _attributes(self, inode: int) -> EntryAttributes:
        entry = EntryAttributes()
        is_root = inode == pyfuse3.ROOT_INODE
        if not is_root and inode not in self._content:
            raise FUSEError(errno.ENOENT)
        entry.st_ino = inode
        kind, mode = (stat.S_IFDIR, 0o777) if is_root else (stat.S_IFREG, 0o666)
        entry.st_mode = kind | self._modes.get(inode, mode)
        entry.st_uid, entry.st_gid = self._owners.get(inode, (0, 0))
        entry.st_nlink = 1
        entry.st_size = 0 if is_root else len(self._content[inode])
        entry.entry_timeout = entry.attr_timeout = 0
        return entry

    async def getattr(self, inode: int, ctx: RequestContext | None = None) -> EntryAttributes:
        return self._attributes(inode)

    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        uid, gid = self._owners.get(inode, (0, 0))
        if fields.update_uid:
            uid = attr.st_uid
        if fields.update_gid:
            gid = attr.st_gid
        self._owners[inode] = uid, gid
        if fields.update_mode:
            self._modes[inode] = stat.S_IMODE(attr.st_mode)
        if fields.update_size:
            content = self._content[inode]
            content[:] = content[: attr.st_size].ljust(attr.st_size, b"\0")
        return self._attributes(inode)

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: RequestContext | None = None
    ) -> EntryAttributes:
        if name in (b".", b".."):
            return self._attributes(pyfuse3.ROOT_INODE)
        if name not in self._names:
            raise FUSEError(errno.ENOENT)
        return self._attributes(self._names[name])

    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        for name, inode in sorted(self._names.items(), key=lambda item: item[1]):
            if inode > start_id and not pyfuse3.readdir_reply(
                token, name, self._attributes(inode), inode
            ):
                break

    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        return FileInfo(fh=inode)

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        inode = max(self._content) + 1
        self._names[name] = inode
        self._content[inode] = bytearray()
        self._modes[inode] = stat.S_IMODE(mode)
        return FileInfo(fh=inode), self._attributes(inode)

    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        if self._names.pop(name, None) is None:
            raise FUSEError(errno.ENOENT)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        await self._pass_gate(fh)
        return bytes(self._content[fh][off : off + size])

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        content = self._content[fh]
        content.extend(bytes(max(0, off + len(buf) - len(content))))
        content[off : off + len(buf)] = buf
        return len(buf)

    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._pass_gate(fh)

    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        raise FUSEError(errno.ENOSYS)

    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[bytes]:
        raise FUSEError(errno.ENOSYS)


def _main(path: str, gate: str) -> None:
    options = {"fsname=slowfs", "allow_other", "default_permissions"}
    pyfuse3.init(SlowFiles(Path(gate)), path, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
