"""Fetches a file and checks its SHA-512; shows progress and resumes an interrupted download."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse

import click

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.vm.phases import Phase

READ_TIMEOUT = 60.0
"""Seconds without data after which the download fails."""
KEPT_FREE = 1 << 30
"""Bytes that must stay free besides the image: the VM's own disk grows at once."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server; ``sha512`` in lower-case hexadecimal digits."""

    url: str
    sha512: str

    @property
    def file_name(self) -> str:
        """The file's name in the cache, with the beginning of its checksum."""
        return f"{self.sha512[:12]}-{os.path.basename(self.url)}"


def fetch(remote: RemoteFile, cache: str) -> str:
    """Return the path of the file in the directory ``cache``; fetch it if it is not there.

    A file gets its final name only after its checksum was verified. Raises UserError if the file
    cannot be fetched, has a wrong checksum, or does not fit on the disk. A partial file is kept,
    and the next call resumes it, unless the checksum is wrong.
    """
    path = os.path.join(cache, remote.file_name)
    if os.path.exists(path):
        return path
    os.makedirs(cache, 0o700, exist_ok=True)
    with locked(f"{path}.lock", "another command is fetching the image"):
        if os.path.exists(path):  # another command has fetched it meanwhile
            return path
        part = f"{path}.part"
        with Phase("Guest image") as phase:
            try:
                _download(remote, part, phase)
            except (OSError, HTTPException, ValueError) as error:  # ValueError: not a URL
                raise UserError(
                    f"cannot fetch {remote.url}: {_reason(error)}",
                    "run the command again to resume it, or use a local image: --image FILE",
                    Exit.SYSTEM,
                ) from None
            phase.show("checksum")
            _check(remote, part)
        os.rename(part, path)
    return path


@contextmanager
def locked(lock: str, who: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock. If another process has it, print ``who`` does what, and wait. Raises OSError."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            click.echo(f"{who}; waiting for it", err=True)
            fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def require_room(
    directory: str, size: int, what: str, hint: str = "make room, or set another XDG_CACHE_HOME"
) -> None:
    """Raise UserError if a disk has not ``size`` bytes free; ``what`` begins their purpose."""
    free = shutil.disk_usage(directory).free
    if free < size:
        text = f"{shown(directory)} has only {free >> 20} MiB free, and {what} {size >> 20}"
        raise UserError(text, hint, Exit.SYSTEM)


def _download(remote: RemoteFile, part: str, phase: Phase) -> None:
    """Append to ``part`` what is missing. Raises UserError, OSError, HTTPException."""
    begin = os.path.getsize(part) if os.path.exists(part) else 0
    request = urllib.request.Request(remote.url)  # noqa: S310 (the scheme was checked)
    if begin:
        request.add_header("Range", f"bytes={begin}-")
    try:
        response = urllib.request.urlopen(request, timeout=READ_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if (
            error.code == 416 and begin
        ):  # nothing is missing, or the file is wrong: the checksum tells
            return
        raise
    with response, open(part, "ab") as file:
        if begin and response.status != 206:
            file.truncate(0)
            begin = 0
        left = _length(response)
        if left is not None:
            require_room(os.path.dirname(part), left + KEPT_FREE, "the image needs")
        _copy(response, file.fileno(), begin, left, phase)


def _copy(response: HTTPResponse, fd: int, begin: int, left: int | None, phase: Phase) -> None:
    total = None if left is None else begin + left
    done = begin
    size = f"{total / (1 << 20):.0f} MiB" if total else "download"
    phase.show(size, done / total if total else -1.0)
    while chunk := response.read1(_CHUNK):
        view = memoryview(chunk)
        while view:
            view = view[os.write(fd, view) :]
        done += len(chunk)
        phase.show(size, done / total if total else -1.0)
    if total is not None and done < total:
        raise OSError(0, f"the connection ended after {done} of {total} bytes")


def _length(response: HTTPResponse) -> int | None:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _check(remote: RemoteFile, part: str) -> None:
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "sha512").hexdigest()
    if found != remote.sha512:
        os.unlink(part)
        raise UserError(
            f"{remote.url} has a wrong checksum: {found[:16]}… instead of {remote.sha512[:16]}…",
            "the file was deleted; run the command again, and do not use the image if this repeats",
            Exit.SYSTEM,
        )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
