"""A directory whose lock a program has: it lists it into memory that never comes (userfaultfd)."""

import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from tests.support.mounting import LIMIT, until

USERFAULTFD, GETDENTS = {"x86_64": (323, 217), "aarch64": (282, 61)}[platform.machine()]
API, REGISTER, UNREGISTER, WAKE = 0xC018AA3F, 0xC020AA00, 0x8010AA01, 0x8010AA02
MISSING = 1
SIZE = 1 << 16
PROTECTION, MAPPING = 3, 0x22  # to be read and written; private, of no file
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold a directory's lock in the kernel for as long as the block lasts."""
    faults = _libc.syscall(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    assert faults >= 0, os.strerror(ctypes.get_errno())
    fcntl.ioctl(faults, API, struct.pack("QQQ", 0xAA, 0, 0))
    memory = _libc.mmap(None, ctypes.c_size_t(SIZE), PROTECTION, MAPPING, -1, ctypes.c_long(0))
    fcntl.ioctl(faults, REGISTER, struct.pack("QQQQ", memory, SIZE, MISSING, 0))
    listed = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    arguments = (GETDENTS, listed, memory, SIZE)
    thread = Thread(target=lambda: _libc.syscall(*map(ctypes.c_long, arguments)), daemon=True)
    thread.start()
    try:
        until(lambda: _has_fault(faults), "the listing waits")
        yield
    finally:
        fcntl.ioctl(faults, UNREGISTER, struct.pack("QQ", memory, SIZE))
        fcntl.ioctl(faults, WAKE, struct.pack("QQ", memory, SIZE))
        thread.join(LIMIT)
        os.close(faults)
        os.close(listed)


def _has_fault(faults: int) -> bool:
    try:
        return bool(os.read(faults, 32))
    except BlockingIOError:
        return False
