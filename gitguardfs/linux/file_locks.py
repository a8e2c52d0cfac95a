"""The locks that an open file of this process has (fdinfo in proc(5))."""

from __future__ import annotations

from collections.abc import Iterator


def ranges_of(fd: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last byte of each range that an open file has locked (F_OFD_SETLK).

    ``last`` stands for the end of the file. Raises OSError.
    """
    with open(f"/proc/self/fdinfo/{fd}") as file:
        for line in file:
            if line.startswith("lock:") and "OFDLCK" in line:
                start, end = line.split()[-2:]
                yield int(start), last if end == "EOF" else int(end)
