"""Makes calls that take no blocks which a disk reserves for root (tune2fs(8), ``-m``).

The kernel gives them to the user 0 and to whoever has CAP_SYS_RESOURCE. Both are a thread's own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from gitguardfs.base.errors import os_error

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_NOBODY = 65534
_CAP_SYS_RESOURCE = 24
_VERSION_3 = 0x20080522

AMPLE = 1 << 30
"""Bytes: while so many are free, no call has to be held back, which takes about 20 microseconds.
Who may write on the disk can fill it in one step (fallocate(2)), so each call looks at it."""

_libc = ctypes.PyDLL(None, use_errno=True)  # these calls wait for nothing


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


class RootsBlocks:
    """Leaves the reserved blocks of a disk alone, for a process that runs as root."""

    def __init__(self, fd: int) -> None:
        """Note the process's rights, which threads have between the calls. Raises OSError.

        ``fd`` is a descriptor on the disk, which its owner closes after the last call.
        """
        self._fd = fd
        self._header = _Header(_VERSION_3, 0)
        self._all, self._fewer = (_Sets * 2)(), (_Sets * 2)()
        for sets in (self._all, self._fewer):
            self._set(_libc.capget, sets)
        self._fewer[0].effective &= ~(1 << _CAP_SYS_RESOURCE)

    def _set(self, call: Callable[..., int], sets: ctypes.Array[_Sets]) -> None:
        if call(ctypes.byref(self._header), sets) < 0:
            raise os_error(ctypes.get_errno())

    def left_alone(self, call: Callable[[*Ts], R], *args: *Ts) -> R:
        """Make a call that takes no reserved block, on any thread; its files may be another user's.

        Raises what ``call`` raises.
        """
        disk = os.fstatvfs(self._fd)
        if disk.f_bavail == disk.f_bfree or disk.f_bavail * disk.f_frsize > AMPLE:
            return call(*args)
        _libc.setfsuid(_NOBODY)  # this takes rights away as well, which the next call gives back
        try:
            self._set(_libc.capset, self._fewer)
            return call(*args)
        finally:
            _libc.setfsuid(0)
            self._set(_libc.capset, self._all)
