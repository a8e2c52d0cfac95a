"""What vm-mount prints about its plans and about their result, as lines of text."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator

from gitguardfs.base import quote
from gitguardfs.base.constants import LOCAL_STORE, PRIVATE_STORE
from gitguardfs.base.findings import Result
from gitguardfs.guest import plan_boot, plan_guard
from gitguardfs.guest.facts import Facts
from gitguardfs.guest.plan_share import MountRequest
from gitguardfs.guest.steps_files import Write
from gitguardfs.guest.transaction import Step
from gitguardfs.names.rules import GitMode
from gitguardfs.options import accounts
from gitguardfs.options.guarded_share import GuardedShare
from gitguardfs.options.parsing import quote_o

_POLICIES = {
    GitMode.DENY: "guarded: .git is denied",
    GitMode.LIST: "guarded: .git is denied, and listed",
    GitMode.READONLY: "guarded: .git can be read, not changed",
    GitMode.HIDE: "guarded: .git is hidden",
    GitMode.PRIVATE: "guarded: the agent has a repository of its own in place of .git",
    GitMode.OFF: "NOT guarded: .git is open (git=off)",
}


def steps(plan: Iterable[Step]) -> Iterator[str]:
    """Yield each step of a plan, and the diff of each file that a step writes."""
    for step in plan:
        yield step.describe()
        if isinstance(step, Write) and (diff := step.change.diff()):
            yield diff.removesuffix("\n")


def preview(
    state: Facts, spec: GuardedShare, first: Iterable[Step], second: Iterable[Step]
) -> Iterator[str]:
    """Yield the steps of both plans, and the options that get lost."""
    mounting = list(steps(first))
    yield from mounting
    if mounting:
        yield "# The share's owner is not known before it is mounted: shown as the user's."
    yield from lost_options(state, spec)
    yield from steps(second)


def lost_options(state: Facts, spec: GuardedShare) -> Iterator[str]:
    """Yield a line if options were in force that are no longer asked for."""
    if lost := plan_guard.lost_options(state, spec):
        options = ",".join(map(quote_o, lost))
        yield f"No longer in force, since it was not given again: -o {shlex.quote(options)}"


def result(
    state: Facts, request: MountRequest, spec: GuardedShare, *, changed: bool, would: bool = False
) -> Iterator[str]:
    """Yield what is mounted and guarded, and the next command; ``would`` is for --dry-run."""
    policy = _POLICIES[request.policy]
    if request.policy is GitMode.PRIVATE and not state.has_git:
        policy = f"{_POLICIES[GitMode.DENY]}, since git is not installed here"
    if changed:
        boot = {"fstab": "by fstab", "systemd": "by systemd"}.get(request.style)
        boot = boot or plan_boot.left_at_boot(state, spec)
        verb = "would show" if would else "shows"
        yield (
            f"{spec.map_mount} {verb} the share {spec.tag} ({spec.transport}, raw at {spec.mount}),"
            f" {policy}; map {spec.map}; at boot: {boot}."
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
