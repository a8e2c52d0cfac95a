"""Settings in UTM (https://docs.getutm.app): where each one is, and its value."""

from __future__ import annotations

from gitguardfs.base.constants import UTM_TAG
from gitguardfs.host.share.share_spec import ShareSpec, Transport

BACKENDS = {Transport.P9: "QEMU", Transport.VIRTIOFS: "Apple Virtualization"}

GUEST_NAME = "share"
"""The guest's directory for a virtiofs share; its root lists the shared directories by name."""


def settings(spec: ShareSpec) -> list[tuple[str, str]]:
    """Return pairs of a place in UTM and its value."""
    if spec.transport is Transport.P9:
        return [
            ("New virtual machine", "Use Apple Virtualization: off"),
            ("Settings > Sharing > Directory Share Mode", "VirtFS"),
            ("The machine's page > Shared Directory > Browse", spec.directory),
            ("Mount tag", f"{UTM_TAG} (always)"),
        ]
    return [
        ("New virtual machine", "Use Apple Virtualization: on"),
        ("The machine's page > Shared Directory > Add", spec.directory),
        ("Mount tag", f"{UTM_TAG} (always)"),
    ]


def network(spec: ShareSpec) -> tuple[str, ...]:
    """Return what the guest reaches by UTM's networks, and how to prevent that."""
    if spec.transport is Transport.VIRTIOFS:
        return (
            "Shared Network lets the guest reach the internet, your local network and what listens",
            "on all addresses of the Mac. A machine without a network device reaches nothing.",
        )
    return (
        "Shared Network lets the guest reach the internet, your local network and what listens on",
        "all addresses of the Mac; Emulated VLAN also what listens on its 127.0.0.1 (10.0.2.2).",
        "Settings > Network > Isolate Guest from Host closes the way to the Mac.",
    )
