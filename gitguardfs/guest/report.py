"""Prints lines of vm-mount, and makes the lines about its result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

from gitguardfs.base import quote
from gitguardfs.base.constants import LOCAL_STORE, PRIVATE_STORE
from gitguardfs.base.errors import shown
from gitguardfs.base.findings import Result
from gitguardfs.guest import boot
from gitguardfs.guest.facts import Facts
from gitguardfs.guest.request import MountRequest
from gitguardfs.names.rules import GitMode
from gitguardfs.options import accounts
from gitguardfs.options.guarded_share import GuardedShare

_POLICIES = {
    GitMode.DENY: "guarded: .git is denied",
    GitMode.LIST: "guarded: .git is denied, and listed",
    GitMode.READONLY: "guarded: .git can be read, not changed",
    GitMode.HIDE: "guarded: .git is hidden",
    GitMode.PRIVATE: "guarded: the agent has a repository of its own in place of .git",
    GitMode.OFF: "NOT guarded: .git is open (git=off)",
}


def say(text: str) -> None:
    """Print lines, with unprintable characters escaped.

    Never raises: a closed pipe, a full disk or an ASCII locale must not stop a change halfway.
    """
    text = shown(text, keep="\n\t")
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), flush=True)
    except (OSError, ValueError):  # ValueError: standard output is closed
        _discard_output()


def _discard_output() -> None:
    """Send all further output to /dev/null; otherwise Python reports an error when it exits."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def result(
    state: Facts, request: MountRequest, spec: GuardedShare, *, changed: bool, would: bool = False
) -> Iterator[str]:
    """Yield what is mounted and guarded, and the next command; ``would`` is for --dry-run."""
    policy = _POLICIES[request.policy]
    if request.policy is GitMode.PRIVATE and not state.has_git:
        policy = f"{_POLICIES[GitMode.DENY]}, since git is not installed here"
    if changed:
        is_written = request.style != "none"
        at_boot = f"by {request.style}" if is_written else boot.left_at_boot(state, spec)
        verb = "would show" if would else "shows"
        yield (
            f"{spec.map_mount} {verb} the share {spec.tag} ({spec.transport}, raw at {spec.mount}),"
            f" {policy}; map {spec.map}; at boot: {at_boot}."
        )
    else:
        yield f"Nothing to do: {spec.map_mount} shows the share {spec.tag}, {policy}."
    if not would and request.policy is not GitMode.OFF:
        user = accounts.find(str(request.user[0])).name
        command = ["sudo", "gitguard", "doctor", spec.map_mount, "--user", user, "--attack"]
        yield f"Next: {quote.shell(command)}"


def kept(options: Iterable[str]) -> Iterator[str]:
    """Yield where the stores of a removed view are, which stay; ``options`` are the view's."""
    parts = (option.partition("=") for option in options)
    given = {name.replace("_", "-"): value for name, _, value in parts}
    for is_used, option, default, what in (
        (given.get("git") == GitMode.PRIVATE.value, "private-store", PRIVATE_STORE, "committed"),
        ("local" in given, "local-store", LOCAL_STORE, "in directories of its own (--local)"),
    ):
        store = given.get(option, default)
        if is_used and os.path.isdir(store):
            yield f"What the agent has {what} stays in {store}."


def warnings(ways_to_root: Iterable[Result]) -> Iterator[str]:
    """Yield each way in which the owner of the view can become root, and what helps."""
    for row in ways_to_root:
        yield f"Warning: the guard does not hold against root, and {row.title} ({row.detail})."
        yield f"  {row.hint}"
