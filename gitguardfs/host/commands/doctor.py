"""``gitguard doctor`` on the host of VMs, whose guards are in their guests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from gitguardfs.base import columns, findings, quote
from gitguardfs.base.constants import FSTYPE
from gitguardfs.base.errors import Exit, UserError, counted, shown
from gitguardfs.base.findings import Result, Row
from gitguardfs.base.paths import is_inside
from gitguardfs.doctor.context import find_user, read_table
from gitguardfs.host.commands.vm.common import NEEDED, is_installed
from gitguardfs.linux import run_as
from gitguardfs.options import accounts

IN_GUEST = Row("host.vm", "", "the guard of a VM is checked in its guest")
ON_HOST = "gitguardfs"
"""The directory of the views of ``--guard host``: the guest has those, no user of this machine."""
NOT_RUNNING = ("none", "not running")


def run(
    path: str | None,
    caller: str | None,
    as_json: bool,
    attack: bool,
    fail_on: str,
    examine: Callable[[str | None], list[Result]],
) -> int | None:
    """Check the host's side by ``examine``, and the guard of the project's VM in its guest.

    Returns the exit status; None if ``path``, or without one this machine, has guards of another
    kind, or no VM. ``caller`` is the uid, as text, of the user who called the command or sudo.
    Raises UserError.
    """
    is_by_sudo = os.geteuid() == 0 and caller not in (None, "0")
    vms = _vms_of(caller or "0") if is_by_sudo else _vms()
    where = os.path.realpath(path or os.getcwd())
    around = [one for one in vms if one["project"] and is_inside(where, one["project"])]
    vm = max(around, key=lambda one: len(one["project"]), default=None)  # the nearest
    views = [seen.path for seen in read_table() if seen.fstype == FSTYPE]
    if path is None:
        others = [view for view in views if os.path.basename(os.path.dirname(view)) != ON_HOST]
    else:
        others = [view for view in views if is_inside(where, view)]
    if others or not vms or (path is not None and vm is None):
        return None
    asks = vm is not None and vm["state"] not in NOT_RUNNING and not (is_by_sudo or as_json)
    next_step = _next_step(vm, attack, is_by_sudo)
    line = (
        f"this machine is the host of {counted(len(vms), 'VM')}, whose guards are in their guests;"
        " here the host's side is checked"
    )
    if attack and not asks:
        raise UserError(f"{line}, which has nothing to attack", next_step, Exit.SYSTEM)
    results = examine(None if vm is None else vm["project"])
    status = int(findings.exit_code(results, fail_on))
    if as_json:
        click.echo(findings.as_json([*results, IN_GUEST.note(line, next_step, IN_GUEST.failed)]))
        return status
    click.echo(line)
    click.echo(findings.as_text(results, columns.width_of(sys.stdout)))
    if vm is None or not asks:
        click.echo(f"next, the guard: {shown(next_step)}")
        return status
    from gitguardfs.host.vm import guest_doctor, state

    own = state.state_of(vm["project"])
    if guest_doctor.has_guard_on_host(own):
        click.echo(guest_doctor.ON_HOST)
        return status
    click.echo(f"\nin the guest of {shown(vm['project'])}, by {shown(next_step)}:")
    words = [*(["--attack"] if attack else []), "--fail-on", fail_on]
    return max(status, guest_doctor.run(own, words))


def _next_step(vm: dict[str, Any] | None, attack: bool, is_by_sudo: bool) -> str:
    """Return the command, or two, that check the guard of a VM; None stands for any."""
    where = ["--project", vm["project"] if vm is not None else "DIR"]
    if vm is not None and is_inside(os.path.realpath(os.getcwd()), vm["project"]):
        where = []
    asking = quote.shell(["gitguard", "vm", "doctor", *where, *(["--attack"] if attack else [])])
    if vm is not None and vm["state"] in NOT_RUNNING:
        starting = quote.shell(["gitguard", "vm", "up", *where])
        asking = f"{starting} starts the VM, then {asking} checks it"
    return f"without sudo, {asking}" if is_by_sudo else asking


def _vms() -> list[dict[str, Any]]:
    """Return the facts of this user's VMs, as `vm list` shows them."""
    if not all(map(is_installed, NEEDED)):
        return []
    from gitguardfs.host.vm import listing

    return listing.vms()


def _vms_of(caller: str) -> list[dict[str, Any]]:
    """Return the facts of the VMs of the user who called sudo, whose files root does not follow."""
    found: list[dict[str, Any]] = []
    with suppress(OSError, run_as.NoAnswer, run_as.SwitchUserFailed):
        found = run_as.run_as(_at_home, accounts.find(caller).home, user=find_user(caller))
    return found


def _at_home(home: str) -> list[dict[str, Any]]:
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        os.environ.pop(name, None)
    os.environ["HOME"] = home
    return _vms()
