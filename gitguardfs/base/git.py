"""Runs git with an environment of ours alone and with limits, and ends all that it has started.

git starts no hook, fsmonitor, pager or editor, asks nothing, fetches nothing from a promisor remote
and follows no replacement of an object.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from gitguardfs.base.errors import os_error, shown

MIB = 1 << 20
ENDS_WITHIN = 2.0
"""Seconds that git gets to remove its temporary files, before it is killed."""
GONE_WITHIN = 30.0
"""Seconds that the kernel gets to end a process that was killed: a disk may hold it up."""
SHOWN = 300
"""The most characters of git's own message that are shown."""
ENVIRONMENT = {
    "LC_ALL": "C",
    "HOME": "/",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "file",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "GIT_TRACE2": "0",  # the configuration may name files for traces
    "GIT_TRACE2_EVENT": "0",
    "GIT_TRACE2_PERF": "0",
}
NO_CONFIG = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
}  # fmt: skip
"""Keeps git from reading any configuration but the repository's."""
SETTINGS = (f"core.hooksPath={os.devnull}", "core.fsmonitor=false")
"""Settings without which a repository could have git start a program."""
_BLOCK = 512
"""The unit of ``ulimit -f`` (sh(1)); in an old bash it is 1024."""
_FDS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
# The memory that packs are mapped into does not count for -d. A lower limit of the user's holds.
_LIMITED = (
    'ulimit -c 0; ulimit -f "$1" 2>/dev/null; [ -z "$2" ] || ulimit -d "$2" 2>/dev/null;'
    f' held={_FDS}/$3; shift 3; {{ read -r _; kill -KILL 0; }} <"$held" >/dev/null 2>&1 &'
    ' exec "$@"'
)
"""Becomes git, whose processes all end once this process has closed a pipe, or was killed."""


@dataclass(frozen=True)
class Limits:
    """The limits of one call of git."""

    seconds: float
    memory: int | None = 2048 * MIB
    """Bytes that it may allocate; packs that it maps do not count. Linux only."""
    file: int = 16 * MIB
    """The most bytes of a file that it writes; its output is one."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a call."""

    code: int
    output: bytes
    error: str
    """git's messages, as it wrote them."""

    @property
    def text(self) -> str:
        """The output as text, without the newline at its end."""
        return os.fsdecode(self.output).removesuffix("\n")

    @property
    def reason(self) -> str:
        """The line of git's messages that says most, safe for a terminal."""
        if self.code == -signal.SIGXFSZ:
            return "it wrote too much"
        lines = [line for line in self.error.splitlines() if line.strip()]
        found = next((one for one in lines if one.startswith(("error:", "fatal:"))), "")
        line = found or (lines[-1] if lines else f"git ended with status {self.code}")
        return shown(re.sub(r"^(error|fatal): ", "", line))[:SHOWN]


def run(
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limits: Limits,
    *,
    settings: Iterable[str] = SETTINGS,
    directory: str = "/",
    given: bytes | BinaryIO = b"",
    keep: Sequence[int] = (),
    umask: int = -1,
) -> Answer:
    """Run git with ``given`` as its input; it inherits the descriptors ``keep``.

    Raises OSError; TimeoutError if git takes longer than the limit.
    """
    options = [word for one in settings for word in ("-c", one)]
    memory = limits.memory if sys.platform == "linux" else None
    held, holding = os.pipe()
    process = None
    # Files instead of pipes: nothing waits for us, and Limits.file bounds them.
    with _file() as output, _file() as error, _file() as own:
        try:
            if isinstance(given, bytes):
                own.write(given)
                own.seek(0)
            words = (limits.file // _BLOCK, memory // 1024 if memory else "", held)
            process = subprocess.Popen(
                ["/bin/sh", "-c", _LIMITED, "sh", *map(str, words), program, *options, *arguments],
                stdin=own if isinstance(given, bytes) else given,
                stdout=output,
                stderr=error,
                env={**ENVIRONMENT, **environment},
                cwd=directory,
                pass_fds=[held, *keep],
                umask=umask,
                start_new_session=True,  # its children end with it
            )
            code = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            raise os_error(errno.ETIMEDOUT) from None
        except BaseException:
            _end(process)
            raise
        finally:
            os.close(held)
            os.close(holding)
        return Answer(code, _content(output), os.fsdecode(_content(error)))


def _file() -> BinaryIO:
    """Return a file without a name; in memory where that is possible: the disk may be full."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("git"), "w+b")
    return tempfile.TemporaryFile()


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End git and all that it has started, if it was started."""
    if process is None:
        return
    for number, seconds in ((signal.SIGTERM, ENDS_WITHIN), (signal.SIGKILL, GONE_WITHIN)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _content(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()
