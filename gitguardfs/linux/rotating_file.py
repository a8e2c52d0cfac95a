"""A file to which lines are appended, and which cannot fill a disk: one older file is kept."""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_ISREG

from gitguardfs.linux import safe_open

SIZE = 16 << 20
"""Bytes from which on a file counts as full."""
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW


class RotatingFile:
    """Appends to a file. A full one is renamed to ``NAME.1``, over the one of before."""

    def __init__(self, path: str, is_root: bool) -> None:
        """Open or make ``path``. Raises what ``safe_open.open_file`` raises."""
        parent, self._name = os.path.split(path)
        self._is_root = is_root
        self._parent = safe_open.open_directory(parent or ".", is_root)
        try:
            self._fd = self._open()
        except BaseException:
            os.close(self._parent)
            raise

    def _open(self) -> int:
        return safe_open.open_file_in(self._parent, self._name, self._is_root, _FLAGS)

    def write(self, line: bytes) -> None:
        """Append a line. Raises OSError and UserError; then the line is lost."""
        st = os.fstat(self._fd)
        if st.st_size >= SIZE and S_ISREG(st.st_mode):
            self._turn(st)
        os.write(self._fd, line)

    def _turn(self, full: os.stat_result) -> None:
        """Rename the full file, unless another process has done so, and open the new one."""
        here = self._parent
        with suppress(FileNotFoundError):
            found = os.stat(self._name, dir_fd=here, follow_symlinks=False)
            if os.path.samestat(found, full):
                os.replace(self._name, f"{self._name}.1", src_dir_fd=here, dst_dir_fd=here)
        fd, self._fd = self._fd, self._open()
        os.close(fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
        os.close(self._parent)
