"""Whether this user can use KVM, and what helps where that is not so."""

from __future__ import annotations

import os

from gitguardfs.base.constants import KVM_DEVICE


def is_usable() -> bool:
    """Return whether this process may open KVM's device."""
    return os.access(KVM_DEVICE, os.R_OK | os.W_OK)


def hint() -> str:
    """Return what the user can do where KVM's device cannot be opened."""
    if os.path.exists(KVM_DEVICE):
        return "sudo usermod -aG kvm USER, and log in again"
    return "switch virtualization on in the firmware, or in the hypervisor around this machine"
