"""Names that all rooms share."""

from __future__ import annotations

SUBTYPE = "gitguardfs"
FSTYPE = f"fuse.{SUBTYPE}"
"""What the kernel calls a guarded mount."""
SHARE_TYPES = ("9p", "virtiofs")
"""File systems that bring a host's directory into a guest."""
MAX_ID = 2**32 - 2
"""The largest user or group id; 2**32 - 1 is (uid_t)-1, "leave as it is"."""
