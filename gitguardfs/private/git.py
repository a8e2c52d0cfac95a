"""Runs git as this process's user, with no configuration but the given one.

It is only run in directories that nobody else can write. The agent's repository is never one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

from gitguardfs.base import git
from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.base.errors import os_error

FILE_BYTES = 4 << 30
"""The largest file that git may write: a repository with larger packs is fetched in part."""
SECONDS = 600.0
"""Seconds that a copy or a fetch may take; the first copy of 1,000 commits takes about one."""
_NOT_GITS_FAULT = {
    os.strerror(number): number
    for number in (
        errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.ENOMEM, errno.EMFILE,
    )
} | {"died of signal": errno.EAGAIN}  # fmt: skip
"""Texts in git's messages that say nothing about the repository that it reads."""
_NOT_FOUND = 127
"""The exit status of sh(1) if there is no git."""


class GitFailed(Exception):  # noqa: N818  # what happened
    """git ended with an error that the system did not cause.

    The text ends a sentence about the host's repository, as in Unusable.
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
    """Run git in ``directory`` for at most ``limit`` seconds, and return its output.

    ``content`` is its standard input; it inherits the descriptors ``keep``. With ``silent`` a
    message is a failure, too. Raises GitFailed; OSError for an error of the system, ETIMEDOUT at
    the limit, EAGAIN if git was killed, ENOENT without git.
    """
    done = git.run(
        "git", arguments, {"PATH": SYSTEM_PATH, **git.NO_CONFIG, **(more or {})},
        git.Limits(limit, None, FILE_BYTES),
        directory=directory, given=content, keep=keep, umask=0o022,
    )  # fmt: skip
    if done.code == 0 and not (silent and done.error):
        return done.output
    for text, number in _NOT_GITS_FAULT.items():
        if text in done.error:
            raise os_error(number)
    if done.code < 0:
        raise os_error(errno.EAGAIN)
    if done.code == _NOT_FOUND:
        raise os_error(errno.ENOENT, "git")
    raise GitFailed(f"makes git say: {done.reason}")
