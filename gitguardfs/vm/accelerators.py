"""Which accelerator to start QEMU with, and whether one that was tried does its work.

That /dev/kvm can be opened says little: in a virtual machine it may be there and stop at the
first instruction that it cannot emulate. So KVM is tried by a real start, and what was found out
is remembered for this kernel.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress

from gitguardfs import config_files
from gitguardfs.errors import warn
from gitguardfs.vm.state import State

FILE = "accelerator"
EMULATION = "tcg"
KVM_DEVICE = "/dev/kvm"


def candidates(state: State, system: str) -> list[str]:
    """Return what to try, best first. ``system`` is the host's, as platform.system() calls it."""
    if system == "Darwin":
        return ["hvf", EMULATION]
    if not os.access(KVM_DEVICE, os.R_OK | os.W_OK) or _failed(state):
        return [EMULATION]
    return ["kvm", EMULATION]


def remember_failure(state: State, accelerator: str) -> None:
    """Remember that this one does not work here, and say so."""
    warn(f"{accelerator} does not work here: the VM is emulated, which takes many times as long")
    if accelerator == "kvm":
        config_files.apply(config_files.planned(state.path(FILE), f"{platform.release()}\n", 0o600))


def _failed(state: State) -> bool:
    with suppress(OSError), open(state.path(FILE)) as file:
        return file.read().strip() == platform.release()
    return False
