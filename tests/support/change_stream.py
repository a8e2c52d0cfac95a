"""A reader of ``gitguard watch``, which knows a tree by the lines, as the guest's daemon does."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

LIMIT = 60.0
"""Seconds, for a machine that does much else."""
GITGUARD = "from gitguardfs.commands.gitguard import main; main()"
COMMAND = [sys.executable, "-c", GITGUARD, "watch"]


def wait_for(condition: Any, what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def facts(path: str) -> tuple[int, ...]:
    """Return what a cache would hold of an object, without what changes by itself."""
    st = os.lstat(path)
    if stat.S_ISDIR(st.st_mode):
        return st.st_ino, st.st_mode
    return st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns


class Model:
    """What a reader knows: it looks at a name only when a line says so."""

    def __init__(self, top: Path, hidden: frozenset[str] = frozenset()) -> None:
        self.top, self.hidden = os.fspath(top), hidden
        self.known: dict[str, tuple[int, ...]] = {}

    def tree(self, below: str = "") -> dict[str, tuple[int, ...]]:
        found = {}
        for directory, directories, files in os.walk(os.path.join(self.top, below)):
            directories[:] = [name for name in directories if name not in self.hidden]
            for name in (*directories, *files):
                if name not in self.hidden:
                    path = os.path.join(directory, name)
                    with suppress(FileNotFoundError, NotADirectoryError):
                        found[os.path.relpath(path, self.top)] = facts(path)
        return found

    def _below(self, path: str) -> list[str]:
        return [each for each in self.known if not path or f"{each}/".startswith(f"{path}/")]

    def look(self, path: str) -> None:
        full = os.path.join(self.top, path)
        has_directory = os.path.realpath(os.path.dirname(full)) == os.path.dirname(full)
        if not os.path.isdir(full) or os.path.islink(full) or not has_directory:
            for each in self._below(path):
                del self.known[each]
        with suppress(FileNotFoundError, NotADirectoryError):
            if has_directory:
                self.known[path] = facts(full)

    def apply(self, line: dict[str, Any]) -> None:
        if "again" in line:
            path = line["again"]
            for each in self._below(path):
                del self.known[each]
            if path:
                self.look(path)
            self.known |= self.tree(path)
        elif "moved" in line:
            old, new = line["moved"]
            moved = {new + each[len(old) :]: self.known.pop(each) for each in self._below(old)}
            for each in self._below(new):
                del self.known[each]
            self.known |= moved
            self.look(old)
            self.look(new)
        else:
            for key in ("made", "gone", "brief", "changed", "attributes"):
                if line.get(key):
                    self.look(line[key])


class Stream:
    """Lines as they come from a file."""

    def __init__(self, file: Any, model: Model | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.model = model
        self._file = file
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for raw in self._file:
            line = json.loads(raw)
            self.raw.append(raw)
            if self.model is not None:
                self.model.apply(line)
            self.lines.append(line)

    def close(self) -> None:
        """Read to the end, which has to come, and close the file."""
        self._thread.join(LIMIT)
        self._file.close()

    def wait_line(self, **wanted: Any) -> dict[str, Any]:
        """Return the first line with these items, when it has come."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found[:] = [each for each in self.lines if wanted.items() <= each.items()]
            return bool(found)

        wait_for(has_come, f"{wanted} in {self.lines[-20:]}")
        return found[0]

    def changes(self) -> list[dict[str, Any]]:
        """Return the lines without beats, from the first complete state on."""
        lines = [each for each in self.lines if "beat" not in each]
        return lines[lines.index({"in": lines[1]["in"], "whole": True}) + 1 :]


class Watch:
    """A running ``gitguard watch`` of one directory."""

    def __init__(
        self, top: Path, *options: str, model: Model | None = None, to: str = "-", **how: Any
    ) -> None:
        self.top = top
        self.process = subprocess.Popen(
            [*COMMAND, os.fspath(top), "--to", to, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
        )  # fmt: skip
        if to == "-":
            self.stream = Stream(self.process.stdout, model)

    def __enter__(self) -> Self:
        if hasattr(self, "stream"):
            self.stream.wait_line(whole=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(LIMIT)
        if hasattr(self, "stream"):
            self.stream.close()
        for file in (self.process.stdout, self.process.stderr):
            file.close()

    def settled(self, number: int) -> None:
        """Wait until all earlier changes of plain files have been told."""
        name = f"settled-{number}"
        (self.top / name).touch()
        self.stream.wait_line(made=name)
