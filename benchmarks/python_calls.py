"""Counts the calls of Python functions that one request makes, and the rooms that it crosses.

There is no mount and no kernel: the view that a session would call is called directly, with the
options that ``gitguard vm`` sets. This is a program, ``python -m benchmarks.python_calls SOURCE
MOUNTPOINT``, since the package raises limits of the process that it is used in. With ``--walk`` it
prints the calls of each request in their order.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import gitguardfs
from benchmarks import cost_kinds

PACKAGE = f"{Path(gitguardfs.__file__).parent}/"
APART = ("sessions", "base")
"""Rooms that do not count: sessions depend on the library that they use, and all use the base."""
TOP, DOOR = "view", "serve"


@dataclass
class Walk:
    """The way of one request through the package."""

    calls: list[str] = field(default_factory=list)
    """Room, module and function of each call, in order."""

    @property
    def rooms(self) -> set[str]:
        """The rooms that the request crossed."""
        return {call.partition("/")[0] for call in self.calls}

    @property
    def climbs(self) -> int:
        """How often the request came back up to the view after it had left that."""
        return sum(
            now.startswith(f"{TOP}/") and not now.endswith(f" {DOOR}")
            for before, now in pairwise(self.calls)
            if not before.startswith(f"{TOP}/")
        )

    def __str__(self) -> str:
        return f"{len(self.calls)} calls, {len(self.rooms)} rooms, {self.climbs} climbs back up"


def view_of(source: Path, mountpoint: Path, store: Path) -> Any:
    """Return the view that a mount of ``source`` would have.

    All that the benchmark knows of how a mount is built. The two descriptors are open as long as
    the process. The stores of the agent's own are made in ``store``.
    """
    from gitguardfs.fs.audit_log import AuditLog
    from gitguardfs.mounting import build
    from gitguardfs.mounting.preflight import MountPaths
    from gitguardfs.options import mount_options

    source_fd, mountpoint_fd = (
        os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (source, mountpoint)
    )
    options = mount_options.build(
        str(source),
        str(mountpoint),
        {
            "git": "private", "private_store": str(store / "git"),
            "local": ["deps"], "local_store": str(store / "local"),
        },
    )  # fmt: skip
    paths = MountPaths(str(source), source_fd, str(mountpoint), mountpoint_fd)
    _, view = build.assemble(options, paths, AuditLog(None), source_fd, True)
    return view


def walk_of(view: Any, request: str, *arguments: Any) -> tuple[Walk, Any]:
    """Send a request. Returns its way and its result."""
    walk = Walk()

    def count(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            module = name.removeprefix(PACKAGE).removesuffix(".py")
            if module.partition("/")[0] not in APART:
                walk.calls.append(f"{module} {frame.f_code.co_name}")

    sys.setprofile(count)
    try:
        result = view.serve(request, *arguments)
        if hasattr(result, "finish"):  # a call that may wait, which the session has to make
            with result:
                result = result.finish(result.run())
    finally:
        sys.setprofile(None)
    return walk, result


def walks(source: Path, mountpoint: Path) -> dict[str, Walk]:
    """Return the way of the second request of each kind. ``source`` is empty, and is filled."""
    cost_kinds.make(source, 2)
    requests = _Requests(view_of(source, mountpoint, mountpoint))
    for number in range(2):
        requests.send(number)
    return requests.found


class _Requests:
    """Sends requests to a view as the kernel would; the last way of each kind is kept."""

    def __init__(self, view: Any) -> None:
        from gitguardfs.base.protocol import Caller, GuestGid, GuestUid

        self._view = view
        self._caller = Caller(GuestUid(0), GuestGid(0), os.getpid())
        self.found: dict[str, Walk] = {}
        root = 1
        self._files, self._directories, self._trees, self._changing = (
            view.serve("lookup", self._caller, root, name).node
            for name in (b"files", b"directories", b"trees", b"changing")
        )

    def send(self, number: int) -> None:
        """Send one request of each kind. Raises the error of one that fails."""
        of = self._caller
        name, new, directory = b"made%d" % number, b"moved%d" % number, b"dir-made%d" % number
        file = self._walk("LOOKUP of a file", "lookup", of, self._files, b"file0").node
        self._walk("LOOKUP of a directory", "lookup", of, self._directories, b"dir0")
        self._walk("GETATTR", "getattr", of, file)
        opened, handle = walk_of(self._view, "open", of, file, os.O_RDONLY)
        closed, _ = walk_of(self._view, "release", None, handle.handle)
        self.found["OPEN + RELEASE"] = Walk(opened.calls + closed.calls)
        flags = os.O_WRONLY | os.O_CREAT
        made = self._walk("CREATE", "create", of, self._changing, name, 0o644, flags)
        self._view.serve("release", None, made[0].handle)
        there = self._changing
        self._walk("RENAME of a file", "rename", of, there, name, there, new, 0)
        self._walk("UNLINK", "unlink", of, there, new)
        self._walk("MKDIR", "mkdir", of, there, directory, 0o755)
        self._walk("RMDIR", "rmdir", of, there, directory)
        tree, moved, there = b"tree%d" % number, b"tree-moved%d" % number, self._trees
        for _ in range(2):  # found before, as the kernel does
            self._view.serve("lookup", of, there, tree)
        self._walk("RENAME of a directory", "rename", of, there, tree, there, moved, 0)

    def _walk(self, kind: str, request: str, *arguments: Any) -> Any:
        self.found[kind], result = walk_of(self._view, request, *arguments)
        return result


def main(source: str, mountpoint: str, *options: str) -> None:
    """Print the number of calls of each kind as JSON, or with ``--walk`` the calls."""
    found = walks(Path(source).resolve(), Path(mountpoint).resolve())
    if "--walk" not in options:
        print(json.dumps({kind: len(walk.calls) for kind, walk in found.items()}))
        return
    for kind, walk in found.items():
        print(f"{kind}: {walk}", *walk.calls, sep="\n    ")


if __name__ == "__main__":
    main(*sys.argv[1:])
