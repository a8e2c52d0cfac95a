"""Runs git as this process's user, with no configuration but the given one, and with limits.

It is only run in directories that nobody else can write. The agent's repository is never one.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gitguardfs.constants import SYSTEM_PATH
from gitguardfs.errors import os_error

FILE_BYTES = 4 << 30
"""The largest file that git may write: a repository with larger packs is fetched in part."""
_BLOCK = 512
"""The unit of ``ulimit -f`` (sh(1))."""
_LIMITED = (
    f"ulimit -f {FILE_BYTES // _BLOCK}; held=$1; shift;"
    ' { read -r _; kill -KILL 0; } <"/proc/self/fd/$held" >/dev/null 2>&1 & exec "$@"'
)
"""Runs git, and ends all of its processes once this process has closed a pipe, or was killed."""
_ENVIRONMENT = {
    "PATH": SYSTEM_PATH,
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "file",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
_OPTIONS = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")
_NOT_GITS_FAULT = {
    os.strerror(number).encode(): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
}
"""Texts in git's messages that stand for an error of the disk."""


class GitFailed(Exception):  # noqa: N818  # what happened
    """git ended with an error, and not because of the disk; the text is its last message."""


def run(
    arguments: Sequence[str],
    *,
    directory: str = "/",
    limit: float,
    content: bytes = b"",
    keep: Sequence[int] = (),
    more: Mapping[str, str] | None = None,
) -> bytes:
    """Run git in ``directory`` for at most ``limit`` seconds, and return what it prints.

    ``content`` is its standard input; it inherits the descriptors ``keep``. Raises GitFailed;
    OSError for an error of the disk, ETIMEDOUT at the limit, ENOENT without git.
    """
    held, holding = os.pipe()
    try:
        return _run(arguments, directory, limit, content, [held, *keep], more or {})
    finally:
        os.close(held)
        os.close(holding)


def _run(
    arguments: Sequence[str], directory: str, limit: float, content: bytes, keep: Sequence[int],
    more: Mapping[str, str],
) -> bytes:  # fmt: skip
    process = subprocess.Popen(
        ("/bin/sh", "-c", _LIMITED, "sh", str(keep[0]), "git", *_OPTIONS, *arguments),
        cwd=directory,
        env={**_ENVIRONMENT, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=keep,
        umask=0o022,
        start_new_session=True,  # all of git's processes can be ended together
    )
    try:
        printed, said = process.communicate(content, limit)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise os_error(errno.ETIMEDOUT) from None
        raise
    if process.returncode == 0:
        return printed
    for text, number in _NOT_GITS_FAULT.items():
        if text in said:
            raise os_error(number)
    if process.returncode == _NOT_FOUND:
        raise os_error(errno.ENOENT, "git")
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    raise GitFailed(lines[-1] if lines else f"git exited with {process.returncode}")


_NOT_FOUND = 127
"""What sh(1) exits with if there is no git."""
