"""Runs a function as the user, or as root of new namespaces of that user (``unshare -Urm``)."""

from __future__ import annotations

from collections.abc import Callable
from errno import EACCES, EPERM
from functools import partial
from typing import Any

from gitguardfs.linux import run_as, syscalls
from gitguardfs.linux.run_as import NoAnswer, SetupFailed, User

MAX_USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"


def run_as_user(
    function: Callable[..., Any], *arguments: Any, user: User, fake_root: bool = False
) -> Any:
    """Call a function in a child process as the user, or as root of the user's own namespaces.

    Returns and raises what ``run_as`` does. SetupFailed also means that the user may have no such
    namespaces.
    """
    if not fake_root:
        return run_as.run_as(function, *arguments, user=user)
    map_root = partial(_map_root, uid=user.uid, gid=user.gid)
    return run_as.run_as(_as_fake_root, function, *arguments, user=user, on_request=map_root)


def _as_fake_root(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in new namespaces; the parent maps the ids of this undumpable process.

    Raises NoAnswer if the user's other processes may have used up the limit of namespaces.
    """
    try:
        syscalls.unshare_user_and_mounts()
    except OSError as error:
        what = f"the user gets no user namespace: {error.strerror}"
        if error.errno in (EACCES, EPERM) or _has_no_user_namespaces():
            raise SetupFailed(what) from None
        raise NoAnswer(what) from None
    run_as.ask_parent()
    return function(*arguments)


def _has_no_user_namespaces() -> bool:
    try:
        with open(MAX_USER_NAMESPACES) as file:
            return file.read().strip() == "0"
    except FileNotFoundError:  # the kernel has none at all
        return True


def _map_root(pid: int, uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)
