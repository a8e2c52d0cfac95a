"""Constants that several packages share."""

from __future__ import annotations

import errno

SUBTYPE = "gitguardfs"
FSTYPE = f"fuse.{SUBTYPE}"
"""The file system type of a guarded mount, as in mountinfo."""
SHARE_TYPES = ("9p", "virtiofs")
"""File systems that share a directory of the host with a guest."""
MAX_ID = 2**32 - 2
"""The largest user or group id; 2**32 - 1 is (uid_t)-1, "leave as it is"."""
MAX_SYMLINKS = 40
"""Symlinks that one path may follow: the kernel's own limit (path_resolution(7))."""
SET_ID_BITS = 0o6000
"""Mode bits: set-user-id and set-group-id."""
PERMISSION_BITS = 0o7777
"""Mode bits that chmod(2) changes."""
HELPER_GID = 4294951234
"""The group of the process that repeats the host's changes in a view (``live``): of nobody else."""
FUSE_DEVICE = "/dev/fuse"
KVM_DEVICE = "/dev/kvm"
SELINUX_LABEL = "security.selinux"
"""The extended attribute that holds the label of a file."""
DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
"""Errors from the root of a FUSE mount whose daemon has died or is dying. The root is still a
directory."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where to look for programs: mount(8) gives its helpers no PATH."""
AGENT = "agent"
"""The user that the agent runs as, in guests that gitguardfs sets up: without sudo."""
AGENT_HOME = f"/home/{AGENT}"
HOLDER = "/var/lib/gitguardfs"
"""A guest's directory that only root may enter; it holds what must not be reached by its path."""
SHARES = f"{HOLDER}/shares"
"""Holds the mount points of raw shares in a guest."""
PROJECT_SHARE = f"{SHARES}/project"
"""Where guests that gitguardfs sets up mount the raw project."""
PRIVATE_STORE = "/var/lib/gitguardfs-git"
"""Root's directory of the agents' own repositories (``--git=private``), on a disk of the guest."""
LOCAL_STORE = f"{HOLDER}/local"
"""Holds the guest's own directories (``--local``)."""
LOCAL_STAND_IN, LOCAL_OWN = b"+", b"="
"""The first byte of a name in the guest's tree: of a directory that stands for one of the share,
and of a directory of the guest's own."""
CHANGES_PORT = "org.gitguardfs.changes"
"""The virtio-serial port by which a host tells its guest of changes in shared directories."""
NOT_PROXIED = "localhost,127.0.0.1,127.0.0.0/8,0.0.0.0,::1"
"""What programs in such a guest reach without the proxy (the variable no_proxy)."""
UTM_TAG = "share"
"""The one tag that UTM gives to shared directories."""
