"""Names that all rooms share."""

from __future__ import annotations

import errno

SUBTYPE = "gitguardfs"
FSTYPE = f"fuse.{SUBTYPE}"
"""What the kernel calls a guarded mount."""
SHARE_TYPES = ("9p", "virtiofs")
"""File systems that bring a host's directory into a guest."""
MAX_ID = 2**32 - 2
"""The largest user or group id; 2**32 - 1 is (uid_t)-1, "leave as it is"."""
MAX_SYMLINKS = 40
"""As many as the kernel follows (path_resolution(7))."""
FUSE_DEVICE = "/dev/fuse"
DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
"""What the root of a FUSE mount answers whose daemon is gone, or is just dying. It is a directory
all the same."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where to look for programs: mount(8) gives its helpers no PATH."""
UTM_TAG = "share"
"""The one tag that UTM gives to shared directories."""
