"""Chooses QEMU's accelerator, and remembers which one has failed.

A /dev/kvm that can be opened may still not work: in a virtual machine it may stop at the first
instruction that it cannot emulate. So KVM is tried by a real start. A failure is remembered until
another kernel runs.
"""

from __future__ import annotations

import platform
from contextlib import suppress

from gitguardfs.base.errors import warn
from gitguardfs.host.share import kvm
from gitguardfs.host.vm.state import State
from gitguardfs.options import config_files

FILE = "accelerator"
EMULATION = "tcg"


def candidates(state: State, system: str) -> list[str]:
    """Return the accelerators to try, the fastest first. ``system`` is platform.system()'s name."""
    if system == "Darwin":
        return ["hvf", EMULATION]
    if not kvm.is_usable() or _failed(state):
        return [EMULATION]
    return ["kvm", EMULATION]


def warn_without_kvm(system: str) -> None:
    """Warn where a VM is emulated since this user cannot open KVM's device."""
    if system == "Linux" and not kvm.is_usable():
        warn(f"no /dev/kvm for you here: the VM is emulated, many times as slow ({kvm.hint()})")


def remember_failure(state: State, accelerator: str) -> None:
    """Warn that an accelerator does not work here; remember it if it is KVM."""
    warn(f"{accelerator} does not work here: the VM is emulated, which takes many times as long")
    if accelerator == "kvm":
        config_files.put(state.path(FILE), f"{platform.release()}\n")


def _failed(state: State) -> bool:
    with suppress(OSError), open(state.path(FILE)) as file:
        return file.read().strip() == platform.release()
    return False
