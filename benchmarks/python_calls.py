"""Counts the calls of Python functions that one request makes.

There is no mount and no kernel: the operations that a session would call are called directly. This
is a program, ``python -m benchmarks.python_calls SOURCE MOUNTPOINT``, since the package raises
limits of the process that it is used in.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gitguardfs
from benchmarks import cost_kinds

PACKAGE = f"{Path(gitguardfs.__file__).parent}/"
SESSIONS = f"{PACKAGE}sessions/"

Counted = Callable[..., Any]


def operations_on(source: Path, mountpoint: Path) -> Any:
    """Return the operations that a mount of ``source`` with default options would have.

    All that the benchmark knows of how a mount is built. The two descriptors are open as long as
    the process.
    """
    from gitguardfs.fs.audit_log import AuditLog
    from gitguardfs.mounting import build
    from gitguardfs.mounting.preflight import MountPaths
    from gitguardfs.options import mount_options

    source_fd, mountpoint_fd = (
        os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (source, mountpoint)
    )
    options = mount_options.build(str(source), str(mountpoint), {})
    paths = MountPaths(str(source), source_fd, str(mountpoint), mountpoint_fd)
    _, operations = build.assemble(options, paths, AuditLog(None), source_fd, True)
    return operations


def calls_of(function: Counted, *arguments: Any) -> tuple[int, Any]:
    """Call a function. Returns how many calls of the package it made, and its result.

    The package's sessions do not count: they depend on the library that they use.
    """
    number = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal number
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(PACKAGE) and not name.startswith(SESSIONS):
                number += 1

    sys.setprofile(count)
    try:
        result = function(*arguments)
        if hasattr(result, "finish"):  # a call that may wait, which the session has to make
            with result:
                result = result.finish(result.run())
    finally:
        sys.setprofile(None)
    return number, result


def count(source: Path, mountpoint: Path) -> dict[str, int]:
    """Return the calls of the second request of each kind. ``source`` is empty, and is filled."""
    cost_kinds.make(source, 2)
    requests = _Requests(operations_on(source, mountpoint))
    for number in range(2):
        requests.send(number)
    return requests.found


class _Requests:
    """Sends requests to the operations as the kernel would; what a kind took last is kept."""

    def __init__(self, operations: Any) -> None:
        from gitguardfs.base.protocol import Caller, GuestGid, GuestUid

        self._operations = operations
        self._caller = Caller(GuestUid(0), GuestGid(0), os.getpid())
        self.found: dict[str, int] = {}
        root = 1
        self._files, self._directories, self._trees, self._changing = (
            self._operations.lookup(self._caller, root, name).node
            for name in (b"files", b"directories", b"trees", b"changing")
        )

    def send(self, number: int) -> None:
        """Send one request of each kind. Raises the error of one that fails."""
        call, of = self._operations, self._caller
        name, new, directory = b"made%d" % number, b"moved%d" % number, b"dir-made%d" % number
        file = self._count("LOOKUP of a file", call.lookup, of, self._files, b"file0").node
        self._count("LOOKUP of a directory", call.lookup, of, self._directories, b"dir0")
        self._count("GETATTR", call.getattr, of, file)
        opened, handle = calls_of(call.open, of, file, os.O_RDONLY)
        closed, _ = calls_of(call.release, handle.handle)
        self.found["OPEN + RELEASE"] = opened + closed
        flags = os.O_WRONLY | os.O_CREAT
        made = self._count("CREATE", call.create, of, self._changing, name, 0o644, flags)
        calls_of(call.release, made[0].handle)
        there = self._changing
        self._count("RENAME of a file", call.rename, of, there, name, there, new, 0)
        self._count("UNLINK", call.unlink, of, there, new)
        self._count("MKDIR", call.mkdir, of, there, directory, 0o755)
        self._count("RMDIR", call.rmdir, of, there, directory)
        tree, moved, there = b"tree%d" % number, b"tree-moved%d" % number, self._trees
        for _ in range(2):  # found before, as the kernel does
            calls_of(call.lookup, of, there, tree)
        self._count("RENAME of a directory", call.rename, of, there, tree, there, moved, 0)

    def _count(self, kind: str, function: Counted, *arguments: Any) -> Any:
        self.found[kind], result = calls_of(function, *arguments)
        return result


if __name__ == "__main__":
    print(json.dumps(count(Path(sys.argv[1]), Path(sys.argv[2]))))
