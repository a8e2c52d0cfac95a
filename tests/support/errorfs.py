"""A share of our own making: a directory passed through FUSE that answers errors on demand.

Nothing is cached: each access by a client is a request. The test acts as the share's host, in the
directory itself. ``errorfs_server`` is the program.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.mounting import LIMIT, REPOSITORY, until

ERRNOS = (
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.ENOMEM, errno.EPERM,
    errno.ENOTCONN, errno.EREMOTEIO,
)  # fmt: skip
"""Errors of a share that do not mean that a name is absent."""

READING = (
    "LOOKUP", "GETATTR", "READLINK", "ACCESS", "STATFS", "OPENDIR", "READDIR", "OPEN", "READ"
)  # fmt: skip
CHANGING = (
    "SETATTR", "MKNOD", "MKDIR", "SYMLINK", "LINK", "CREATE", "UNLINK", "RMDIR", "RENAME",
    "WRITE", "FLUSH", "FSYNC", "FSYNCDIR", "RELEASE",
)  # fmt: skip
ROOT = "."
"""The name of the root in a fault."""


@dataclass(frozen=True)
class Fault:
    """A fault: the requests that it meets, and the answers that they get."""

    requests: tuple[str, ...] = READING
    name: str | None = None
    """The last component, or the path below the mount's root; a rename goes by both of its ends.
    None is any."""
    error: int = errno.EIO
    """The answer; 0 leaves it as it is, for a request that is only held back, for example."""
    nth: int = 0
    """Only the nth such request since the fault was added; 0 is all of them. A client's kernel
    repeats the lookup of a known name if the first answer is an error (d_revalidate)."""
    done: bool = False
    """The request is carried out all the same."""
    held: bool = False
    """Nothing is answered, or done, while the fault is in force."""


@dataclass
class Share:
    """A running share."""

    host: Path
    """The directory itself."""
    path: Path
    """Where it is mounted."""
    control: Path
    process: subprocess.Popen[bytes]
    _faults: dict[int, Fault] = field(default_factory=dict)
    _last: int = 0

    def add(self, *faults: Fault) -> list[int]:
        """Put faults in force beside those that are; returns their numbers."""
        numbers = range(self._last + 1, self._last + 1 + len(faults))
        self._faults.update(zip(numbers, faults, strict=True))
        self._last += len(faults)
        self._write()
        return list(numbers)

    def remove(self, *numbers: int) -> None:
        """Take faults back, by number."""
        for number in numbers:
            self._faults.pop(number, None)
        self._write()

    def emptied(self) -> Share:
        """Take all faults back and remove all files; return the share."""
        self.clear()
        for path in self.host.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return self

    @contextmanager
    def failing(self, *faults: Fault) -> Iterator[None]:
        """Have faults in force for a while."""
        numbers = self.add(*faults)
        try:
            yield
        finally:
            self.remove(*numbers)

    def clear(self) -> None:
        """Take all faults back."""
        self._faults.clear()
        self._write()

    def hits(self, *numbers: int) -> list[tuple[str, str]]:
        """The (request, name) that faults have met: these, or all that there ever were."""
        log = self.control.with_suffix(".hits")
        lines = log.read_text(errors="surrogateescape").splitlines() if log.exists() else []
        found = [json.loads(line) for line in lines]
        return [(hit[1], hit[2]) for hit in found if not numbers or hit[0] in numbers]

    def _write(self) -> None:
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps({number: asdict(f) for number, f in self._faults.items()}))
        new.rename(self.control)


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


@contextmanager
def errorfs(host: Path, path: Path, control: Path, fold: bool = False) -> Iterator[Share]:
    """Mount ``host`` at ``path``, for all users; ``control`` is a path for a file of its own.

    With ``fold`` the server compares names by Unicode's NFKC, whatever their case: a folding that
    the rule for ``.git`` does not foresee.
    """
    host.mkdir(exist_ok=True)
    arguments = ["tests.support.errorfs_server", host, path, control, *(["--fold"] if fold else [])]
    with served(path, *arguments) as process:
        share = Share(host, path, control, process)
        try:
            yield share
        finally:
            share.clear()


CONTENT = b"worth waiting for\n" * 100


@dataclass(frozen=True)
class Slow:
    """A share on which reading and syncing the file ``slow`` waits."""

    path: Path
    _share: Share
    _fault: int

    def somebody_waits(self) -> bool:
        return bool(self._share.hits(self._fault))

    def release(self) -> None:
        """Answer the requests that wait, and all later ones at once."""
        self._share.clear()


@contextmanager
def slowfs(path: Path, control: Path) -> Iterator[Slow]:
    """Mount a share at ``path`` with the files ``slow`` and ``quick``, for all users."""
    host = path.with_name(f"{path.name}-host")
    with errorfs(host, path, control) as share:
        for name, content in (("slow", CONTENT), ("quick", b"quick\n")):
            (host / name).write_bytes(content)
            (host / name).chmod(0o666)
        host.chmod(0o777)
        (fault,) = share.add(Fault(("READ", "FSYNC"), "slow", 0, held=True))
        yield Slow(path, share, fault)
