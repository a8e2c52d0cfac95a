"""Names that all rooms share."""

from __future__ import annotations

SUBTYPE = "gitguardfs"
FSTYPE = f"fuse.{SUBTYPE}"
"""What the kernel calls a guarded mount."""
SHARE_TYPES = ("9p", "virtiofs")
"""File systems that bring a host's directory into a guest."""
