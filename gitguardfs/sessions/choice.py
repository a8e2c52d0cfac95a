"""Chooses the session of a mount. Only the chosen one is imported."""

from __future__ import annotations

import os
import re

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.sessions.base import SessionFactory


def session_factory(kind: str, no_cpu_idle: bool, shows_set_id: bool) -> SessionFactory:
    """Return what makes the session of a mount, by the value of ``--session``.

    ``shows_set_id`` is whether the view shows set-id bits of files. Raises ImportError if a
    package is missing, UserError if the kernel is too old.
    """
    if kind == "kernel":
        from gitguardfs.sessions.kernel_session import abi
        from gitguardfs.sessions.kernel_session.session import KernelSessionFactory

        release = os.uname().release
        if tuple(map(int, re.findall("[0-9]+", release)[:2])) < abi.OLDEST_KERNEL:
            raise UserError(
                f"--session kernel needs Linux 5.17, and this is {release}",
                "leave it out", Exit.SYSTEM,
            )  # fmt: skip
        return KernelSessionFactory(shows_set_id)
    from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3SessionFactory

    return Pyfuse3SessionFactory(no_cpu_idle)
