"""A VM's own SSH keys: one to log in as the agent, one as root, and the guest's host key."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.trusted_programs import SSH_KEYGEN, path_of

DIRECTORY = "keys"
AGENT, ADMIN, HOST = "agent", "root", "host"
HOST_ALIAS = "gitguard-vm"
"""The guest's name in known_hosts: its port differs with each start."""


@dataclass(frozen=True)
class Keys:
    """The files of one VM's keys."""

    directory: str

    def private(self, name: str) -> str:
        """Return the path of a private key: AGENT, ADMIN or HOST."""
        return os.path.join(self.directory, name)

    def public_text(self, name: str) -> str:
        """Return a public key as one line. Raises OSError."""
        with open(f"{self.private(name)}.pub") as file:
            return file.read().strip()

    def private_text(self, name: str) -> str:
        """Return a private key. Raises OSError."""
        with open(self.private(name)) as file:
            return file.read()

    @property
    def known_hosts(self) -> str:
        """The path of the known_hosts file that holds the guest's key, and nothing else."""
        return os.path.join(self.directory, "known_hosts")


def ensure(state: State) -> Keys:
    """Return the VM's keys; make them if there are none. Raises UserError, OSError.

    The keys are made in a directory that is renamed when it is complete.
    """
    keys = Keys(state.path(DIRECTORY))
    if os.path.isdir(keys.directory):
        return keys
    new = Keys(f"{keys.directory}.new")
    shutil.rmtree(new.directory, ignore_errors=True)
    os.mkdir(new.directory, 0o700)
    for name in (AGENT, ADMIN, HOST):
        _generate(new.private(name), f"{name}@{state.name}")
    kind, key = new.public_text(HOST).split()[:2]
    with open(new.known_hosts, "w") as file:
        file.write(f"{HOST_ALIAS} {kind} {key}\n")
    os.rename(new.directory, keys.directory)
    return keys


def _generate(path: str, comment: str) -> None:
    command = [path_of(SSH_KEYGEN), "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise UserError(f"ssh-keygen: {done.stderr.strip()}", code=Exit.SYSTEM)
