"""Run a function as another user, in a child process, and bring its result back."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import PLACE

AGENT = 1000
"""The unprivileged user of the tests: uid and gid; it needs no entry in passwd."""

CLONE_NEWUSER = 0x10000000
CLONE_NEWNS = 0x00020000
PR_SET_DUMPABLE = 4
CHILD_LIMIT = 120
"""Seconds after which a child is taken to hang; SIGALRM ends it."""


class ChildFailed(AssertionError):
    """The function raised something that is not an OSError; carries its traceback."""


def as_user(
    function: Callable[..., Any],
    *args: Any,
    uid: int = AGENT,
    gid: int | None = None,
    groups: Sequence[int] = (),
    umask: int = 0o022,
    fake_root: bool = False,
    mount_namespace: bool = False,
) -> Any:
    """Call ``function(*args)`` as ``uid`` in a forked child and return what it returned.

    An OSError in the child is raised again here with its errno; any other exception
    becomes ChildFailed. ``fake_root`` enters a new user namespace in which the user is root
    (``unshare -Ur``); ``mount_namespace`` adds a mount namespace (``unshare -Urm``).
    """
    gid = uid if gid is None else gid
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's is the parent's
            signal.alarm(CHILD_LIMIT)
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            os.umask(umask)
            if fake_root:
                _become_fake_root(uid, gid, mount_namespace)
            outcome = ("returned", function(*args))
        except OSError as error:
            outcome = ("oserror", (error.errno, error.strerror, error.filename))
        except BaseException:
            outcome = ("failed", traceback.format_exc())
        with os.fdopen(write_end, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    if not data:
        raise ChildFailed("the child died or hung without an answer")
    kind, value = pickle.loads(data)
    if kind == "oserror":
        raise OSError(*value)
    if kind == "failed":
        raise ChildFailed(value)
    return value


def make_dumpable() -> None:
    """Make /proc/self the user's again after a change of user."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def _become_fake_root(uid: int, gid: int, mount_namespace: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    make_dumpable()
    if libc.unshare(CLONE_NEWUSER | (CLONE_NEWNS if mount_namespace else 0)) != 0:
        error = ctypes.get_errno()
        raise AssertionError(f"unshare: {os.strerror(error)}")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


@contextmanager
def reachable_python() -> Iterator[str]:
    """A Python that ordinary users can run and that has this one's packages.

    The interpreter of the tests may lie in root's home. One of the same version elsewhere can
    then use its packages.
    """
    if _runs(sys.executable):
        yield sys.executable
        return
    other = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    with tempfile.TemporaryDirectory(prefix="ggfs-python-", dir=PLACE) as directory:
        Path(directory).chmod(0o755)
        wrapper = Path(directory) / "python"
        wrapper.write_text(
            f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{":".join(packages)}" exec {other} "$@"\n'
        )
        wrapper.chmod(0o755)
        if not os.path.exists(other) or not _runs(wrapper):
            reason = f"{sys.executable} is out of reach of ordinary users"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        yield str(wrapper)


def _runs(python: str | Path) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", "import pyfuse3, trio, click"],
            user=1000,
            group=1000,
            extra_groups=[],
            cwd="/",
            check=False,
            capture_output=True,
        )
    except OSError:
        return False
    return done.returncode == 0
