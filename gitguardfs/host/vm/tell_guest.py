"""Gives a running guest the files that depend on its secrets, as its next start would."""

from __future__ import annotations

import os
import shlex
import subprocess

from gitguardfs.base.errors import UserError, shown
from gitguardfs.host.credentials import secrets
from gitguardfs.host.egress.proxy import ca_certificate
from gitguardfs.host.vm import guest_secrets, provision, running, settings, shared_login, ssh
from gitguardfs.host.vm.guest_files import GuestFile
from gitguardfs.host.vm.keys import ADMIN
from gitguardfs.host.vm.state import State

STATE = "/var/lib/gitguard-vm"
"""The directory in which the guest notes the seed that it has taken."""
TELL_LIMIT = 60.0
"""Seconds: an emulated guest takes several to log in."""


def tell_guest(state: State) -> str | None:
    """Write the guest's files that depend on secrets, if it runs; return None.

    Otherwise return why not, to be added to a sentence; "" if it does not run.
    """
    if not running.is_running(state) or not os.path.exists(state.ready):
        return ""
    directory = state.files.directory
    try:
        guest = running.guest(state)
        files = provision.guest_files(
            settings.load(state), ca_certificate(directory), secrets.load(directory)
        )
        done = subprocess.run(
            ssh.command(guest, ADMIN, remote="sh -s"),
            input=script([file for file in files if file.path in guest_secrets.FILES]),
            capture_output=True, text=True, check=False, timeout=TELL_LIMIT,
        )  # fmt: skip
    except (UserError, OSError, subprocess.TimeoutExpired) as error:
        return f"; the running guest could not be told: {shown(str(error))}"
    if done.returncode != 0:
        return f"; the running guest could not be told: {shown(done.stderr.strip())}"
    shared_login.end(state)
    return None


def script(files: list[GuestFile], state: str = STATE) -> str:
    """Return a script for the guest's shell that writes files, each atomically.

    The guest must not take these files for those of its seed at the next start.
    """
    forget = f"rm -f {shlex.quote(state)}/seed {shlex.quote(state)}/files\n"
    return forget + "".join(
        f"printf %s {shlex.quote(str(file.content))} >{file.path}.new"
        f" && chmod {file.mode:o} {file.path}.new && mv -fT {file.path}.new {file.path} || exit\n"
        for file in files
    )
