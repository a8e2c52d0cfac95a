"""Chooses the session of a mount. Only the chosen one is imported."""

from __future__ import annotations

import os
import re
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gitguardfs.base.errors import Exit, UserError, warn

if TYPE_CHECKING:
    from gitguardfs.sessions.base import SessionKind

OLDEST_KERNEL = (5, 17)
"""The first Linux with version 7.36 of the protocol, whose INIT has the present layout."""
OLDEST_TO_LEND = (6, 9)
"""The first Linux with FUSE_PASSTHROUGH."""
OLDEST_KNOWN, FIRST_UNKNOWN = (3, 2), (3, 6)
"""The releases of pyfuse3 that its session is quick with: from the first, and before the second."""

PACKAGES = ("pyfuse3", "trio")
"""The packages that pyfuse3's session imports."""
INSTALL = (
    "guest-setup/install.sh of the source installs what is missing; Debian's packages:"
    " python3-pyfuse3 python3-trio"
)


def is_known(pyfuse3: str) -> bool:
    """Return whether the session by a release of pyfuse3 is as quick as it can be."""
    release = tuple(map(int, re.findall("[0-9]+", pyfuse3)[:2]))
    return OLDEST_KNOWN <= release < FIRST_UNKNOWN


def session_kind(
    kind: str, shows_set_id: bool, needs_kernel: str, serves_ioctl: bool
) -> SessionKind:
    """Return the kind of a mount's session, by the value of ``--session``.

    ``auto`` is the kernel's session where that can serve. It needs no pyfuse3, but warns if that
    is missing. ``needs_kernel`` names an option that only that can serve. ``shows_set_id`` is
    whether the view shows set-id bits of files, ``serves_ioctl`` whether it answers ioctl(2).
    Raises UserError if a package is missing, the kernel is too old or an option cannot be served.
    """
    # Here, since the doctor asks this module about releases, and needs no view.
    from gitguardfs.sessions.base import SessionKind

    release = os.uname().release
    version = tuple(map(int, re.findall("[0-9]+", release)[:2]))
    is_new = version >= OLDEST_KERNEL
    if kind == "kernel" and not is_new:
        raise UserError(
            f"--session kernel needs Linux 5.17, and this is {release}", "leave it out", Exit.SYSTEM
        )
    missing = " and ".join(name for name in PACKAGES if find_spec(name) is None)
    if kind == "kernel" or (kind == "auto" and is_new and os.geteuid() == 0):
        from gitguardfs.sessions.kernel_session.session import KernelSession

        if missing and kind == "auto":
            warn(f"no {missing} here: mounted by the kernel's session; a user's mount needs pyfuse3"
                 f" ({INSTALL})")  # fmt: skip
        lends_files = version >= OLDEST_TO_LEND
        of = partial(
            KernelSession, shows_set_id=shows_set_id, lends_files=lends_files,
            serves_ioctl=serves_ioctl,
        )  # fmt: skip
        return SessionKind(of, True, lends_files, takes_over=True)
    if needs_kernel:
        raise UserError(
            f"--{needs_kernel} needs --session kernel (root, Linux 5.17):"
            " pyfuse3 does not carry such requests",
            f"leave {needs_kernel} out",
            Exit.USAGE,
        )
    if missing:
        raise UserError(f"no {missing} here, which this mount needs", INSTALL, Exit.SYSTEM)
    from gitguardfs.sessions.pyfuse3_session.internals import NamesOnlyEntry
    from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3Session

    return SessionKind(Pyfuse3Session, NamesOnlyEntry().works)
