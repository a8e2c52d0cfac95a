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

from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.base.errors import os_error

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
    os.strerror(number).encode(): number
    for number in (
        errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.ENOMEM, errno.EMFILE,
    )
} | {b"died of signal": errno.EAGAIN}  # fmt: skip
"""Texts in git's messages that say nothing about the repository that it reads."""


class GitFailed(Exception):  # noqa: N818  # what happened
    """git ended with an error, and not because of the system; the text ends a sentence.

    Its subject is the host's repository, as in Unusable.
    """


def run(
    arguments: Sequence[str],
    *,
    directory: str = "/",
    limit: float,
    content: bytes = b"",
    keep: Sequence[int] = (),
    more: Mapping[str, str] | None = None,
    silent: bool = False,
) -> bytes:
    """Run git in ``directory`` for at most ``limit`` seconds, and return what it prints.

    ``content`` is its standard input; it inherits the descriptors ``keep``. With ``silent`` a
    message is a failure, too. Raises GitFailed;
    OSError for an error of the system, ETIMEDOUT at the limit, EAGAIN if git was killed, ENOENT
    without git.
    """
    held, holding = os.pipe()
    try:
        return _run(arguments, directory, limit, content, [held, *keep], more or {}, silent)
    finally:
        os.close(held)
        os.close(holding)


def _run(
    arguments: Sequence[str], directory: str, limit: float, content: bytes, keep: Sequence[int],
    more: Mapping[str, str], silent: bool,
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
    if process.returncode == 0 and not (silent and said):
        return printed
    for text, number in _NOT_GITS_FAULT.items():
        if text in said:
            raise os_error(number)
    if process.returncode < 0:
        raise os_error(errno.EAGAIN)
    if process.returncode == _NOT_FOUND:
        raise os_error(errno.ENOENT, "git")
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    message = lines[-1] if lines else f"exit status {process.returncode}"
    raise GitFailed(f"makes git say: {message}")


_NOT_FOUND = 127
"""What sh(1) exits with if there is no git."""
