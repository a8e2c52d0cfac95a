"""Trees of directories that are deeper than people make them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nested(top: Path, depth: int) -> Iterator[int]:
    """Make ``depth`` directories called ``d`` in each other; yield the innermost one, opened.

    Removes them at the end: shutil.rmtree(), with which pytest does so, fails in a deep tree.
    """
    fd = os.open(top, os.O_RDONLY)
    try:
        for _ in range(depth):
            os.mkdir("d", dir_fd=fd)
            inner = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
        subprocess.run(["rm", "-rf", top / "d"], check=True)
